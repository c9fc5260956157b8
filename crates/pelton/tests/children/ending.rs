//! How children end, and who waits for them.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use pelton::process::{Child, Command};
use pelton::{EventLoop, SourceId};
use pelton_testing::{Alive, Counted, Log, On, block_on, count_faults, on_every_engine, poll, run, run_until};
use signal_hook::consts::{SIGKILL, SIGTERM, SIGUSR1};

use super::{expect_gone, is_running, sh};

on_every_engine![
    a_child_can_be_killed_and_signalled,
    a_signal_after_the_exit_reaches_nobody,
    a_child_can_be_asked_to_end_and_is_killed_if_it_does_not,
    a_group_is_signalled_as_a_whole,
    every_callback_is_called_once_also_if_it_comes_late,
    a_child_whose_handle_is_dropped_keeps_running_and_leaves_no_zombie,
    a_child_may_be_killed_when_its_handle_is_dropped,
    a_reactor_that_stops_leaves_its_children_running_and_no_zombies,
    a_reactor_that_is_dropped_leaves_its_children_running_and_no_zombies,
    a_reactor_that_is_dropped_may_kill_its_children,
    a_child_that_something_else_has_waited_for_has_no_status,
    a_panic_in_a_callback_is_a_fault,
    a_child_that_is_started_while_draining_is_not_waited_for,
];

/// A child that runs until its standard input ends, which `Child` holds.
fn patient(reactor: &mut EventLoop) -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn(reactor).unwrap()
}

fn a_child_can_be_killed_and_signalled(on: On) {
    let mut reactor = on.reactor();
    for signal in [SIGKILL, SIGTERM, SIGUSR1] {
        let child = patient(&mut reactor);
        assert!(child.signal(&mut reactor, signal).unwrap());
        let exit = child.exit(&mut reactor);
        assert_eq!(block_on(&mut reactor, exit).unwrap().signal(), Some(signal));
    }
    let child = patient(&mut reactor);
    assert!(child.kill(&mut reactor).unwrap());
    run_until(&mut reactor, |_| child.status().is_some());
    let error = patient(&mut reactor).signal(&mut reactor, 5000).unwrap_err().to_string();
    assert!(error.contains("send signal 5000 to process"), "{error}");
}

fn a_signal_after_the_exit_reaches_nobody(on: On) {
    let mut reactor = on.reactor();
    let child = sh("exit 0").spawn(&mut reactor).unwrap();
    run_until(&mut reactor, |_| child.status().is_some());
    assert!(!child.kill(&mut reactor).unwrap());
    assert!(!child.terminate(&mut reactor).unwrap());
    assert_eq!(reactor.timer_count(), 0);
}

fn a_child_can_be_asked_to_end_and_is_killed_if_it_does_not(on: On) {
    let mut reactor = on.reactor();
    let child = sh("trap '' TERM; echo; while :; do sleep 0.01; done")
        .stdout(Stdio::piped())
        .grace(Duration::from_millis(30))
        .spawn(&mut reactor);
    let mut child = child.unwrap();
    // It has set its trap when it writes.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    assert!(child.terminate(&mut reactor).unwrap());
    let exit = child.exit(&mut reactor);
    assert_eq!(block_on(&mut reactor, exit).unwrap().signal(), Some(SIGKILL));
    assert!(!child.timed_out());
    assert_eq!(reactor.timer_count(), 0);
}

fn a_group_is_signalled_as_a_whole(on: On) {
    let mut reactor = on.reactor();
    let mut child = sh("sleep 300 & echo $!; wait").process_group().stdout(Stdio::piped()).spawn(&mut reactor).unwrap();
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let grandchild = line.trim().parse().unwrap();
    assert!(is_running(grandchild));
    child.kill(&mut reactor).unwrap();
    run_until(&mut reactor, |_| child.status().is_some());
    pelton_testing::eventually("the grandchild has ended", || (!is_running(grandchild)).then_some(()));
}

