//! The file store: killed at every system call, torn at every byte, on disks that fail, opened twice.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pelton::Reactor;
use pelton_jobs::{Error, FileOptions, Job, Jobs, State, SyncPolicy};
use pelton_testing::{child, run_until};

use crate::{enqueue, finish_all, queue, settled, stats, temporary_directory, until_stats};

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        Directory(temporary_directory())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(reactor: &mut Reactor, directory: &Path) -> Jobs {
    Jobs::open(reactor, &format!("file:{}", directory.display())).unwrap()
}

/// Returns the payloads of jobs that are left, after all leases of a process that died are over.
fn left(directory: &Path) -> Vec<u32> {
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, directory);
    let mut found = Vec::new();
    for state in State::ALL {
        let list = jobs.list(&mut reactor, "q", state, 0, 10_000);
        let list = settled(&mut reactor, list).unwrap_or_else(|error| panic!("{error}"));
        found.extend(list.iter().map(|info| String::from_utf8_lossy(&info.payload).parse::<u32>().unwrap()));
    }
    found.sort_unstable();
    found
}

const JOBS: u32 = 12;

/// In the child: enqueues jobs, and runs the even ones. Prints what was confirmed.
fn in_child(directory: &str) {
    let mut reactor = Reactor::new().unwrap();
    // Small, so that it is compacted several times.
    let options = FileOptions::new(directory).compact_at(600);
    let jobs = Jobs::open_file(&mut reactor, &options).unwrap();
    for number in 0..JOBS {
        let delay = Duration::from_secs(if number % 2 == 1 { 3600 } else { 0 });
        let enqueued = jobs.enqueue(&mut reactor, "q", Job::new(number.to_string()).delay(delay));
        match settled(&mut reactor, enqueued) {
            Ok(_) => println!("enqueued {number}"),
            Err(error) => {
                println!("refused {number}: {error}");
                continue;
            }
        }
        if number % 2 == 1 {
            continue;
        }
        let worker = jobs.work(&mut reactor, queue().concurrency(1), |_, run| run.done("")).unwrap();
        // A disk that fails for a moment delays it.
        run_until(&mut reactor, |_| worker.stats().done == 1 || worker.stats().errors > 3);
        if worker.stats().done == 1 {
            println!("done {number}");
        }
        if worker.stats().errors > 0 {
            println!("refused the worker");
        }
        if worker.stats().errors > 3 {
            break;
        }
        let drained = worker.drain(&mut reactor);
        settled(&mut reactor, drained).unwrap();
    }
    println!("end");
}

struct Confirmed {
    enqueued: Vec<u32>,
    done: Vec<u32>,
    refused: usize,
    killed: bool,
    ended: bool,
}

/// Runs the child under `strace` with this injected fault.
fn run_child(test: &str, directory: &Path, inject: Option<&str>) -> Confirmed {
    let mut command = match inject {
        Some(inject) => {
            let mut command = Command::new("strace");
            command.args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                "trace=pwrite64,fdatasync,fsync,rename,ftruncate,write",
            ]);
            command.args(["-e", inject]).arg(std::env::current_exe().unwrap());
            command.args(["--exact", test, "--nocapture"]).env(child::CHILD, directory);
            command
        }
        None => child::command(test, directory.to_str().unwrap()),
    };
    let output = command.stdin(Stdio::null()).output().expect("this test needs strace");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers = |word: &str| -> Vec<u32> {
        let lines = text.lines().filter_map(|line| line.split_once(word)).map(|(_, rest)| rest);
        lines.filter_map(|rest| rest.trim().parse().ok()).collect()
    };
    Confirmed {
        enqueued: numbers("enqueued "),
        done: numbers("done "),
        refused: text.matches("refused ").count(),
        killed: output.status.signal() == Some(9) || output.status.code() == Some(137),
        ended: text.contains("end\n"),
    }
}

