//! Tick loops.

use std::cell::Cell;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Interest, Rejected};
use pelton_testing::{On, on_every_engine, poll, run};

use super::{DropFlag, catching, count_faults, outcome, reactor};

on_every_engine![
    it_runs_once_per_turn_and_the_loop_does_not_sleep_meanwhile,
    events_and_timers_are_served_while_it_runs,
];

fn it_runs_once_per_turn_and_the_loop_does_not_sleep_meanwhile(on: On) {
    let mut reactor = on.reactor();
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    let (_, result) = reactor.tick_loop(move |_| {
        count.set(count.get() + 1);
        if count.get() < 10 { ControlFlow::Continue(()) } else { ControlFlow::Break("done") }
    });
    let result = outcome(result);
    for turn in 1..10 {
        // A turn that sleeps would sleep until this timer.
        reactor.turn(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(runs.get(), turn);
    }
    poll(&mut reactor);
    assert_eq!(runs.get(), 10);
    assert_eq!(result.take(), Some(Ok("done")));
    assert_eq!(reactor.stats().sleeps, 0);
    assert_eq!(reactor.stats().pending_ticks, 0);
}

fn events_and_timers_are_served_while_it_runs(on: On) {
    let mut reactor = on.reactor();
    let (mut writer, reader) = UnixStream::pair().unwrap();
    let (work, _) = reactor.tick_loop(|_| ControlFlow::<()>::Continue(()));
    reactor.after(Duration::from_millis(1), move |_| writer.write_all(b"x").unwrap());
    reactor
        .watch_once(&reader, Interest::READABLE, move |reactor, _| {
            work.cancel();
            reactor.stop();
        })
        .unwrap();
    run(&mut reactor);
}

#[test]
fn cancelling_drops_it_and_abandons_its_promise() {
    let mut reactor = reactor();
    let dropped = Rc::new(Cell::new(false));
    let flag = DropFlag(dropped.clone());
    let (work, result) = reactor.tick_loop(move |_| {
        let _ = &flag;
        ControlFlow::<()>::Continue(())
    });
    let result = outcome(result);
    poll(&mut reactor);
    work.clone().cancel();
    poll(&mut reactor);
    assert!(dropped.get());
    assert_eq!(result.take(), Some(Err(Rejected::Abandoned)));
    assert_eq!(reactor.stats().pending_ticks, 0);
}

#[test]
fn it_may_cancel_itself() {
    let mut reactor = reactor();
    let own = Rc::new(Cell::new(None::<pelton::TickLoop>));
    let (mine, runs) = (own.clone(), Rc::new(Cell::new(0)));
    let count = runs.clone();
    let (work, result) = reactor.tick_loop(move |_| {
        count.set(count.get() + 1);
        if let Some(work) = mine.take() {
            work.cancel();
        }
        ControlFlow::<()>::Continue(())
    });
    own.set(Some(work));
    let result = outcome(result);
    (0..5).for_each(|_| poll(&mut reactor));
    assert_eq!((runs.get(), result.take()), (1, Some(Err(Rejected::Abandoned))));
}

#[test]
fn cancelled_loop_without_an_observer_reports_nothing() {
    let mut reactor = reactor();
    let reported = Rc::new(Cell::new(false));
    let report = reported.clone();
    reactor.on_unhandled_rejection(move |_, _| report.set(true));
    let (work, _) = reactor.tick_loop(|_| ControlFlow::<()>::Continue(()));
    work.cancel();
    (0..3).for_each(|_| poll(&mut reactor));
    assert!(!reported.get());
}

#[test]
fn panicking_loop_is_reported_and_ends() {
    let mut reactor = catching();
    let faults = count_faults(&mut reactor);
    let (_, result) = reactor.tick_loop(|_| -> ControlFlow<()> { panic!("on purpose") });
    let result = outcome(result);
    (0..3).for_each(|_| poll(&mut reactor));
    assert_eq!((faults.get(), result.take()), (1, Some(Err(Rejected::Panicked("on purpose".into())))));
}

#[test]
fn iterations_allocate_nothing() {
    let mut reactor = reactor();
    let runs = Rc::new(Cell::new(0));
    let count = runs.clone();
    let (_, _result) = reactor.tick_loop(move |_| {
        count.set(count.get() + 1);
        ControlFlow::<()>::Continue(())
    });
    (0..100).for_each(|_| poll(&mut reactor));
    let measured = allocation_counter::measure(|| (0..1000).for_each(|_| poll(&mut reactor)));
    assert_eq!((measured.count_total, runs.get()), (0, 1100));
}
