//! Statistics and the watchdog.

use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use pelton::CallbackKind;
use pelton_testing::{On, on_every_engine, poll};

use crate::Runtime;

on_every_engine![
    batches_are_counted_and_timed,
    batches_are_counted_without_measuring,
    a_slow_batch_is_reported,
    a_slow_callback_of_the_guest_is_named,
    the_guest_learns_which_callbacks_were_slow,
    callbacks_of_the_guest_are_counted,
    the_time_of_a_batch_is_current,
];

const SLOW: Duration = Duration::from_millis(20);

fn batches_are_counted_and_timed(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    for _ in 0..3 {
        runtime.soon(|_| sleep(Duration::from_millis(2)));
        poll(&mut reactor);
    }
    let stats = reactor.stats();
    assert_eq!(stats.calls(CallbackKind::Guest), 3);
    let times = stats.callback_time(CallbackKind::Guest).unwrap();
    assert!(times.count() == 3 && times.quantile(0.1) >= Duration::from_millis(2));
    assert!(stats.to_prometheus().contains("pelton_callbacks_total{kind=\"guest\"} 3\n"));
}

fn batches_are_counted_without_measuring(on: On) {
    let mut reactor = on.build(on.builder().stats(false));
    let runtime = Runtime::on(&mut reactor);
    let again = runtime.clone();
    runtime.soon(move |_| again.soon(|_| {}));
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(reactor.stats().calls(CallbackKind::Guest), 2);
}

fn a_slow_batch_is_reported(on: On) {
    let mut reactor = on.reactor();
    let (report, reports) = mpsc::channel();
    reactor.on_slow_callback(SLOW, move |slow| report.send(slow.clone()).unwrap()).unwrap();
    let runtime = Runtime::on(&mut reactor);
    runtime.soon(|_| sleep(SLOW));
    poll(&mut reactor);
    let finished = reports.try_iter().find(|slow| slow.finished).unwrap();
    assert_eq!(finished.kind, CallbackKind::Guest);
    assert!(finished.to_string().contains("guest (crates/pelton/tests/guests/main.rs"), "{finished}");
    assert_eq!(reactor.stats().slow_callbacks, 1);
}

fn a_slow_callback_of_the_guest_is_named(on: On) {
    let mut reactor = on.reactor();
    reactor.name_callback(|| unreachable!("there is no watchdog"));
    let (report, reports) = mpsc::channel();
    reactor.on_slow_callback(SLOW, move |slow| report.send(slow.clone()).unwrap()).unwrap();
    let runtime = Runtime::on(&mut reactor);
    runtime.soon(|reactor| reactor.name_callback(|| "quick".into()));
    runtime.soon(|reactor| {
        reactor.name_callback(|| "slow".into());
        sleep(SLOW);
    });
    runtime.soon(|reactor| reactor.name_callback(|| "quick".into()));
    runtime.soon(|reactor| {
        reactor.name_callback(|| "last".into());
        sleep(SLOW);
    });
    poll(&mut reactor);
    let finished: Vec<_> = reports.try_iter().filter(|slow| slow.finished).collect();
    let names: Vec<_> = finished.iter().map(|slow| slow.label.as_deref().unwrap()).collect();
    assert_eq!(names, ["slow", "last"]);
    assert!(finished.iter().all(|slow| slow.elapsed < 10 * SLOW), "each has its own time: {finished:?}");
    assert_eq!(reactor.stats().slow_callbacks, 2);
}

fn the_guest_learns_which_callbacks_were_slow(on: On) {
    let mut reactor = on.reactor();
    assert!(!reactor.reports_slow_callbacks());
    assert_eq!(reactor.end_callback(), None, "there is no watchdog");
    let (report, reports) = mpsc::channel();
    reactor.on_slow_callback(SLOW, move |slow| report.send(slow.clone()).unwrap()).unwrap();
    assert!(reactor.reports_slow_callbacks());
    let runtime = Runtime::on(&mut reactor);
    runtime.soon(|reactor| {
        reactor.name_callback(|| "quick".into());
        assert_eq!(reactor.end_callback(), None);
        reactor.name_callback(|| "slow".into());
        sleep(SLOW);
        assert!(reactor.end_callback().is_some_and(|took| took >= SLOW && took < 10 * SLOW));
        // The rest of the batch is not the callback's.
        sleep(SLOW);
    });
    poll(&mut reactor);
    let finished: Vec<_> = reports.try_iter().filter(|slow| slow.finished).collect();
    let labels: Vec<_> = finished.iter().map(|slow| slow.label.as_deref()).collect();
    assert_eq!(labels, [Some("slow"), None]);
    assert!(finished[0].name().starts_with("guest \"slow\" ("), "{}", finished[0].name());
    reactor.ignore_slow_callbacks();
    assert!(!reactor.reports_slow_callbacks());
    runtime.soon(|reactor| reactor.name_callback(|| unreachable!("the watchdog has gone")));
    runtime.soon(|_| sleep(SLOW));
    poll(&mut reactor);
    assert_eq!((reports.try_iter().count(), reactor.stats().slow_callbacks), (0, 2));
}

fn callbacks_of_the_guest_are_counted(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    runtime.soon(|reactor| reactor.count_guest_callbacks(3));
    runtime.soon(|reactor| reactor.count_guest_callbacks(4));
    reactor.next_tick(|_| {});
    poll(&mut reactor);
    let stats = reactor.stats();
    assert_eq!((stats.guest_callbacks, stats.calls(CallbackKind::Guest)), (7, 1));
    assert!(stats.to_prometheus().contains("pelton_guest_callbacks_total 7\n"));
    let counts = reactor.counts();
    assert_eq!(
        (counts.callbacks, counts.turns, counts.polls),
        (1, stats.turns, stats.polls),
        "batches are not callbacks"
    );
}

fn the_time_of_a_batch_is_current(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let (first, again) = (mpsc::channel(), runtime.clone());
    runtime.soon(move |reactor| {
        assert_eq!(reactor.batch_clock(), reactor.now(), "read after the poll");
        sleep(Duration::from_millis(2));
        let begun = reactor.clock();
        again.soon(move |reactor| first.0.send(reactor.batch_clock() >= begun).unwrap());
    });
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(first.1.try_recv(), Ok(true), "the second batch begins after the first");
}
