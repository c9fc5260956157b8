//! Idle work.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{Log, On, on_every_engine, poll, run, run_until};

on_every_engine![
    idle_work_runs_once_when_nothing_else_does,
    repeating_idle_work_runs_until_cancelled_and_keeps_the_loop_awake,
    idle_work_can_be_cancelled_before_it_runs_and_from_inside,
    idle_work_does_not_hold_up_timers,
];

fn idle_work_runs_once_when_nothing_else_does(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.when_idle(move |_| entry.add("idle"));
    let entry = log.clone();
    reactor.next_tick(move |_| entry.add("tick"));
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["tick", "idle"]);
}

fn repeating_idle_work_runs_until_cancelled_and_keeps_the_loop_awake(on: On) {
    let mut reactor = on.reactor();
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    let work = reactor.whenever_idle(move |_| count.set(count.get() + 1));
    let before = reactor.stats().sleeps;
    run_until(&mut reactor, |_| runs.get() == 5);
    assert_eq!(reactor.stats().sleeps, before, "it polls instead of sleeping");
    assert!(reactor.cancel_idle(work));
    reactor.turn(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(runs.get(), 5);
    assert_eq!(reactor.stats().sleeps, before + 1);
}

fn idle_work_can_be_cancelled_before_it_runs_and_from_inside(on: On) {
    let mut reactor = on.reactor();
    let early = reactor.when_idle(|_| panic!("was cancelled"));
    assert!(reactor.cancel_idle(early));
    assert!(!reactor.cancel_idle(early));

    let log = Log::default();
    let own = Rc::new(Cell::new(None));
    let (entry, id) = (log.clone(), own.clone());
    own.set(Some(reactor.whenever_idle(move |reactor| {
        entry.add("ran");
        assert!(reactor.cancel_idle(id.get().unwrap()));
    })));
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["ran"]);
    assert_eq!(reactor.stats().panics, 0);
}

fn idle_work_does_not_hold_up_timers(on: On) {
    let mut reactor = on.reactor();
    reactor.whenever_idle(|_| {});
    reactor.after(Duration::from_millis(2), |reactor| reactor.stop());
    run(&mut reactor);
}
