//! Open files: positions and locks.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, ErrorKind, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pelton::fs::{self, File};
use pelton::{LaneSettings, Reactor};
use pelton_testing::{On, on_every_engine, run_until};

use super::{Scratch, done, new_loop, outcome};

on_every_engine![waiting_for_a_lock_blocks_nothing_else,];

#[test]
fn an_open_file_is_read_written_and_moved_in() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.path("one");
    let file = done(&mut reactor, File::create(&path));
    assert_eq!(file.path(), path);
    assert_eq!(done(&mut reactor, file.write("wa")), 2);
    done(&mut reactor, file.write_all(b"ter wheel".to_vec()));
    assert_eq!(done(&mut reactor, file.stream_position()), 11);
    done(&mut reactor, file.sync_data());
    done(&mut reactor, file.sync_all());
    let error = outcome(&mut reactor, file.read(1)).unwrap_err();
    assert!(error.to_string().starts_with(&format!("read {}: ", path.display())), "{error}");
    done(&mut reactor, file.close());

    let file = done(&mut reactor, File::open(&path));
    assert_eq!(done(&mut reactor, file.read(5)), b"water");
    assert_eq!(done(&mut reactor, file.seek(SeekFrom::End(-5))), 6);
    assert_eq!(done(&mut reactor, file.read_to_string()), "wheel");
    assert!(done(&mut reactor, file.read(5)).is_empty(), "at the end");
    assert_eq!(done(&mut reactor, file.seek(SeekFrom::Start(3))), 3);
    let buffer = done(&mut reactor, file.read_into(Vec::with_capacity(64)));
    assert_eq!(buffer, b"er wheel");
    let memory = buffer.as_ptr();
    let buffer = done(&mut reactor, file.read_into_at(1, buffer));
    assert_eq!((&*buffer, buffer.as_ptr()), (&b"ater wheel"[..], memory), "the same memory");
    let second = done(&mut reactor, file.try_clone());
    assert_eq!(done(&mut reactor, second.seek(SeekFrom::Start(9))), 9);
    assert_eq!(done(&mut reactor, file.read_to_end()), b"el", "clones share a position");
    assert_eq!(done(&mut reactor, file.metadata()).len(), 11);
}

#[test]
fn positions_are_read_and_written_without_moving_the_files_own() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.file("one", "0123456789");
    let file = done(&mut reactor, File::open_with(&path, std::fs::OpenOptions::new().read(true).write(true)));
    assert_eq!(done(&mut reactor, file.read_at(4, 3)), b"456");
    assert_eq!(done(&mut reactor, file.read_at(9, 3)), b"9");
    assert_eq!(done(&mut reactor, file.read_exact_at(2, 2)), b"23");
    let error = outcome(&mut reactor, file.read_exact_at(9, 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(done(&mut reactor, file.write_at(2, "ab")), 2);
    done(&mut reactor, file.write_all_at(12, "c"));
    assert_eq!(done(&mut reactor, file.stream_position()), 0);
    assert_eq!(std::fs::read(&path).unwrap(), b"01ab456789\0\0c");
    done(&mut reactor, file.set_len(3));
    assert_eq!(std::fs::read(&path).unwrap(), b"01a");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    done(&mut reactor, file.set_modified(time));
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), time);
    done(&mut reactor, file.set_times(std::fs::FileTimes::new().set_accessed(time)));
    done(&mut reactor, file.set_permissions(std::fs::Permissions::from_mode(0o600)));
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let error = outcome(&mut reactor, File::create_new(&path)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    done(&mut reactor, File::create_new(scratch.path("two")));
    let file = File::from_std(std::fs::File::open(&path).unwrap(), &path);
    assert_eq!(done(&mut reactor, file.read_to_end()), b"01a");
    assert_eq!(file.as_std().metadata().unwrap().len(), 3);
}

fn waiting_for_a_lock_blocks_nothing_else(on: On) {
    let scratch = Scratch::new();
    let path = scratch.file("lock", "");
    let mut reactor = on.reactor();
    let first = done(&mut reactor, File::open(&path));
    done(&mut reactor, first.lock());
    let mut others = Vec::new();
    let granted = Rc::new(Cell::new(0));
    // More than the number of threads of the file lane.
    for _ in 0..2 * LaneSettings::FILES.threads {
        let file = done(&mut reactor, File::open(&path));
        assert!(!done(&mut reactor, file.try_lock()));
        assert!(!done(&mut reactor, file.try_lock_shared()));
        let granted = granted.clone();
        let then = move |_: &mut Reactor, outcome: io::Result<()>| {
            outcome.unwrap();
            granted.set(granted.get() + 1);
        };
        file.lock_shared().then(&mut reactor, then).unwrap();
        others.push(file);
    }
    assert_eq!(done(&mut reactor, fs::read(&path)), b"");
    assert_eq!(granted.get(), 0);
    done(&mut reactor, first.unlock());
    run_until(&mut reactor, |_| granted.get() == others.len());
    assert!(!done(&mut reactor, first.try_lock()));
    assert!(done(&mut reactor, first.try_lock_shared()));
    drop(others);
    done(&mut reactor, first.unlock());
    assert!(done(&mut reactor, first.try_lock()));
}

/// The file that the other process of the next test locks.
const TO_LOCK: &str = "PELTON_TEST_FILE_TO_LOCK";

#[test]
fn a_lock_keeps_another_process_waiting() {
    let (scratch, mut reactor) = (Scratch::new(), new_loop());
    let path = scratch.file("lock", "");
    let file = done(&mut reactor, File::open(&path));
    done(&mut reactor, file.lock());
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "open::the_other_process_locks_a_file", "--nocapture"])
        .env(TO_LOCK, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said =
        |what: &str| assert!(lines.any(|line| line.ends_with(what)), "the other process did not print {what:?}");
    said("not free");
    done(&mut reactor, file.unlock());
    said("locked");
    assert!(!done(&mut reactor, file.try_lock()), "the other process has the lock");
    let locked = Rc::new(Cell::new(false));
    let flag = locked.clone();
    file.lock().then(&mut reactor, move |_, outcome| flag.set(outcome.is_ok())).unwrap();
    drop(other.stdin.take());
    run_until(&mut reactor, |_| locked.get());
    assert!(other.wait().unwrap().success());
}

/// Run by [`a_lock_keeps_another_process_waiting`]; does nothing on its own.
#[test]
fn the_other_process_locks_a_file() {
    let Some(path) = std::env::var_os(TO_LOCK) else { return };
    let mut reactor = new_loop();
    let file = done(&mut reactor, File::open(path));
    assert!(!done(&mut reactor, file.try_lock()));
    println!("\nnot free");
    done(&mut reactor, file.lock());
    println!("locked");
    // Ends when the first process asks for it, or ends itself.
    io::read_to_string(io::stdin()).unwrap();
}
