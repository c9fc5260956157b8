//! Ticks.

use std::cell::Cell;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use pelton::{Interest, Reactor};
use pelton_testing::{Log, On, on_every_engine, poll, run};

on_every_engine![
    ticks_run_first_in_first_out,
    ticks_queued_by_a_tick_run_in_the_next_turn,
    a_tick_that_requeues_itself_does_not_starve_events,
    a_budget_bounds_the_phase_and_nothing_is_lost,
    posts_and_ticks_share_one_order,
    schedule_runs_at_once_on_the_loop,
];

fn ticks_run_first_in_first_out(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    for name in ["a", "b", "c"] {
        let entry = log.clone();
        reactor.next_tick(move |_| entry.add(name));
    }
    poll(&mut reactor);
    assert_eq!(log.take(), ["a", "b", "c"]);
}

fn ticks_queued_by_a_tick_run_in_the_next_turn(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.next_tick(move |reactor| {
        let inner = entry.clone();
        reactor.next_tick(move |_| inner.add("inner"));
        entry.add("outer");
    });
    poll(&mut reactor);
    assert_eq!(log.take(), ["outer"]);
    poll(&mut reactor);
    assert_eq!(log.take(), ["inner"]);
}

fn a_tick_that_requeues_itself_does_not_starve_events(on: On) {
    fn again(reactor: &mut Reactor) {
        reactor.next_tick(again);
    }
    let mut reactor = on.reactor();
    reactor.next_tick(again);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    reactor.watch(&ours, Interest::READABLE, |reactor, _| reactor.stop()).unwrap();
    theirs.write_all(b"x").unwrap();
    run(&mut reactor);
}

fn a_budget_bounds_the_phase_and_nothing_is_lost(on: On) {
    let mut reactor = on.build(on.builder().ticks_per_turn(10));
    let ran = Rc::new(Cell::new(0));
    for _ in 0..25 {
        let ran = ran.clone();
        reactor.next_tick(move |_| ran.set(ran.get() + 1));
    }
    let mut after_each_turn = Vec::new();
    for _ in 0..3 {
        poll(&mut reactor);
        after_each_turn.push(ran.get());
    }
    assert_eq!(after_each_turn, [10, 20, 25]);
}

fn posts_and_ticks_share_one_order(on: On) {
    let mut reactor = on.reactor();
    #[derive(Default)]
    struct Order(Vec<&'static str>);
    let handle = reactor.handle();
    reactor.next_tick(|reactor| reactor.state::<Order>().0.push("tick 1"));
    handle.post(|reactor| reactor.state::<Order>().0.push("post 2")).unwrap();
    reactor.next_tick(|reactor| reactor.state::<Order>().0.push("tick 3"));
    handle.post(|reactor| reactor.state::<Order>().0.push("post 4")).unwrap();
    poll(&mut reactor);
    assert_eq!(reactor.state::<Order>().0, ["tick 1", "post 2", "tick 3", "post 4"]);
}

fn schedule_runs_at_once_on_the_loop(on: On) {
    let mut reactor = on.reactor();
    #[derive(Default)]
    struct Ran(u32);
    let handle = reactor.handle();
    assert_eq!(reactor.schedule(|reactor| reactor.engine_name()), on.0.name());

    // The reactor is not lent, so this is posted.
    handle.schedule(|reactor| reactor.state::<Ran>().0 += 1).unwrap();
    assert_eq!(reactor.state::<Ran>().0, 0);
    poll(&mut reactor);
    assert_eq!(reactor.state::<Ran>().0, 1);

    let (same, other) = (handle.clone(), on.reactor().handle());
    reactor.enter(|| {
        same.schedule(|reactor| reactor.state::<Ran>().0 += 1).unwrap();
        assert!(other.schedule(|_| {}).is_err(), "the other reactor is gone");
        Reactor::with_current(|reactor| {
            assert_eq!(reactor.state::<Ran>().0, 2, "ran at once");
            assert!(Reactor::with_current(|_| ()).is_none(), "the reactor is in use");
            reactor.enter(|| assert!(Reactor::with_current(|_| ()).is_some(), "lent on"));
        });
    });
    assert!(Reactor::with_current(|_| ()).is_none());

    let elsewhere = handle.clone();
    std::thread::spawn(move || elsewhere.schedule(|reactor| reactor.stop()).is_ok()).join().unwrap();
    run(&mut reactor);
}
