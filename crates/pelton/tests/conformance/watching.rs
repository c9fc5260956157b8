//! Watching descriptors.

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use pelton::{EngineKind, Error, Interest};
use pelton_testing::{Log, On, activity, on_every_engine, poll, run, run_until, watch_and_log};

on_every_engine![
    a_level_watch_calls_each_turn_until_it_is_read_empty,
    a_one_shot_watch_calls_once_until_it_is_armed_again,
    readable_and_writable_are_distinguished,
    interest_can_be_changed_at_any_time,
    a_watch_can_end_itself_and_others_in_the_same_batch,
    watch_that_replaces_another_in_the_same_batch_does_not_get_its_event,
    the_same_descriptor_cannot_be_watched_twice,
    hang_up_is_reported_whatever_the_interest,
    a_hang_up_on_a_source_with_no_interest_does_not_spin,
    a_hang_up_on_a_spent_one_shot_does_not_spin,
    a_hundred_thousand_watches_come_and_go,
    a_descriptor_that_cannot_be_watched_is_an_error_that_names_it,
];

fn a_level_watch_calls_each_turn_until_it_is_read_empty(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
    theirs.write_all(b"xy").unwrap();
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(log.take(), ["r", "r"]);
    ours.read_exact(&mut [0; 2]).unwrap();
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
}

fn a_one_shot_watch_calls_once_until_it_is_armed_again(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let entry = log.clone();
    let both = Interest::READABLE | Interest::WRITABLE;
    let watch = reactor.watch_once(&ours, Interest::READABLE, move |_, _| entry.add("ready")).unwrap();
    theirs.write_all(b"x").unwrap();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["ready"]);
    reactor.set_interest(watch, both).unwrap();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["ready"], "called once for both events");
    reactor.set_interest(watch, Interest::NONE).unwrap();
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
    reactor.set_interest(watch, Interest::READABLE).unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["ready"]);
}

fn readable_and_writable_are_distinguished(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE | Interest::WRITABLE, &log);
    poll(&mut reactor);
    theirs.write_all(b"x").unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["w", "rw"]);
}

fn interest_can_be_changed_at_any_time(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let watch = watch_and_log(&mut reactor, &ours, Interest::NONE, &log);
    for interest in [Interest::NONE, Interest::WRITABLE, Interest::NONE, Interest::READABLE, Interest::WRITABLE] {
        reactor.set_interest(watch, interest).unwrap();
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["w", "r", "w"]);
    assert!(reactor.end(watch) && !reactor.end(watch));
    assert!(matches!(reactor.set_interest(watch, Interest::READABLE), Err(Error::NotWatched)));
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
}

fn a_watch_can_end_itself_and_others_in_the_same_batch(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let pairs: Vec<_> = (0..10).map(|_| UnixStream::pair().unwrap()).collect();
    let all = Rc::new(Cell::new(Vec::new()));
    for (ours, theirs) in &pairs {
        let (entry, known) = (log.clone(), all.clone());
        let watch = reactor
            .watch(ours, Interest::READABLE, move |reactor, _| {
                entry.add("called");
                for watch in known.take() {
                    assert!(reactor.end(watch));
                }
            })
            .unwrap();
        let mut list = all.take();
        list.push(watch);
        all.set(list);
        let mut theirs = theirs;
        theirs.write_all(b"x").unwrap();
    }
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(log.len(), 1, "all ten were ready, the first to be called ended them all");
    assert_eq!((reactor.watch_count(), reactor.stats().panics), (0, 0));
}

fn watch_that_replaces_another_in_the_same_batch_does_not_get_its_event(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let pairs: Vec<_> = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
    let (quiet, _quiet_peer) = UnixStream::pair().unwrap();
    let quiet = Rc::new(quiet);
    let watches = Rc::new(Cell::new([None; 2]));
    for (number, (ours, theirs)) in pairs.iter().enumerate() {
        let (known, quiet, entry) = (watches.clone(), quiet.clone(), log.clone());
        let watch = reactor
            .watch(ours, Interest::READABLE, move |reactor, _| {
                let Some(other) = known.get()[1 - number] else { return };
                known.set([None; 2]);
                reactor.end(other);
                // The new watch may or may not reuse the slot; it must not get the old one's pending event.
                let entry = entry.clone();
                reactor.watch(&*quiet, Interest::READABLE, move |_, _| entry.add("heard")).unwrap();
            })
            .unwrap();
        let mut list = watches.get();
        list[number] = Some(watch);
        watches.set(list);
        let mut theirs = theirs;
        theirs.write_all(b"x").unwrap();
    }
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.watch_count(), 2);
}