fn every_callback_is_called_once_also_if_it_comes_late(on: On) {
    let mut reactor = on.reactor();
    let child = sh("exit 6").spawn(&mut reactor).unwrap();
    let log = Log::default();
    for name in ["one", "two"] {
        let entry = log.clone();
        child.on_exit(&mut reactor, move |_, status| entry.add(format!("{name} {:?}", status.unwrap().code())));
    }
    run_until(&mut reactor, |_| log.len() == 2);
    let entry = log.clone();
    child.on_exit(&mut reactor, move |_, status| entry.add(format!("late {:?}", status.unwrap().code())));
    assert_eq!(log.len(), 2, "not before the next turn");
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["one Some(6)", "two Some(6)", "late Some(6)"]);
}

fn a_child_whose_handle_is_dropped_keeps_running_and_leaves_no_zombie(on: On) {
    let mut reactor = on.reactor();
    let mut child = patient(&mut reactor);
    let (pid, stdin) = (child.pid(), child.stdin.take());
    drop(child);
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert!(is_running(pid));
    drop(stdin);
    run_until(&mut reactor, |reactor| reactor.child_count() == 0);
    expect_gone(pid);
}

fn a_child_may_be_killed_when_its_handle_is_dropped(on: On) {
    let mut reactor = on.reactor();
    let child = sh("exec sleep 300").kill_on_drop().spawn(&mut reactor).unwrap();
    let pid = child.pid();
    drop(child);
    run_until(&mut reactor, |reactor| reactor.child_count() == 0);
    expect_gone(pid);
}

fn a_reactor_that_stops_leaves_its_children_running_and_no_zombies(on: On) {
    let mut reactor = on.reactor();
    let alive = Alive::default();
    let counted = Counted::new(&alive);
    let mut child = patient(&mut reactor);
    let stdin = child.stdin.take();
    child.on_exit(&mut reactor, move |_, _| panic!("{counted:?}"));
    let pid = child.pid();
    reactor.stop();
    run(&mut reactor);
    drop(child);
    assert_eq!(alive.count(), 0);
    assert!(is_running(pid));
    drop(stdin);
    expect_gone(pid);
}

fn a_reactor_that_is_dropped_leaves_its_children_running_and_no_zombies(on: On) {
    let mut reactor = on.reactor();
    let mut children: Vec<Child> = (0..10).map(|_| patient(&mut reactor)).collect();
    drop(reactor);
    assert!(children.iter().all(|child| is_running(child.pid())));
    for child in &mut children {
        drop(child.stdin.take());
    }
    children.iter().for_each(|child| expect_gone(child.pid()));
}

fn a_reactor_that_is_dropped_may_kill_its_children(on: On) {
    let mut reactor = on.reactor();
    let child = sh("exec sleep 300").kill_on_drop().spawn(&mut reactor).unwrap();
    let pid = child.pid();
    drop(reactor);
    expect_gone(pid);
    drop(child);
}

fn a_child_that_something_else_has_waited_for_has_no_status(on: On) {
    let mut reactor = on.reactor();
    let child = sh("exit 0").spawn(&mut reactor).unwrap();
    let pid = rustix::process::Pid::from_raw(child.pid() as i32);
    rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
    let exit = child.exit(&mut reactor);
    let error = block_on(&mut reactor, exit).unwrap_err().to_string();
    assert!(error.starts_with(&format!("wait for process {}: No child processes", child.pid())), "{error}");
    assert_eq!(child.status(), None);
}

fn a_panic_in_a_callback_is_a_fault(on: On) {
    let mut reactor = on.catching();
    let faults = count_faults(&mut reactor);
    let log = Log::default();
    let child = sh("exit 0").spawn(&mut reactor).unwrap();
    reactor.label(child.id(), "labelled");
    assert!(matches!(SourceId::from(child.id()), SourceId::Child(_)));
    child.on_exit(&mut reactor, |_, _| panic!("expected"));
    let entry = log.clone();
    child.on_exit(&mut reactor, move |_, _| entry.add("the next"));
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(faults.get(), 1);
}

fn a_child_that_is_started_while_draining_is_not_waited_for(on: On) {
    let mut reactor = on.reactor();
    reactor.drain(Duration::from_secs(10));
    let mut child = patient(&mut reactor);
    let stdin = child.stdin.take();
    assert_eq!(run(&mut reactor), pelton::Exit::Drained);
    assert!(is_running(child.pid()));
    drop(stdin);
    expect_gone(child.pid());
}