/// Checks that everything that was confirmed is there, and nothing is there that was confirmed as done.
fn check(directory: &Path, confirmed: &Confirmed, what: &str) {
    let left = left(directory);
    for number in &confirmed.enqueued {
        // It may be done without having been confirmed, if it was the last one.
        let last = confirmed.enqueued.last() == Some(number) && number % 2 == 0;
        let expected = !confirmed.done.contains(number);
        assert!(left.contains(number) == expected || (last && expected), "{what}: job {number}, left: {left:?}");
    }
    let extra = left.iter().filter(|number| !confirmed.enqueued.contains(number)).count();
    assert!(extra <= 1 + confirmed.refused, "{what}: {left:?}");
}

#[test]
fn a_process_killed_at_every_step_loses_nothing_that_was_confirmed() {
    const NAME: &str = "crashes::a_process_killed_at_every_step_loses_nothing_that_was_confirmed";
    if let Some(directory) = child::role() {
        return in_child(&directory);
    }
    for call in ["pwrite64", "fdatasync", "fsync", "rename", "ftruncate"] {
        let mut step = 1;
        loop {
            let directory = Directory::new();
            let inject = format!("inject={call}:signal=KILL:when={step}");
            let confirmed = run_child(NAME, &directory.0, Some(&inject));
            let what = format!("killed at {call} {step}");
            check(&directory.0, &confirmed, &what);
            if !confirmed.killed {
                assert!(confirmed.ended, "{what}");
                assert_eq!(confirmed.enqueued.len() as u32, JOBS, "{what}");
                break;
            }
            // Every step at first, then some.
            step += if step < 8 { 1 } else { 5 };
        }
        assert!(step > 1 || call == "ftruncate", "{call} was never called");
    }
}

#[test]
fn a_disk_that_fails_refuses_and_loses_nothing() {
    const NAME: &str = "crashes::a_disk_that_fails_refuses_and_loses_nothing";
    if let Some(directory) = child::role() {
        return in_child(&directory);
    }
    // Full for a while, full for ever, torn by the disk, not synced, not replaceable.
    let faults = [
        "pwrite64:error=ENOSPC:when=5..9",
        "pwrite64:error=ENOSPC:when=7+",
        "pwrite64:error=EIO:when=4",
        "fdatasync:error=EIO:when=6",
        "rename:error=EACCES",
        "fsync:error=EIO:when=4+",
    ];
    for fault in faults {
        let directory = Directory::new();
        let confirmed = run_child(NAME, &directory.0, Some(&format!("inject={fault}")));
        assert!(confirmed.ended, "{fault}");
        let writes_fail = fault.starts_with("pwrite64") || fault.starts_with("fdatasync");
        assert_eq!(confirmed.refused > 0, writes_fail, "{fault}");
        check(&directory.0, &confirmed, fault);
    }
}

#[test]
fn a_log_torn_at_every_byte_opens_with_what_came_before() {
    let directory = Directory::new();
    let mut lengths = Vec::new();
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &directory.0);
    let log = directory.0.join("jobs.log");
    for number in 0..5 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()));
        lengths.push(std::fs::metadata(&log).unwrap().len());
    }
    let whole = std::fs::read(&log).unwrap();
    for end in 0..=whole.len() {
        let torn = Directory::new();
        std::fs::create_dir_all(&torn.0).unwrap();
        std::fs::write(torn.0.join("jobs.log"), &whole[..end]).unwrap();
        let expected: Vec<u32> = (0..5).filter(|number| lengths[*number as usize] <= end as u64).collect();
        assert_eq!(left(&torn.0), expected, "torn at byte {end}");
    }
    // Bytes of the last record that were never written, as a file system may leave them.
    let mut zeroed = whole.clone();
    zeroed[lengths[3] as usize + 20..].fill(0);
    let torn = Directory::new();
    std::fs::create_dir_all(&torn.0).unwrap();
    std::fs::write(torn.0.join("jobs.log"), zeroed).unwrap();
    assert_eq!(left(&torn.0), [0, 1, 2, 3]);
}

