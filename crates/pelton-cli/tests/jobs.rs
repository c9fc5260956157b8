//! `pelton jobs`: a queue worked off by commands, on a file and on a real Redis server.

mod server;

use std::process::{Command, Output, Stdio};

use pelton_testing::{RedisServer, eventually};
use rustix::process::Signal;
use server::http::Directory;
use server::{Server, http};

/// Runs `pelton jobs` with these arguments, and returns its output.
fn jobs(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    command.arg("jobs").args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = jobs(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the path of a file in a directory, as an argument.
fn path(directory: &Directory, name: &str) -> String {
    directory.file(name).to_str().unwrap().to_owned()
}

/// Starts a worker, and waits until it works.
fn work(arguments: &[&str]) -> Server {
    Server::start("jobs", &[&["work"], arguments].concat())
}

#[test]
fn commands_get_the_payload_and_their_exit_codes_decide() {
    let directory = Directory::new("jobs-exit");
    let redis = RedisServer::start(&[]);
    for store in [format!("file:{}", path(&directory, "store")), redis.url()] {
        let out = path(&directory, "out");
        let _ = std::fs::remove_file(&out);
        let good = printed(&["enqueue", &store, "q", "good", "--key", "k", "--keep-result", "1h"]);
        printed(&["enqueue", &store, "q", "again", "--first-wait", "10ms"]);
        printed(&["enqueue", &store, "q", "bad"]);
        assert_eq!(printed(&["list", &store, "q"]).lines().count(), 3);
        let script = format!(
            r#"read word; echo "$word $PELTON_JOB_KEY $PELTON_JOB_ATTEMPT $PELTON_JOB_QUEUE" >> {out}
            test "$PELTON_JOB_FENCE" -gt 0 || exit 1
            case $word in bad) echo 'no such thing' >&2; exit 65;; again) test $PELTON_JOB_ATTEMPT = 2 || exit 3;; esac
            echo done $word"#
        );
        let worker = work(&[&store, "q", "-c", "2", "--", "sh", "-c", &script]);
        eventually("four runs", || {
            let text = std::fs::read_to_string(&out).ok()?;
            (text.lines().count() == 4).then_some(())
        });
        worker.signal(Signal::TERM);
        worker.succeed();
        let mut lines: Vec<String> = std::fs::read_to_string(&out).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["again  1 q", "again  2 q", "bad  1 q", "good k 1 q"]);
        let shown = printed(&["show", &store, "q", good.trim()]);
        assert!(shown.contains("state      done") && shown.contains("result     done good\\n"), "{shown}");
        let dead = printed(&["list", &store, "q", "--state", "dead", "--json"]);
        assert!(dead.contains(r#""payload":"bad""#) && dead.contains("no such thing"), "{dead}");
        assert_eq!(printed(&["requeue", &store, "q", "--all"]), "1 brought back\n");
        assert_eq!(printed(&["purge", &store, "q", "--state", "ready"]), "1 removed\n");
        let table = printed(&["top", &store, "--count", "1"]);
        assert!(table.contains("QUEUE") && table.contains("\nq  "), "{table}");
        let missing = jobs(&["show", &store, "q", "nothing"]);
        assert_eq!(missing.status.code(), Some(1));
    }
}

#[test]
fn cancelled_jobs_have_their_command_killed_and_limits_hold() {
    let directory = Directory::new("jobs-cancel");
    let redis = RedisServer::start(&[]);
    let (store, started) = (redis.url(), path(&directory, "started"));
    printed(&["limit", &store, "q", "--concurrency", "1"]);
    let id = printed(&["enqueue", &store, "q", "x"]);
    printed(&["enqueue", &store, "q", "y"]);
    let script = format!("echo $$ >> {started}; exec sleep 600");
    let worker = work(&[&store, "q", "-c", "4", "--lease", "300ms", "--", "sh", "-c", &script]);
    let pid =
        eventually("the command runs", || std::fs::read_to_string(&started).ok()?.lines().next()?.parse::<i32>().ok());
    let table = printed(&["list", &store, "--json"]);
    assert!(table.contains(r#""running":1"#) && table.contains(r#""ready":1"#), "one at a time: {table}");
    assert_eq!(printed(&["cancel", &store, "q", id.trim()]), "running; its worker will stop it\n");
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    eventually("the command is gone", || rustix::process::test_kill_process(pid).is_err().then_some(()));
    // The other one has its turn.
    eventually("the next command runs", || {
        (std::fs::read_to_string(&started).ok()?.lines().count() == 2).then_some(())
    });
    worker.signal(Signal::TERM);
    worker.signal(Signal::TERM);
}

#[test]
fn metrics_report_depth_age_and_failures() {
    let redis = RedisServer::start(&[]);
    let store = redis.url();
    printed(&["enqueue", &store, "other", "waits"]);
    printed(&["enqueue", &store, "q", "x", "--attempts", "1"]);
    let worker = Server::start_on(2, "jobs", &["work", &store, "q", "--admin", "127.0.0.1:0", "--", "false"]);
    let address = worker.address(1);
    let metrics = eventually("the job has failed", || {
        let text = http::curl(&[&format!("http://{address}/metrics")]);
        text.contains("pelton_jobs_buried_total{queue=\"q\"} 1").then_some(text)
    });
    for line in [
        "pelton_jobs_ready{queue=\"other\"} 1",
        "pelton_jobs_dead{queue=\"q\"} 1",
        "pelton_jobs_failed_total{queue=\"q\"} 1",
        "pelton_worker_failed_total 1",
        "# TYPE pelton_jobs_oldest_seconds gauge",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert!(http::curl(&[&format!("http://{address}/health")]).contains("ok"));
    worker.signal(Signal::TERM);
    worker.succeed();
}

#[test]
fn bad_stores_are_refused_without_showing_passwords() {
    for arguments in [
        vec!["list", "redis://:secret@:x"],
        vec!["list", "kafka:secret"],
        vec!["enqueue", "redis://user:secret@host:port", "q", "x"],
        vec!["top", "secret"],
        vec!["purge", "file:/nowhere", "q", "--state", "running"],
    ] {
        let output = jobs(&arguments);
        let text = format!("{output:?}");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
    let mut chat = Command::new(env!("CARGO_BIN_EXE_pelton"));
    let output = chat.args(["chat", "--broker", "redis://:secret@host:port"]).output().unwrap();
    let text = format!("{output:?}");
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--broker") && !text.contains("secret"), "{text}");
}

#[test]
fn a_directory_that_is_in_use_is_refused() {
    let directory = Directory::new("jobs-locked");
    let store = format!("file:{}", path(&directory, "store"));
    let worker = work(&[&store, "q", "--", "true"]);
    let output = jobs(&["list", &store, "q"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("another process uses these jobs, process"), "{text}");
    worker.signal(Signal::TERM);
    worker.succeed();
    assert!(printed(&["list", &store]).contains("QUEUE"));
}
