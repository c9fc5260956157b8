//! Look-ups.

use std::cell::{Cell, RefCell};
use std::io::{self};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pelton::{Address, Chunk, Connection, Error, Io, LaneSettings, LookupFailure, Reactor, Reason};
use pelton_testing::{DEADLINE, Log, On, on_every_engine, poll, run, run_until};

use super::{Logging, listening, refusing, slow, table};

on_every_engine![
    localhost_is_resolved_and_addresses_need_no_look_up,
    loop_keeps_running_during_a_look_up,
    reason_includes_the_unknown_name,
    panicking_resolver_fails_one_connection,
    closing_during_a_look_up_ends_everything,
    too_many_look_ups_are_refused,
    look_up_alone_can_be_cancelled,
    stopping_does_not_wait_for_a_look_up,
];

fn localhost_is_resolved_and_addresses_need_no_look_up(on: On) {
    let (_listener, address) = listening();
    let log = Log::default();
    let mut reactor = on.reactor();
    reactor.connect_to(format!("localhost:{}", address.port()).as_str(), Logging(log.clone())).unwrap();
    assert_eq!(log.len(), 0);
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);

    let builder = on.builder().resolver(|host: &str, _: u16| panic!("{host} was looked up"));
    let mut reactor = on.build(builder);
    reactor.connect_to(&address.to_string(), Logging(log.clone())).unwrap();
    reactor.connect_to(address, Logging(log.clone())).unwrap();
    reactor.connect_to(Address::from(address), Logging(log.clone())).unwrap();
    reactor.connect_to("unix:/nonexistent/some.sock", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take().iter().filter(|entry| **entry == format!("opened: {address}")).count(), 3);
    let error = reactor.connect_to("no port", Logging(log.clone())).unwrap_err();
    assert!(matches!(error, Error::BadEndpoint(_)) && error.to_string().starts_with("\"no port\" is "), "{error}");
}

fn loop_keeps_running_during_a_look_up(on: On) {
    let (_listener, address) = listening();
    let (resolver, release) = slow(address);
    let mut reactor = on.build(on.builder().resolver(resolver));
    let log = Log::default();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    assert_eq!(reactor.connection_count(), 1);
    let beats = Rc::new(Cell::new(0));
    let (count, asked) = (beats.clone(), release.asked.clone());
    reactor.every(Duration::from_millis(1), move |_, _| {
        // Once the look-up has started.
        count.set(count.get() + asked.load(Ordering::SeqCst));
    });
    run_until(&mut reactor, |_| beats.get() == 5);
    assert_eq!((log.len(), release.asked()), (0, 1));
    release.sender.send(()).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);
}

