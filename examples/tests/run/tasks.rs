//! Promises, threads, actors, and work off the loop.

use std::process::Command;

use super::start;

#[test]
fn cross_thread_post_loses_nothing() {
    let mut posting = start(example!("cross-thread-post"));
    posting.expect("the loop has counted 1229 primes");
    posting.succeed();
}

#[test]
fn promises_and_callbacks_have_the_same_results() {
    let printed = start(example!("promises")).succeed();
    let lines = [
        "callbacks: ann owes 42",
        "a chain:   ann owes 42",
        "a chain:   nobody is number 3",
        "at once:   ann owes 42, bob owes 7, and number 3 is unknown",
    ];
    assert_eq!(printed, lines);
}

#[test]
fn channel_chat_is_heard_and_answered_on_every_loop() {
    let printed = start(example!("channel-chat")).succeed();
    let mut heard: Vec<&str> = printed.iter().filter_map(|line| line.strip_prefix("ann hears ")).collect();
    let place = |part: &str| heard.iter().position(|line| *line == part);
    assert!(place("bob: ?wheel") < place("bob: ?reactor"), "{printed:#?}");
    assert!(place("bob: ?reactor") < place("bot: reactor has 7 letters"), "{printed:#?}");
    heard.sort_unstable();
    let bot = ["bot: jet has 3 letters", "bot: reactor has 7 letters", "bot: wheel has 5 letters"];
    let people = ["bob: ?reactor", "bob: ?wheel", "cid: ?jet", "cid: hello"];
    assert_eq!(heard, [&people[..2], &bot[..], &people[2..]].concat(), "{printed:#?}");
    // One library is enough if the questions come slowly.
    assert!(printed.last().unwrap().starts_with("the room is closed: ann has heard 7 lines, and the bot used "));
}

#[test]
fn actors_do_not_delay_each_other() {
    let printed = start(example!("actors")).succeed();
    let told: Vec<&str> = printed.iter().filter(|line| line.contains(" < ")).map(String::as_str).collect();
    assert_eq!(
        told,
        [
            "hasty    < 12 = 2 * 2 * 3",
            "hasty    < 97 = 97",
            "hasty    < error: water is not a number: invalid digit found in string",
            "patient  < 10000004400000259 = 100000007 * 100000037",
        ]
    );
}

#[test]
fn keyed_runs_the_transfers_of_each_account_in_order() {
    let printed = start(example!("keyed")).succeed();
    assert!(printed.iter().any(|line| line.ends_with("the ledger of carol is gone")), "{printed:?}");
    let told: Vec<&str> = printed.iter().filter(|line| !line.contains("panicked")).map(String::as_str).collect();
    assert_eq!(told, ["alice: 100, 70, 75", "bob: 50, 30, 40", "carol: 10, 5", "0 keys are busy, 0 tasks wait"]);
}

#[test]
fn defer_counts_primes_while_the_loop_ticks() {
    let mut counting = start(example!("defer"));
    counting.expect("one was cancelled in time");
    let printed = counting.succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("another piece failed: it panicked: there is no prime here"), "{printed:#?}");
    assert!(said("17984 primes below 200000, and "), "{printed:#?}");
    assert!(!said("never printed"), "{printed:#?}");
}

#[test]
fn files_writes_lists_reads_and_copies() {
    let mut files = start(example!("files"));
    files.expect("20 files are written");
    files.expect("20 files are found");
    files.expect("14 of 14 bytes are copied");
    files.expect("everything is removed again");
    let printed = files.succeed();
    let said = |part: &str| printed.iter().any(|line| line.contains(part));
    assert!(said("20 files are read"), "{printed:#?}");
    assert!(said("/missing: No such file or directory"), "{printed:#?}");
}

#[test]
fn jobs_run_in_the_order_of_their_key_although_one_fails() {
    let directory = std::env::temp_dir().join(format!("pelton-example-jobs-{}", std::process::id()));
    for store in ["memory:".to_owned(), format!("file:{}", directory.display())] {
        let mut example = example!("jobs");
        example.arg(store);
        let printed = start(example).succeed();
        let position =
            |part: &str| printed.iter().position(|line| line.contains(part)).unwrap_or_else(|| panic!("{printed:#?}"));
        assert!(position("order 1 of ana: failed") < position("order 1 of ana: done at attempt 2"));
        assert!(position("order 1 of ana: done") < position("order 3 of ana: done at attempt 1"));
        assert!(position("order 2 of bob: done") < position("order 4 of bob: done"));
    }
    let _ = std::fs::remove_dir_all(directory);
}
