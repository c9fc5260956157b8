//! Many children leave nothing behind. Each test has a process of its own, to count its descriptors and children.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use pelton::process::Command;
use pelton::{EventLoop, Reactor};
use pelton_testing::{block_on, child, descriptors, run_until};

use super::sh;

/// The children of this process, zombies included.
fn children() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists.map(|list| list.split_whitespace().count()).sum()
}

fn in_a_process(test: &str, act: impl FnOnce(&mut EventLoop)) {
    if child::role().is_none() {
        let output = child::command(test, "1").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {error}", output.status.into_raw());
        return;
    }
    let mut reactor = Reactor::new().unwrap();
    // Whatever is opened on first use is open now.
    let first = Command::new("true").output(&mut reactor);
    block_on(&mut reactor, first).unwrap();
    let before = descriptors();
    act(&mut reactor);
    assert_eq!((descriptors(), children()), (before, 0), "descriptors and children");
    assert_eq!((reactor.timer_count(), reactor.child_count(), reactor.connection_count()), (0, 0, 0));
}

/// Ten thousand with `PELTON_CHILDREN=10000`, which takes a minute or so.
#[test]
#[cfg(target_os = "linux")]
fn many_short_children_in_a_row_leave_nothing_behind() {
    in_a_process("crowds::many_short_children_in_a_row_leave_nothing_behind", |reactor| {
        let count = std::env::var("PELTON_CHILDREN").map_or(300, |count| count.parse().unwrap());
        for number in 0..count {
            let output = sh(&format!("echo {number}")).output(reactor);
            assert_eq!(block_on(reactor, output).unwrap().stdout, format!("{number}\n").as_bytes());
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn two_hundred_children_at_once_leave_nothing_behind() {
    in_a_process("crowds::two_hundred_children_at_once_leave_nothing_behind", |reactor| {
        let done = std::rc::Rc::new(std::cell::Cell::new(0));
        for number in 0..200 {
            let count = done.clone();
            sh(&format!("sleep 0.2; echo {number}; exit {}", number % 100)).output(reactor).done(move |_, output| {
                let output = output.unwrap();
                assert_eq!(output.stdout, format!("{number}\n").as_bytes());
                assert_eq!(output.status.code(), Some(number % 100));
                count.set(count.get() + 1);
            });
        }
        assert_eq!(reactor.child_count(), 200);
        run_until(reactor, |_| done.get() == 200);
    });
}