fn reason_includes_the_unknown_name(on: On) {
    let builder = on.builder().resolver(|host: &str, _: u16| match host {
        "empty" => Ok(Vec::new()),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such host")),
    });
    let mut reactor = on.build(builder);
    let log = Log::default();
    reactor.connect_to("nowhere.example:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    reactor.connect_to("empty:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(
        log.take(),
        ["closed: look up nowhere.example: no such host", "closed: look up empty: it has no address"]
    );
    assert_eq!((reactor.connection_count(), reactor.timer_count()), (0, 0));
}

fn panicking_resolver_fails_one_connection(on: On) {
    let (_listener, address) = listening();
    let builder = on.builder().resolver(move |host: &str, _: u16| {
        assert_ne!(host, "bad", "on purpose");
        Ok(vec![address])
    });
    let mut reactor = on.build(builder.lookups(LaneSettings { threads: 1, ..LaneSettings::LOOKUPS }));
    let log = Log::default();
    reactor.connect_to("bad:80", Logging(log.clone())).unwrap();
    reactor.connect_to("good:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    let told = log.take();
    assert!(told[0].starts_with("closed: look up bad: the resolver panicked: ") && told[0].contains("on purpose"));
    assert_eq!(told[1], format!("opened: {address}"));
    assert_eq!(reactor.stats().panics, 0, "the loop did not panic");
}

fn closing_during_a_look_up_ends_everything(on: On) {
    let (listener, address) = listening();
    let (resolver, release) = slow(address);
    let mut reactor = on.build(on.builder().resolver(resolver));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| release.asked() == 1);
    reactor.connection(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    release.sender.send(()).unwrap();
    run_until(&mut reactor, |_| release.answered.load(Ordering::SeqCst) == 1);
    // The answer is posted right after that; another look-up shows that it has been processed.
    let found = Rc::new(Cell::new(false));
    let flag = found.clone();
    release.sender.send(()).unwrap();
    reactor.resolve("somewhere", 1, move |_, _| flag.set(true)).unwrap();
    run_until(&mut reactor, |_| found.get());
    reactor.cancel(waiting);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing was connected");
    assert_eq!((log.len(), reactor.connection_count(), reactor.timer_count()), (0, 0, 0));
}

fn too_many_look_ups_are_refused(on: On) {
    let (_listener, address) = listening();
    let (resolver, release) = slow(address);
    let lane = LaneSettings { threads: 1, waiting: 1, ..LaneSettings::LOOKUPS };
    let mut reactor = on.build(on.builder().resolver(resolver).lookups(lane));
    let log = Log::default();
    reactor.connect_to("one:1", Logging(log.clone())).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| release.asked() == 1);
    let two = reactor.connect_to("two:1", Logging(log.clone())).unwrap();
    let error = reactor.connect_to("three:1", Logging(log.clone())).unwrap_err();
    assert!(matches!(error, Error::LaneFull { waiting: 1, .. }), "{error}");
    assert!(error.to_string().starts_with("look up three: "), "{error}");
    assert_eq!(reactor.connection_count(), 2);
    // A cancelled one makes room.
    reactor.connection(two).unwrap().close();
    poll(&mut reactor);
    reactor.connect_to("four:1", Logging(log.clone())).unwrap();
    for _ in 0..2 {
        release.sender.send(()).unwrap();
    }
    run_until(&mut reactor, |_| log.len() == 3);
    reactor.cancel(waiting);
    let opened = format!("opened: {address}");
    assert_eq!(log.take(), ["closed: closed by this side", &opened, &opened]);
    assert_eq!(release.asked(), 2, "the closed one was never looked up");
}

fn look_up_alone_can_be_cancelled(on: On) {
    let (resolver, release) = slow(refusing());
    let mut reactor = on.build(on.builder().resolver(resolver));
    let found = Rc::new(RefCell::new(Vec::new()));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let list = found.clone();
        ids.push(reactor.resolve("somewhere", 1, move |_, addresses| list.borrow_mut().push(addresses)).unwrap());
    }
    assert!(reactor.cancel_lookup(ids[0]) && !reactor.cancel_lookup(ids[0]));
    for _ in 0..2 {
        release.sender.send(()).unwrap();
    }
    assert!(found.borrow().is_empty(), "called before lookup returned");
    run_until(&mut reactor, |_| !found.borrow().is_empty());
    assert_eq!(found.borrow()[0].as_ref().unwrap().len(), 1);
    assert!(!reactor.cancel_lookup(ids[1]));

    let mut reactor = on.build(on.builder().resolver(table(&[])));
    let list = found.clone();
    reactor.resolve("nowhere", 1, move |_, addresses| list.borrow_mut().push(addresses)).unwrap();
    run_until(&mut reactor, |_| found.borrow().len() == 2);
    let error = found.borrow_mut().pop().unwrap().unwrap_err();
    assert!(matches!(error.failure, LookupFailure::NoAddress) && error.host == "nowhere", "{error}");
}

fn stopping_does_not_wait_for_a_look_up(on: On) {
    let (resolver, release) = slow(refusing());
    let mut reactor = on.build(on.builder().resolver(resolver));
    let log = Log::default();
    /// Connects again when it is closed.
    struct Stubborn(Log);
    impl Connection for Stubborn {
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
        fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
            let again = reactor.connect_to("somewhere:1", Stubborn(self.0.clone()));
            self.0.add(format!("{reason}, and then: {}", again.unwrap_err()));
        }
    }
    reactor.connect_to("somewhere:1", Stubborn(log.clone())).unwrap();
    reactor.every(Duration::from_millis(1), {
        let asked = release.asked.clone();
        move |reactor, _| {
            if asked.load(Ordering::SeqCst) == 1 {
                reactor.stop();
            }
        }
    });
    run(&mut reactor);
    assert_eq!(log.take(), ["closed by this side, and then: this reactor was stopped; build a new one"]);
    drop(reactor);
    assert_eq!(release.answered.load(Ordering::SeqCst), 0, "the look-up is still pending");

    let (resolver, release) = slow(refusing());
    let mut reactor = on.build(on.builder().resolver(resolver));
    reactor.connect_to("somewhere:1", Logging::default()).unwrap();
    let start = Instant::now();
    while release.asked() == 0 {
        assert!(start.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
    // The same for a reactor that never ran.
    drop(reactor);
    assert_eq!(release.answered.load(Ordering::SeqCst), 0);
    release.sender.send(()).unwrap();
}
