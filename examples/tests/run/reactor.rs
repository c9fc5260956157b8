//! Timers, descriptors, files, children, signals, and other loops.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::start;

#[test]
fn hello_timer_says_hello() {
    let printed = start(example!("hello-timer")).succeed();
    assert!(printed[0].starts_with("waiting, on "), "{printed:#?}");
    assert!(printed[1].starts_with("hello, after "), "{printed:#?}");
}

#[test]
fn ticker_misses_a_beat_and_stops_after_five() {
    let mut ticker = start(example!("ticker"));
    ticker.expect("beat 2 at");
    ticker.expect("missed");
    ticker.expect("beat 5 at");
    ticker.succeed();
}

#[test]
fn watch_stdin_counts_the_lines_of_a_pipe() {
    let mut example = example!("watch-stdin");
    example.stdin(Stdio::piped());
    let mut watching = start(example);
    let mut input = watching.child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    watching.expect("1 line so far");
    input.write_all(b"two\nthree\n").unwrap();
    watching.expect("3 lines so far");
    drop(input);
    watching.expect("the end, after 3 lines");
    watching.succeed();
}

#[test]
fn watch_stdin_explains_why_it_does_not_watch_a_file() {
    let mut example = example!("watch-stdin");
    example.stdin(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap());
    let mut watching = start(example);
    watching.expect("always ready");
    assert!(!watching.finish().0.success());
}

#[test]
fn watch_files_survives_a_replaced_file() {
    let directory = std::env::temp_dir().join(format!("pelton-watch-files-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("app.conf");
    let mut example = example!("watch-files");
    example.arg(&path);
    let mut watching = start(example);
    watching.expect("watching");
    std::fs::write(&path, "one").unwrap();
    watching.expect("created");
    watching.expect("3 bytes");
    std::fs::write(directory.join("new"), "three").unwrap();
    std::fs::rename(directory.join("new"), &path).unwrap();
    watching.expect("modified");
    watching.expect("5 bytes");
    std::fs::remove_file(&path).unwrap();
    watching.expect("deleted");
    watching.expect("No such file");
    watching.signal(Signal::TERM);
    watching.succeed();
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn run_children_talks_to_them_and_ends_a_slow_one() {
    let printed = start(example!("run-children")).succeed();
    for expected in [
        r#"sort: exit status: 0, "apple\npear\n""#,
        r#"sleep: run "sleep": it took longer than 100ms"#,
        "child says: HELLO",
        "child says: GOODBYE",
        "child: exit status: 0",
    ] {
        assert!(printed.iter().any(|line| line == expected), "{expected:?} is not among {printed:#?}");
    }
}

#[test]
fn signals_finishes_its_jobs_after_the_first_one() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut working = start(example!("signals"));
        working.expect("job 1 begins");
        working.signal(signal);
        working.expect("finishing 1 job");
        working.expect("job 1 is done");
        working.expect("Drained");
        working.succeed();
    }
}

#[test]
fn signals_stops_at_once_after_the_second_one() {
    let mut working = start(example!("signals"));
    working.expect("job 1 begins");
    working.signal(Signal::TERM);
    working.expect("finishing 1 job");
    working.signal(Signal::INT);
    working.expect("Stopped");
    let printed = working.succeed();
    assert!(!printed.iter().any(|line| line.contains("is done")), "{printed:#?}");
}

#[test]
fn foreign_loop_serves_both() {
    let mut embedding = start(example!("foreign-loop"));
    embedding.expect("the program reads 'a'");
    embedding.expect("the reactor's timer fires");
    embedding.expect("the program reads 'c'");
    embedding.expect("the reactor was stopped by another thread");
    embedding.succeed();
}

#[test]
fn guest_runs_scripts_beside_the_reactor() {
    let printed = start(example!("guest")).succeed();
    let lines =
        ["script one: hello", "script two: hello from another thread", "the reactor's timer fires", "script one: bye"];
    assert_eq!(printed, lines);
}

#[test]
fn stats_names_the_slow_callback_and_prints_its_numbers() {
    let printed = start(example!("stats")).succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("timer \"refresh the cache\" (examples/stats.rs:26:27) took"), "{printed:#?}");
    assert!(said("pelton_slow_callbacks_total 1"), "{printed:#?}");
}
