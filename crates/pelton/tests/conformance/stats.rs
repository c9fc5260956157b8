//! Stats and the watchdog.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use pelton::{CallbackKind, Interest};
use pelton_testing::{On, on_every_engine, poll, run};

on_every_engine![
    everything_that_runs_is_counted_and_timed,
    measuring_can_be_turned_off,
    stats_are_exported_as_prometheus_text,
    slow_callback_is_reported_when_it_returns,
    stuck_callback_is_reported_while_it_is_stuck,
    a_fast_callback_is_not_reported,
];

fn everything_that_runs_is_counted_and_timed(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    reactor.watch(&ours, Interest::READABLE, |reactor, ready| assert!(reactor.end(ready.watch))).unwrap();
    reactor.next_tick(|_| sleep(Duration::from_millis(2)));
    reactor.handle().post(|_| {}).unwrap();
    reactor.after(Duration::ZERO, |_| {});
    reactor.after(Duration::from_secs(3600), |_| {});
    reactor.when_idle(|_| {});
    poll(&mut reactor);
    poll(&mut reactor);
    let stats = reactor.stats();
    let calls = CallbackKind::ALL.map(|kind| (kind.name(), stats.calls(kind)));
    let expected = [
        ("timer", 1),
        ("tick", 2),
        ("watch", 1),
        ("signal", 0),
        ("connection", 0),
        ("datagrams", 0),
        ("idle", 1),
        ("hook", 0),
        ("guest", 0),
    ];
    assert_eq!(calls, expected);
    assert_eq!((stats.turns, stats.posts, stats.timers, stats.watches), (2, 1, 1, 0));
    assert_eq!(stats.engine, on.0.name());
    let ticks = stats.callback_time(CallbackKind::Tick).unwrap();
    assert_eq!(ticks.count(), 2);
    assert!(ticks.max() >= Duration::from_millis(2) && ticks.quantile(0.5) < ticks.max());
    assert!(stats.turn_time.as_ref().unwrap().max() >= Duration::from_millis(2));
    assert_eq!(stats.lag.as_ref().unwrap().count(), 1);
}

fn measuring_can_be_turned_off(on: On) {
    let mut reactor = on.build(on.builder().stats(false));
    reactor.next_tick(|_| {});
    poll(&mut reactor);
    let stats = reactor.stats();
    assert_eq!((stats.turns, stats.calls(CallbackKind::Tick)), (1, 1));
    assert!(stats.turn_time.is_none() && stats.callback_time(CallbackKind::Tick).is_none());
}

fn stats_are_exported_as_prometheus_text(on: On) {
    let mut reactor = on.reactor();
    reactor.next_tick(|_| {});
    poll(&mut reactor);
    let text = reactor.stats().to_prometheus();
    for line in [
        "pelton_turns_total 1",
        "pelton_callbacks_total{kind=\"tick\"} 1",
        "# TYPE pelton_callback_seconds summary",
        "pelton_callback_seconds_count{kind=\"tick\"} 1",
        "pelton_turn_seconds_count 1",
        "pelton_timers 0",
    ] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("pelton_callback_seconds{kind=\"tick\",quantile=\"0.99\"} "));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit_once(' ').unwrap().1;
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

fn slow_callback_is_reported_when_it_returns(on: On) {
    let mut reactor = on.reactor();
    let (report, reports) = mpsc::channel();
    reactor.on_slow_callback(Duration::from_millis(10), move |slow| report.send(slow.clone()).unwrap()).unwrap();
    let timer = reactor.after(Duration::ZERO, |reactor| {
        sleep(Duration::from_millis(15));
        reactor.stop();
    });
    let line = line!() - 4;
    reactor.label(timer, "sluggish");
    run(&mut reactor);
    let slow = reports.iter().find(|slow| slow.finished).unwrap();
    assert_eq!((slow.kind, slow.label.as_deref(), slow.place.line()), (CallbackKind::Timer, Some("sluggish"), line));
    assert!(slow.elapsed >= Duration::from_millis(15));
    assert!(slow.to_string().starts_with("timer \"sluggish\" ("), "{slow}");
    assert_eq!(reactor.stats().slow_callbacks, 1);
}

fn stuck_callback_is_reported_while_it_is_stuck(on: On) {
    let mut reactor = on.reactor();
    let (report, reports) = mpsc::channel();
    reactor
        .on_slow_callback(Duration::from_millis(5), move |slow| {
            let _ = report.send(slow.clone());
        })
        .unwrap();
    reactor.next_tick(move |reactor| {
        // Blocks until it has been reported.
        let slow = reports.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(!slow.finished && slow.elapsed >= Duration::from_millis(5));
        assert_eq!(slow.kind, CallbackKind::Tick);
        assert!(slow.place.file().ends_with("stats.rs"));
        reactor.stop();
    });
    run(&mut reactor);
    assert_eq!(reactor.stats().panics, 0);
}

fn a_fast_callback_is_not_reported(on: On) {
    let mut reactor = on.reactor();
    reactor.on_slow_callback(Duration::from_secs(5), |slow| panic!("{slow}")).unwrap();
    // Time outside callbacks is not attributed to any.
    reactor.after(Duration::from_millis(20), |reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(reactor.stats().slow_callbacks, 0);
}
