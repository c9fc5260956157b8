//! Descriptors that are closed while they are watched, on every engine.
//!
//! These tests are about descriptor *numbers*, so they have a process of their own and run one at a time: nothing else may open
//! a descriptor meanwhile.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pelton::{EngineKind, Interest};
use pelton_testing::{Log, On, activity, on_every_engine, poll, watch_and_log};

on_every_engine![
    descriptor_closed_while_watched_neither_spins_nor_fails,
    a_closed_descriptors_number_can_be_watched_again,
    duplicate_of_a_closed_descriptor_does_not_spin,
];

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptor_closed_while_watched_neither_spins_nor_fails(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watch = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    poll(&mut reactor);
    drop(ours);
    poll(&mut reactor);
    match on.0 {
        EngineKind::Poll | EngineKind::Select => assert_eq!(log.take(), ["c"], "reported once"),
        _ => assert_eq!(log.len(), 0, "the kernel has forgotten it"),
    }
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
    drop(theirs);
    // A reported watch has ended itself; others can still be ended.
    reactor.end(watch);
    assert_eq!(reactor.watch_count(), 0);

    // The loop still works.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    poll(&mut reactor);
    assert_eq!(log.take(), ["r"]);
}

fn a_closed_descriptors_number_can_be_watched_again(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let number = ours.as_raw_fd();
    let old = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    drop(ours);
    // Engines that keep their own tables notice the closing here.
    poll(&mut reactor);
    log.take();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    assert_eq!(ours.as_raw_fd(), number, "the lowest free number is given out first");
    let new = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    theirs.write_all(b"x").unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["r"], "the new watch is called");
    reactor.end(old);
    poll(&mut reactor);
    assert_eq!(log.take(), ["r"], "ending the old watch does not touch the new one");
    assert!(reactor.end(new));
}

fn duplicate_of_a_closed_descriptor_does_not_spin(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (spent, mut spent_peer) = UnixStream::pair().unwrap();
    let entry = log.clone();
    reactor.watch_once(&spent, Interest::READABLE, move |_, _| entry.add("spent")).unwrap();
    spent_peer.write_all(b"x").unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["spent"]);

    let duplicate = ours.try_clone().unwrap();
    let watch = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    theirs.write_all(b"x").unwrap();
    drop(ours);
    // The kernel still knows the file, but no descriptor refers to it any more.
    reactor.end(watch);
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 5 && calls == 0, "{turns} turns, {calls} calls");
    drop(duplicate);
}
