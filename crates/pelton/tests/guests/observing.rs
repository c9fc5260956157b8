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
