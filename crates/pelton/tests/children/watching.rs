//! Watches of processes that something else has started.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use pelton::{Error, SourceId};
use pelton_testing::{Alive, Counted, Log, On, block_on, count_faults, on_every_engine, run, run_until};

on_every_engine![
    the_status_of_a_child_is_told_and_left_to_its_owner,
    the_exit_of_a_process_that_is_no_child_is_told_without_a_status,
    a_process_that_does_not_exist_is_an_error_that_names_it,
    a_watch_can_be_ended,
    several_watches_of_one_process_are_all_called,
    a_promise_for_the_exit,
    a_panic_is_a_fault,
    a_stopped_reactor_drops_its_watches,
];

fn the_status_of_a_child_is_told_and_left_to_its_owner(on: On) {
    let mut reactor = on.reactor();
    for (script, code, signal) in
        [("exit 0", Some(0), None), ("exit 9", Some(9), None), ("kill -15 $$", None, Some(15))]
    {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let log = Log::default();
        let (entry, pid) = (log.clone(), child.id());
        reactor
            .watch_process(pid, move |_, exited| {
                let status = exited.status.unwrap();
                assert_eq!((exited.pid, status.code(), status.signal()), (pid, code, signal));
                entry.add("exited");
            })
            .unwrap();
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!((log.len(), reactor.process_watch_count()), (1, 0));
        assert_eq!(child.wait().unwrap().code(), code);
    }
}

fn the_exit_of_a_process_that_is_no_child_is_told_without_a_status(on: On) {
    let mut reactor = on.reactor();
    // The shell starts a process that lives as long as its standard input is open, and says its number.
    let mut shell = Command::new("sh")
        .args(["-c", "exec 3<&0; cat <&3 >/dev/null & echo $!; wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
    let pid: u32 = line.trim().parse().unwrap();
    let log = Log::default();
    let entry = log.clone();
    reactor.watch_process(pid, move |_, exited| entry.add(format!("{} {:?}", exited.pid, exited.status))).unwrap();
    drop(shell.stdin.take());
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), [format!("{pid} None")]);
    shell.wait().unwrap();
}

fn a_process_that_does_not_exist_is_an_error_that_names_it(on: On) {
    let mut reactor = on.reactor();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let error = reactor.watch_process(child.id(), |_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), format!("watch process {}: there is no such process", child.id()));
    assert!(matches!(error, Error::System { error, .. } if error.kind() == std::io::ErrorKind::NotFound));
    assert_eq!(reactor.process_watch_count(), 0);
}

fn a_watch_can_be_ended(on: On) {
    let mut reactor = on.reactor();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let alive = Alive::default();
    let counted = Counted::new(&alive);
    let watch = reactor.watch_process(child.id(), move |_, _| panic!("{counted:?}")).unwrap();
    assert!(reactor.end(watch));
    assert!(!reactor.end(watch));
    assert_eq!(alive.count(), 0);
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn several_watches_of_one_process_are_all_called(on: On) {
    let mut reactor = on.reactor();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let log = Log::default();
    for name in ["one", "two", "three"] {
        let entry = log.clone();
        reactor.watch_process(child.id(), move |_, _| entry.add(name)).unwrap();
    }
    drop(child.stdin.take());
    run_until(&mut reactor, |_| log.len() == 3);
    child.wait().unwrap();
}

fn a_promise_for_the_exit(on: On) {
    let mut reactor = on.reactor();
    let mut child = Command::new("false").spawn().unwrap();
    let exit = reactor.process_exit(child.id()).unwrap();
    let exited = block_on(&mut reactor, exit).unwrap();
    assert_eq!(exited.status.unwrap().code(), Some(1));
    child.wait().unwrap();
}

fn a_panic_is_a_fault(on: On) {
    let mut reactor = on.catching();
    let faults = count_faults(&mut reactor);
    let mut child = Command::new("true").spawn().unwrap();
    let watch = reactor.watch_process(child.id(), |_, _| panic!("expected")).unwrap();
    reactor.label(watch, "labelled");
    assert!(matches!(SourceId::from(watch), SourceId::Process(_)));
    run_until(&mut reactor, |_| faults.get() == 1);
    child.wait().unwrap();
}

fn a_stopped_reactor_drops_its_watches(on: On) {
    let mut reactor = on.reactor();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let alive = Alive::default();
    let counted = Counted::new(&alive);
    reactor.watch_process(child.id(), move |_, _| panic!("{counted:?}")).unwrap();
    reactor.stop();
    assert!(matches!(reactor.watch_process(child.id(), |_, _| {}), Err(Error::Stopped)));
    run(&mut reactor);
    assert_eq!(alive.count(), 0);
    drop(child.stdin.take());
    child.wait().unwrap();
}
