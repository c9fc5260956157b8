//! Panics and other faults.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pelton::{CallbackKind, Chunk, Connection, EventLoop, Fault, Interest, Io, PanicPolicy};
use pelton_testing::{Log, On, on_every_engine, poll, run};

on_every_engine![
    panicking_timer_ends_and_the_loop_continues,
    a_panicking_periodic_timer_ends,
    a_panicking_tick_or_post_does_not_stop_the_others,
    panicking_watch_ends_and_others_continue,
    a_panicking_idle_callback_ends,
    panicking_shutdown_hook_does_not_prevent_others,
    a_panicking_fault_hook_is_survived,
    a_fault_names_the_callback,
    propagated_panics_leave_run_and_the_loop_can_continue,
    a_panic_in_a_callback_that_another_has_called_is_reported_once,
    a_callback_may_stop_the_loop_and_the_turn_is_finished,
];

/// Collects the kinds of the callbacks that panic.
fn log_faults(reactor: &mut EventLoop) -> Log {
    let log = Log::default();
    let entry = log.clone();
    reactor.on_fault(move |_, fault| entry.add(format!("{} {}", fault.kind, fault.message)));
    log
}

fn panicking_timer_ends_and_the_loop_continues(on: On) {
    let mut reactor = on.catching();
    let faults = log_faults(&mut reactor);
    reactor.after(Duration::ZERO, |_| panic!("one"));
    reactor.after(Duration::ZERO, |reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(faults.take(), ["timer one"]);
    assert_eq!(reactor.stats().panics, 1);
}

fn a_panicking_periodic_timer_ends(on: On) {
    let mut reactor = on.catching();
    let faults = log_faults(&mut reactor);
    let timer = reactor.every(Duration::from_millis(1), |_, _| panic!("{}", "formatted"));
    reactor.after(Duration::from_millis(10), |reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(faults.take(), ["timer formatted"]);
    assert!(!reactor.cancel(timer));
}

fn a_panicking_tick_or_post_does_not_stop_the_others(on: On) {
    let mut reactor = on.catching();
    let faults = log_faults(&mut reactor);
    reactor.next_tick(|_| panic!("tick"));
    reactor.handle().post(|_| std::panic::panic_any(7)).unwrap();
    reactor.next_tick(|reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(faults.take(), ["tick tick", "tick (not a string)"]);
}

fn panicking_watch_ends_and_others_continue(on: On) {
    let mut reactor = on.catching();
    let faults = log_faults(&mut reactor);
    let (bad, mut bad_peer) = UnixStream::pair().unwrap();
    let (good, mut good_peer) = UnixStream::pair().unwrap();
    bad_peer.write_all(b"x").unwrap();
    good_peer.write_all(b"x").unwrap();
    let watch = reactor.watch(&bad, Interest::READABLE, |_, _| panic!("bad")).unwrap();
    let log = Log::default();
    let entry = log.clone();
    reactor.watch(&good, Interest::READABLE, move |_, _| entry.add("good")).unwrap();
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(faults.take(), ["watch bad"]);
    assert_eq!(log.take(), ["good", "good"]);
    assert_eq!(reactor.watch_count(), 1);
    assert!(!reactor.end(watch));
    // The descriptor can be watched again.
    reactor.watch(&bad, Interest::READABLE, |_, _| {}).unwrap();
}

fn a_panicking_idle_callback_ends(on: On) {
    let mut reactor = on.catching();
    let faults = log_faults(&mut reactor);
    reactor.when_idle(|_| panic!("once"));
    reactor.whenever_idle(|_| panic!("repeating"));
    for _ in 0..4 {
        poll(&mut reactor);
    }
    assert_eq!(faults.take(), ["idle once", "idle repeating"]);
}

fn panicking_shutdown_hook_does_not_prevent_others(on: On) {
    let mut reactor = on.catching();
    let faults = log_faults(&mut reactor);
    let log = Log::default();
    for name in ["first", "second", "third"] {
        let entry = log.clone();
        reactor.on_shutdown(move |_| {
            entry.add(name);
            assert_ne!(name, "second", "on purpose");
        });
    }
    reactor.next_tick(|reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(log.take(), ["third", "second", "first"]);
    assert_eq!(faults.len(), 1);
    assert!(faults.take()[0].starts_with("hook "));
}

fn a_panicking_fault_hook_is_survived(on: On) {
    let mut reactor = on.catching();
    reactor.on_fault(|_, _| panic!("in the hook"));
    reactor.next_tick(|_| panic!("first"));
    reactor.next_tick(|_| panic!("second"));
    reactor.next_tick(|reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(reactor.stats().panics, 2);
}

fn a_fault_names_the_callback(on: On) {
    let mut reactor = on.catching();
    reactor.on_fault(|reactor, fault| {
        reactor.put_state::<Fault>(fault.clone());
    });
    let timer = reactor.after(Duration::ZERO, |_| panic!("broken"));
    let line = line!() - 1;
    reactor.label(timer, "heartbeat");
    poll(&mut reactor);
    let fault = reactor.take_state::<Fault>().unwrap();
    assert_eq!(fault.kind, CallbackKind::Timer);
    assert_eq!(fault.label.as_deref(), Some("heartbeat"));
    assert_eq!((fault.place.file().ends_with("faults.rs"), fault.place.line()), (true, line));
    assert!(fault.to_string().starts_with("timer \"heartbeat\" (") && fault.to_string().ends_with("panicked: broken"));
}

fn propagated_panics_leave_run_and_the_loop_can_continue(on: On) {
    let mut reactor = on.build(on.builder().panic_policy(PanicPolicy::Propagate));
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    reactor.watch(&ours, Interest::READABLE, |_, _| panic!("watch")).unwrap();
    for name in ["timer 1", "timer 2", "timer 3"] {
        let entry = log.clone();
        reactor.after(Duration::ZERO, move |_| {
            entry.add(name);
            assert_ne!(name, "timer 2", "on purpose");
        });
    }
    let entry = log.clone();
    reactor.next_tick(move |_| entry.add("tick"));
    assert!(catch_unwind(AssertUnwindSafe(|| reactor.run())).is_err());
    assert_eq!(log.take(), ["timer 1", "timer 2"]);
    assert!(catch_unwind(AssertUnwindSafe(|| reactor.run())).is_err(), "the panic of the watch");
    assert_eq!(log.take(), ["timer 3", "tick"], "nothing was lost");
    reactor.next_tick(|reactor| reactor.stop());
    run(&mut reactor);
}

fn a_callback_may_stop_the_loop_and_the_turn_is_finished(on: On) {
    let mut reactor = on.catching();
    let log = Log::default();
    reactor.after(Duration::ZERO, |reactor| reactor.stop());
    let entry = log.clone();
    reactor.next_tick(move |_| entry.add("tick"));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let entry = log.clone();
    reactor.watch(&ours, Interest::READABLE, move |_, _| entry.add("event")).unwrap();
    run(&mut reactor);
    assert_eq!(log.take(), ["tick", "event"]);
}

fn a_panic_in_a_callback_that_another_has_called_is_reported_once(on: On) {
    struct Silent;
    impl Connection for Silent {
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
    }
    for policy in [PanicPolicy::Close, PanicPolicy::Propagate] {
        let mut reactor = on.build(on.builder().panic_policy(policy));
        let faults = log_faults(&mut reactor);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let id = reactor.adopt(ours, Silent).unwrap();
        poll(&mut reactor);
        reactor.next_tick(move |reactor| {
            reactor.visit(id, |_: &mut Silent, _| panic!("inside"));
        });
        let outcome = catch_unwind(AssertUnwindSafe(|| poll(&mut reactor)));
        let told = outcome.err().map(|panic| *panic.downcast_ref::<&str>().expect("the payload is a string"));
        assert_eq!(told, (policy == PanicPolicy::Propagate).then_some("inside"));
        assert_eq!(faults.take(), ["connection inside"]);
        poll(&mut reactor);
        assert_eq!((reactor.stats().panics, reactor.connection_count()), (1, 0));
    }
}
