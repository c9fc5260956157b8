//! Idle work.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pelton_testing::{Log, On, on_every_engine, poll, run, run_until};

on_every_engine![
    idle_work_runs_once_when_nothing_else_does,
    repeating_idle_work_runs_until_cancelled_and_keeps_the_loop_awake,
    idle_work_can_be_cancelled_before_it_runs_and_from_inside,
    idle_work_does_not_delay_timers,
    idle_work_by_interval_is_rate_limited_and_lets_the_loop_sleep,
    idle_work_by_interval_waits_for_an_idle_turn,
    idle_work_by_interval_can_be_cancelled_while_it_rests_and_from_inside,
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
    assert_eq!(reactor.stats().sleeps, before, "the loop polls instead of sleeping");
    assert!(reactor.end(work));
    reactor.turn(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(runs.get(), 5);
    assert_eq!(reactor.stats().sleeps, before + 1);
}

fn idle_work_can_be_cancelled_before_it_runs_and_from_inside(on: On) {
    let mut reactor = on.reactor();
    let early = reactor.when_idle(|_| panic!("called after it was cancelled"));
    assert!(reactor.end(early));
    assert!(!reactor.end(early));

    let log = Log::default();
    let own = Rc::new(Cell::new(None));
    let (entry, id) = (log.clone(), own.clone());
    own.set(Some(reactor.whenever_idle(move |reactor| {
        entry.add("ran");
        assert!(reactor.end(id.get().unwrap()));
    })));
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["ran"]);
    assert_eq!(reactor.stats().panics, 0);
}

fn idle_work_does_not_delay_timers(on: On) {
    let mut reactor = on.reactor();
    reactor.whenever_idle(|_| {});
    reactor.after(Duration::from_millis(2), |reactor| reactor.stop());
    run(&mut reactor);
}

fn idle_work_by_interval_is_rate_limited_and_lets_the_loop_sleep(on: On) {
    const INTERVAL: Duration = Duration::from_millis(5);
    let mut reactor = on.reactor();
    let runs = Rc::new(RefCell::new(Vec::new()));
    let times = runs.clone();
    reactor.idle_every(INTERVAL, move |reactor| times.borrow_mut().push(reactor.now()));
    let turns = reactor.stats().turns;
    run_until(&mut reactor, |_| runs.borrow().len() == 5);
    let runs = runs.borrow();
    assert!(runs.windows(2).all(|pair| pair[1] - pair[0] >= INTERVAL), "{runs:?}");
    // One turn for each run, and one or two to notice that its interval is over.
    let turns = reactor.stats().turns - turns;
    assert!(turns <= 20, "{turns} turns");
    assert!(reactor.stats().sleeps >= 4, "the loop sleeps in between");
}

fn idle_work_by_interval_waits_for_an_idle_turn(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.idle_every(Duration::from_nanos(1), move |_| entry.add("idle"));
    for _ in 0..3 {
        let entry = log.clone();
        reactor.next_tick(move |_| entry.add("tick"));
        poll(&mut reactor);
    }
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(log.take(), ["tick", "tick", "tick", "idle", "idle"]);
}

fn idle_work_by_interval_can_be_cancelled_while_it_rests_and_from_inside(on: On) {
    let mut reactor = on.catching();
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    let work = reactor.idle_every(Duration::from_secs(3600), move |_| count.set(count.get() + 1));
    run_until(&mut reactor, |_| runs.get() == 1);
    assert_eq!((reactor.timer_count(), reactor.stats().pending_idle), (1, 1));
    assert!(reactor.end(work) && !reactor.end(work));
    assert_eq!((reactor.timer_count(), reactor.stats().pending_idle), (0, 0));

    let own = Rc::new(Cell::new(None));
    let (id, count) = (own.clone(), runs.clone());
    own.set(Some(reactor.idle_every(Duration::from_nanos(1), move |reactor| {
        count.set(count.get() + 1);
        assert!(reactor.end(id.get().unwrap()));
    })));
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!((runs.get(), reactor.timer_count()), (2, 0));
    // A panic ends it.
    reactor.on_fault(|_, _| {});
    let work = reactor.idle_every(Duration::from_nanos(1), |_| panic!("on purpose"));
    poll(&mut reactor);
    assert!(!reactor.end(work));
}