#[test]
fn a_log_that_is_damaged_in_the_middle_is_not_touched() {
    let directory = Directory::new();
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &directory.0);
    for number in 0..5 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()));
    }
    let log = directory.0.join("jobs.log");
    let whole = std::fs::read(&log).unwrap();
    let wrong_file = ["another file", "pelton jobs 2\n"];
    let mut cases: Vec<Vec<u8>> = wrong_file.iter().map(|text| text.as_bytes().to_vec()).collect();
    for at in (14..whole.len() / 2).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        cases.push(damaged);
    }
    for bytes in cases {
        let damaged = Directory::new();
        std::fs::create_dir_all(&damaged.0).unwrap();
        std::fs::write(damaged.0.join("jobs.log"), &bytes).unwrap();
        let mut reactor = Reactor::new().unwrap();
        let jobs = open(&mut reactor, &damaged.0);
        let ready = jobs.ready(&mut reactor);
        let error = settled(&mut reactor, ready).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. } | Error::Io { .. }), "{error:?}");
        assert!(error.to_string().contains("jobs.log"), "{error}");
        assert_eq!(std::fs::read(damaged.0.join("jobs.log")).unwrap(), bytes);
    }
}

#[test]
fn a_second_process_is_refused_and_told_by_whom() {
    const NAME: &str = "crashes::a_second_process_is_refused_and_told_by_whom";
    if let Some(directory) = child::role() {
        let mut reactor = Reactor::new().unwrap();
        let jobs = open(&mut reactor, Path::new(&directory));
        let ready = jobs.ready(&mut reactor);
        println!("{}", settled(&mut reactor, ready).unwrap_err());
        return;
    }
    let directory = Directory::new();
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &directory.0);
    enqueue(&mut reactor, &jobs, Job::new("1"));
    let output = child::command(NAME, directory.0.to_str().unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = format!("another process uses these jobs, process {}", std::process::id());
    assert!(text.contains(&expected), "{text}");
    // And it has changed nothing.
    assert_eq!(stats(&mut reactor, &jobs).ready, 1);
    drop((jobs, reactor));
    assert_eq!(left(&directory.0), [1]);
}

#[test]
fn jobs_that_were_running_are_taken_over_at_once_after_a_restart() {
    let directory = Directory::new();
    {
        let mut reactor = Reactor::new().unwrap();
        let jobs = open(&mut reactor, &directory.0);
        let (_, runs) = crate::keep_runs(&mut reactor, &jobs, queue());
        enqueue(&mut reactor, &jobs, Job::new("1").key("k"));
        enqueue(&mut reactor, &jobs, Job::new("2").key("k"));
        run_until(&mut reactor, |_| runs.borrow().len() == 1);
        // The loop ends before the handler has finished.
    }
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &directory.0);
    let log = finish_all(&mut reactor, &jobs, queue());
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == 2);
    assert_eq!(*log.borrow(), ["1", "2"]);
    assert_eq!(stats.taken_over, 1);
}

#[test]
fn the_log_is_compacted_and_an_idle_worker_does_not_make_it_grow() {
    let directory = Directory::new();
    let mut reactor = Reactor::new().unwrap();
    let options = FileOptions::new(&directory.0).compact_at(20_000).sync(SyncPolicy::Never);
    let jobs = Jobs::open_file(&mut reactor, &options).unwrap();
    let seen = finish_all(&mut reactor, &jobs, queue().lease(Duration::from_millis(60)));
    for number in 0..300 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()));
    }
    until_stats(&mut reactor, &jobs, |stats| stats.done == 300);
    assert!(seen.borrow().len() >= 300);
    let size = || std::fs::metadata(directory.0.join("jobs.log")).unwrap().len();
    let before = size();
    assert!(before < 25_000, "{before} bytes");
    let idle = std::time::Instant::now() + Duration::from_millis(200);
    while std::time::Instant::now() < idle {
        reactor.turn(Some(Duration::from_millis(10))).unwrap();
    }
    assert_eq!(size(), before);
}
