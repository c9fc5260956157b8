//! The order of a turn.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pelton::{Batch, EngineKind, Guest, Interest, Reactor};
use pelton_testing::{Log, On, on_every_engine, poll};

on_every_engine![
    timers_then_ticks_then_events_then_the_guest_then_idle_work,
    now_is_read_between_turns_at_their_start_and_after_the_wait,
    several_events_of_one_wait_are_all_dispatched,
    a_turn_that_is_ended_leaves_the_rest_to_the_next_one,
];

/// Logs one batch, if `due` says so.
struct LoggingGuest {
    log: Log,
    due: bool,
}

impl Guest for LoggingGuest {
    fn has_work(&mut self) -> bool {
        self.due
    }

    fn run(&mut self, _: &mut Reactor) -> Batch {
        self.due = false;
        self.log.add("guest");
        Batch::MayContinue
    }
}

fn timers_then_ticks_then_events_then_the_guest_then_idle_work(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();

    reactor.host(LoggingGuest { log: log.clone(), due: true }).unwrap();
    let entry = log.clone();
    reactor.when_idle(move |_| entry.add("idle"));
    let entry = log.clone();
    let watch = reactor.watch(&ours, Interest::READABLE, move |_, _| entry.add("event")).unwrap();
    let entry = log.clone();
    reactor.next_tick(move |_| entry.add("tick"));
    let entry = log.clone();
    reactor.after(Duration::ZERO, move |_| entry.add("timer"));

    poll(&mut reactor);
    assert_eq!(log.take(), ["timer", "tick", "event", "guest"], "idle work waits for a turn in which nothing ran");
    reactor.end(watch);
    reactor.evict();
    reactor.host(LoggingGuest { log: log.clone(), due: true }).unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["guest"], "a batch is something that ran");
    poll(&mut reactor);
    assert_eq!(log.take(), ["idle"]);
}

fn now_is_read_between_turns_at_their_start_and_after_the_wait(on: On) {
    let mut reactor = on.reactor();
    let built = reactor.now();
    std::thread::sleep(Duration::from_millis(3));
    assert!(reactor.now() - built >= Duration::from_millis(3), "a deadline computed from it may have passed");
    reactor.next_tick(move |reactor| assert!(reactor.now() - built >= Duration::from_millis(3)));
    let before = reactor.clock();
    poll(&mut reactor);
    reactor.turn(Some(Duration::from_millis(5))).unwrap();
    assert!(reactor.now() - before >= Duration::from_millis(5));
    assert_eq!(reactor.stats().panics, 0);
}

fn several_events_of_one_wait_are_all_dispatched(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let count = if on.0 == EngineKind::Select { 100 } else { 300 };
    let pairs: Vec<_> = (0..count).map(|_| UnixStream::pair().unwrap()).collect();
    for (number, (ours, theirs)) in pairs.iter().enumerate() {
        let entry = log.clone();
        reactor
            .watch(ours, Interest::READABLE, move |reactor, ready| {
                entry.add(number.to_string());
                reactor.end(ready.watch);
            })
            .unwrap();
        let mut theirs = theirs;
        theirs.write_all(b"x").unwrap();
    }
    poll(&mut reactor);
    let mut seen: Vec<usize> = log.take().iter().map(|entry| entry.parse().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..count).collect::<Vec<_>>());
    assert_eq!(reactor.watch_count(), 0);
}

/// Ends the turn in the first of each kind of callback.
fn a_turn_that_is_ended_leaves_the_rest_to_the_next_one(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    reactor.host(LoggingGuest { log: log.clone(), due: true }).unwrap();
    let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
    for (ours, theirs) in &pairs {
        (&*theirs).write_all(b"x").unwrap();
        let entry = log.clone();
        reactor
            .watch_once(ours, Interest::READABLE, move |reactor, _| {
                entry.add("event");
                reactor.end_turn();
            })
            .unwrap();
    }
    for kind in ["first", "second"] {
        let entry = log.clone();
        reactor.after(Duration::ZERO, move |reactor| {
            entry.add(format!("{kind} timer"));
            reactor.end_turn();
        });
        let entry = log.clone();
        reactor.next_tick(move |reactor| {
            entry.add(format!("{kind} tick"));
            reactor.end_turn();
        });
    }
    let mut seen = Vec::new();
    for _ in 0..8 {
        reactor.turn(Some(Duration::from_secs(10))).unwrap();
        seen.push(log.take().join(", "));
    }
    assert_eq!(
        seen,
        ["first timer", "second timer", "first tick", "second tick", "event", "event", "event", "guest"],
        "one callback per turn, in order, none lost, and no turn waits"
    );
}