fn the_same_descriptor_cannot_be_watched_twice(on: On) {
    let mut reactor = on.reactor();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    for first in [Interest::READABLE, Interest::NONE] {
        let watch = reactor.watch(&ours, first, |_, _| {}).unwrap();
        for second in [Interest::WRITABLE, Interest::NONE] {
            let error = reactor.watch(&ours, second, |_, _| {}).unwrap_err();
            assert!(matches!(error, Error::AlreadyWatched { fd, .. } if fd == ours.as_raw_fd()), "{error}");
            let text = error.to_string();
            assert!(text.contains("watching.rs:") && text.contains(&ours.as_raw_fd().to_string()), "{text}");
        }
        assert_eq!(reactor.watch_count(), 1);
        reactor.end(watch);
    }
    let watch = reactor.watch(&ours, Interest::READABLE, |_, _| {}).unwrap();
    assert!(reactor.end(watch));
}

fn hang_up_is_reported_whatever_the_interest(on: On) {
    for interest in [Interest::READABLE, Interest::WRITABLE] {
        let mut reactor = on.reactor();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        reactor
            .watch(&ours, interest, move |reactor, ready| {
                assert!(if interest.readable() { ready.readable() } else { ready.writable() }, "{ready:?}");
                reactor.stop();
            })
            .unwrap();
        run(&mut reactor);
        assert_eq!(reactor.stats().panics, 0);
    }
}

fn a_hang_up_on_a_source_with_no_interest_does_not_spin(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watch = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    reactor.set_interest(watch, Interest::NONE).unwrap();
    drop(theirs);
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
    reactor.set_interest(watch, Interest::READABLE).unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["r"]);
}

fn a_hang_up_on_a_spent_one_shot_does_not_spin(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let entry = log.clone();
    reactor.watch_once(&ours, Interest::READABLE, move |_, _| entry.add("ready")).unwrap();
    theirs.write_all(b"x").unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["ready"]);
    drop(theirs);
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
}

fn a_hundred_thousand_watches_come_and_go(on: On) {
    let mut reactor = on.reactor();
    let pairs: Vec<_> = (0..50).map(|_| UnixStream::pair().unwrap()).collect();
    for (ours, _) in &pairs {
        let mut theirs = ours;
        let _ = theirs.write(b"x");
    }
    let calls = Rc::new(Cell::new(0));
    for round in 0..2_000 {
        let watches: Vec<_> = pairs
            .iter()
            .map(|(_, theirs)| {
                let calls = calls.clone();
                reactor.watch(theirs, Interest::READABLE, move |_, _| calls.set(calls.get() + 1)).unwrap()
            })
            .collect();
        if round % 100 == 0 {
            poll(&mut reactor);
        }
        for watch in watches {
            assert!(reactor.end(watch));
        }
        if round % 7 == 0 {
            poll(&mut reactor);
        }
    }
    assert_eq!(calls.get(), 20 * 50);
    assert_eq!(reactor.watch_count(), 0);
    run_until(&mut reactor, |_| true);
}

fn a_descriptor_that_cannot_be_watched_is_an_error_that_names_it(on: On) {
    if !matches!(on.0, EngineKind::Epoll | EngineKind::Select) {
        // The other engines accept any descriptor.
        return;
    }
    let mut reactor = on.reactor();
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    if on.0 == EngineKind::Epoll {
        let text = reactor.watch(&file, Interest::READABLE, |_, _| {}).unwrap_err().to_string();
        assert!(text.starts_with(&format!("watch descriptor {}: ", file.as_raw_fd())), "{text}");
    } else {
        let high = rustix::io::fcntl_dupfd_cloexec(&file, 1500).unwrap();
        let text = reactor.watch(&high, Interest::READABLE, |_, _| {}).unwrap_err().to_string();
        assert!(text.contains("1024") && text.contains(&high.as_raw_fd().to_string()), "{text}");
    }
    assert_eq!(reactor.watch_count(), 0);
}
