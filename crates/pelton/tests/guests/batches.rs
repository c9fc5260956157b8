//! What a guest may do in its batch.

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Error, Interest, Reactor};
use pelton_testing::{Log, On, on_every_engine, poll, run, run_until};

use crate::Runtime;

on_every_engine![
    a_batch_adds_and_removes_sources,
    a_batch_stops_the_loop,
    a_batch_posts_and_defers,
    code_called_by_a_batch_reaches_the_reactor,
    a_guest_of_one_loop_reaches_it_inside_another_loop,
    a_batch_may_turn_the_loop,
    only_a_batch_may_turn_the_loop,
    a_reactor_has_one_guest,
    a_guest_may_leave_in_its_batch,
    the_loop_can_be_turned_again_and_again,
];

fn a_batch_adds_and_removes_sources(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Rc::new(ours);
    let (guest, entry, reader) = (runtime.clone(), log.clone(), ours.clone());
    runtime.soon(move |reactor| {
        let callback = move |_: &mut Reactor, ready: pelton::Ready| {
            let mut byte = [0];
            (&*reader).read_exact(&mut byte).unwrap();
            entry.add("watch");
            let entry = entry.clone();
            guest.soon(move |reactor| {
                assert!(reactor.end(ready.watch));
                entry.add("batch");
            });
        };
        reactor.watch(&*ours, Interest::READABLE, callback).unwrap();
    });
    poll(&mut reactor);
    assert_eq!(reactor.watch_count(), 1);
    theirs.write_all(b"xy").unwrap();
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(log.take(), ["watch", "batch"]);
    assert_eq!(reactor.source_count(), 0);
}

fn a_batch_stops_the_loop(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let guest = runtime.clone();
    runtime.soon(move |reactor| {
        reactor.stop();
        guest.busy();
    });
    run(&mut reactor);
    assert_eq!(runtime.batches(), 1, "no other batch follows");
    assert!(matches!(reactor.host(runtime.guest()), Err(Error::Stopped)));
}

fn a_batch_posts_and_defers(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    runtime.busy();
    runtime.soon(|reactor| {
        reactor.handle().post(|reactor| *reactor.state::<u32>() += 1).unwrap();
        reactor.defer(pelton::Lane::Cpu, || 10, |reactor, ten| *reactor.state::<u32>() += ten.unwrap()).unwrap();
        reactor.spawn(async { Reactor::with_current(|reactor| *reactor.state::<u32>() += 100) });
    });
    run_until(&mut reactor, |reactor| *reactor.state::<u32>() == 111);
}

fn code_called_by_a_batch_reaches_the_reactor(on: On) {
    fn deep_down() {
        Reactor::with_current(|reactor| reactor.next_tick(|reactor| *reactor.state::<u32>() += 1)).unwrap();
    }
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let handle = reactor.handle();
    runtime.soon(move |reactor| {
        assert!(Reactor::with_current(|_| ()).is_none(), "a guest lends the reactor itself");
        reactor.enter(|| {
            deep_down();
            handle.with_reactor(|reactor| *reactor.state::<u32>() += 10).unwrap();
            let other = std::thread::spawn(move || handle.with_reactor(|_| ()).is_none());
            assert!(other.join().unwrap(), "nobody reaches it from another thread");
        });
    });
    run_until(&mut reactor, |reactor| *reactor.state::<u32>() == 11);
}

fn a_guest_of_one_loop_reaches_it_inside_another_loop(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let handle = reactor.handle();
    runtime.soon(move |reactor| {
        reactor.enter(|| {
            let mut inner = on.build(on.builder().nested(true));
            let guest = Runtime::on(&mut inner);
            let own = inner.handle();
            guest.soon(move |inner| {
                inner.enter(|| {
                    handle.with_reactor(|outer| *outer.state::<&str>() = "outer").unwrap();
                    own.with_reactor(|inner| *inner.state::<&str>() = "inner").unwrap();
                    Reactor::with_current(|inner| assert_eq!(*inner.state::<&str>(), "inner")).unwrap();
                    // While the inner one is in use, neither can be reached.
                    own.with_reactor(|_| assert!(handle.with_reactor(|_| ()).is_none())).unwrap();
                });
                inner.stop();
            });
            run(&mut inner);
        });
        assert_eq!(*reactor.state::<&str>(), "outer");
        reactor.stop();
    });
    run(&mut reactor);
}

fn a_batch_may_turn_the_loop(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (guest, entry) = (runtime.clone(), log.clone());
    runtime.soon(move |reactor| {
        entry.add("outer begins");
        let log = entry.clone();
        reactor.next_tick(move |_| log.add("tick"));
        reactor.turn_inside(Some(Duration::ZERO)).unwrap();
        // The guest stands in for itself.
        reactor.host(guest.guest()).unwrap();
        let (entry, log) = (entry.clone(), entry);
        guest.soon(move |reactor| {
            entry.add("inner");
            assert!(reactor.turn_inside(Some(Duration::ZERO)).is_ok(), "as deep as it likes");
        });
        reactor.turn_inside(Some(Duration::ZERO)).unwrap();
        log.add("outer ends");
    });
    runtime.soon_log(&log, "last");
    poll(&mut reactor);
    assert_eq!(log.take(), ["outer begins", "tick", "last", "inner", "outer ends"]);
    runtime.soon_log(&log, "afterwards");
    poll(&mut reactor);
    assert_eq!(log.take(), ["afterwards"], "there still is a guest, and only one");
}

fn only_a_batch_may_turn_the_loop(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let refused = |reactor: &mut Reactor| assert!(matches!(reactor.turn_inside(None), Err(Error::Nested)));
    refused(&mut reactor);
    reactor.next_tick(refused);
    let guest = runtime.clone();
    runtime.soon(move |reactor| {
        // A callback inside the turn inside the batch.
        reactor.next_tick(refused);
        reactor.turn_inside(Some(Duration::ZERO)).unwrap();
        guest.soon(|reactor| reactor.stop());
    });
    run(&mut reactor);
    assert_eq!(reactor.stats().panics, 0);
}

fn a_reactor_has_one_guest(on: On) {
    let mut reactor = on.reactor();
    assert!(!reactor.has_guest());
    let runtime = Runtime::on(&mut reactor);
    assert!(reactor.has_guest());
    let error = reactor.host(runtime.guest()).unwrap_err();
    assert!(error.to_string().contains("tests/guests/main.rs"), "{error}");
    assert!(reactor.evict().is_some());
    assert!(reactor.evict().is_none() && !reactor.has_guest());
    runtime.soon(|_| panic!("it has left"));
    poll(&mut reactor);
    reactor.host(runtime.guest()).unwrap();
    runtime.0.borrow_mut().ready.clear();
}

fn a_guest_may_leave_in_its_batch(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let guest = runtime.clone();
    runtime.soon(move |reactor| {
        assert!(reactor.evict().is_none(), "it is running");
        guest.busy();
    });
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(runtime.batches(), 1);
    assert!(!reactor.has_guest());
}

fn the_loop_can_be_turned_again_and_again(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    for _ in 0..3 {
        // As a runtime does whose own loop was told to stop.
        let stopped = Rc::new(Cell::new(false));
        let (flag, guest) = (stopped.clone(), runtime.clone());
        runtime.at(reactor.clock() + Duration::from_millis(1), move |_| {
            flag.set(true);
            guest.0.borrow_mut().ends_turn = true;
        });
        while !stopped.get() {
            reactor.turn(None).unwrap();
        }
    }
    assert_eq!((runtime.parks(), runtime.batches()), (3, 3));
    assert!(!reactor.stopped());
}
