//! Starting, stopping and draining.

use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pelton::{Error, EventLoop, Exit, Interest, PanicPolicy, SourceId};
use pelton_testing::{Echo, Log, On, on_every_engine, poll, run, run_until};
use signal_hook::consts::SIGURG;

on_every_engine![
    a_loop_inside_a_callback_of_another_is_refused_unless_asked_for,
    stopping_runs_the_hooks_last_in_first_out,
    a_stopped_reactor_does_not_run_again,
    run_until_does_not_sleep_once_its_condition_is_met,
    run_until_ends_if_its_condition_holds_only_before_the_wait,
    run_until_ends_when_the_loop_is_stopped,
    run_until_does_not_sleep_on_work_that_its_condition_queued,
    draining_waits_for_holds,
    draining_ends_at_its_deadline,
    draining_calls_its_hooks_first,
    a_hold_may_be_released_by_another_thread,
    everything_is_dropped_on_shutdown_and_on_drop,
    every_kind_of_source_is_ended_by_one_verb,
    state_is_kept_by_type,
    a_turn_with_a_timeout_waits_that_long,
];

fn every_kind_of_source_is_ended_by_one_verb(on: On) {
    let mut reactor = on.reactor();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let watched = theirs.try_clone().unwrap();
    let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
    let sources: [SourceId; 7] = [
        reactor.after(Duration::from_secs(3600), |_| unreachable!()).into(),
        reactor.whenever_idle(|_| unreachable!()).into(),
        reactor.watch(&watched, Interest::READABLE, |_, _| unreachable!()).unwrap().into(),
        reactor.on_signal(SIGURG, |_, _| unreachable!()).unwrap().into(),
        listener.into(),
        reactor.adopt(ours, Echo).unwrap().into(),
        reactor.bind_datagrams(&"127.0.0.1:0".parse().unwrap(), Echo).unwrap().into(),
    ];
    for source in sources {
        assert!(reactor.end(source) && !reactor.end(source), "{source:?}");
    }
    poll(&mut reactor);
    assert_eq!((reactor.connection_count(), reactor.datagram_socket_count(), reactor.watch_count()), (0, 0, 0));
    assert_eq!((reactor.timer_count(), reactor.listening_on(listener)), (0, None));
}

fn stopping_runs_the_hooks_last_in_first_out(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    for name in ["first", "second"] {
        let entry = log.clone();
        reactor.on_shutdown(move |reactor| {
            assert!(reactor.stopping());
            entry.add(name);
            if name == "second" {
                // A hook that a hook adds is the last one added.
                let entry = entry.clone();
                reactor.on_shutdown(move |_| entry.add("added"));
            }
        });
    }
    assert!(!reactor.stopping() && !reactor.stopped());
    reactor.next_tick(|reactor| reactor.stop());
    assert_eq!(run(&mut reactor), Exit::Stopped);
    assert_eq!(log.take(), ["second", "added", "first"]);
    assert!(reactor.stopping() && reactor.stopped());
}

fn a_stopped_reactor_does_not_run_again(on: On) {
    let mut reactor = on.reactor();
    reactor.next_tick(|reactor| reactor.stop());
    run(&mut reactor);
    assert!(matches!(reactor.run(), Err(Error::Stopped)));
    assert!(matches!(reactor.turn(None), Err(Error::Stopped)));
    assert!(matches!(reactor.run_until(|_| false), Err(Error::Stopped)));
    assert!(matches!(reactor.shutdown(), Err(Error::Stopped)));
    assert_eq!(reactor.run().unwrap_err().to_string(), "this reactor was stopped; build a new one");
}

fn run_until_does_not_sleep_once_its_condition_is_met(on: On) {
    let mut reactor = on.reactor();
    let met = Rc::new(Cell::new(false));
    let flag = met.clone();
    reactor.after(Duration::from_millis(1), move |_| flag.set(true));
    let start = Instant::now();
    // Nothing else would end the sleep that follows the timer phase.
    let late = reactor.after(Duration::from_secs(20), |reactor| reactor.stop());
    reactor.run_until(|_| met.get()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    reactor.cancel(late);
    let flag = met.clone();
    reactor.next_tick(move |_| flag.set(false));
    run_until(&mut reactor, |_| !met.get());
}

fn run_until_ends_if_its_condition_holds_only_before_the_wait(on: On) {
    let mut reactor = on.reactor();
    let ticked = Rc::new(Cell::new(false));
    let tick = ticked.clone();
    reactor.next_tick(move |_| tick.set(true));
    run_until(&mut reactor, |_| ticked.take());
    assert_eq!(reactor.stats().turns, 1);
}

fn run_until_ends_when_the_loop_is_stopped(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.on_shutdown(move |_| entry.add("hook"));
    reactor.next_tick(|reactor| reactor.stop());
    assert!(matches!(reactor.run_until(|_| false), Err(Error::Stopped)));
    assert_eq!(log.len(), 0);
    assert_eq!(reactor.run().unwrap(), Exit::Stopped);
    assert_eq!(log.take(), ["hook"]);
}

fn draining_waits_for_holds(on: On) {
    let mut reactor = on.reactor();
    let hold = reactor.hold();
    let log = Log::default();
    let entry = log.clone();
    reactor.after(Duration::from_millis(5), move |reactor| {
        entry.add("work done");
        assert!(reactor.stopping());
        drop(hold);
        // Queued before the loop notices that nothing holds it.
        let entry = entry.clone();
        reactor.next_tick(move |_| entry.add("tick"));
    });
    assert_eq!(reactor.holds(), 1);
    reactor.drain(Duration::from_secs(20));
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(log.take(), ["work done", "tick"]);
    assert_eq!(reactor.holds(), 0);
}

fn draining_ends_at_its_deadline(on: On) {
    let mut reactor = on.reactor();
    let hold = reactor.hold();
    let start = Instant::now();
    reactor.next_tick(|reactor| reactor.drain(Duration::from_millis(10)));
    assert_eq!(run(&mut reactor), Exit::DrainTimedOut { holds: 1, connections: 0 });
    assert!(start.elapsed() >= Duration::from_millis(10));
    drop(hold);
}

fn draining_calls_its_hooks_first(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    for name in ["listener", "cache"] {
        let entry = log.clone();
        reactor.on_drain(move |_| entry.add(name));
    }
    let entry = log.clone();
    reactor.on_shutdown(move |_| entry.add("shutdown"));
    let handle = reactor.handle();
    std::thread::spawn(move || handle.drain(Duration::from_secs(20))).join().unwrap();
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(log.take(), ["listener", "cache", "shutdown"]);
}

fn a_hold_may_be_released_by_another_thread(on: On) {
    let mut reactor = on.reactor();
    let hold = reactor.handle().hold();
    reactor.drain(Duration::from_secs(20));
    let start = Instant::now();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        drop(hold);
    });
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert!(start.elapsed() < Duration::from_secs(10), "the loop was not woken");
    other.join().unwrap();
}

fn everything_is_dropped_on_shutdown_and_on_drop(on: On) {
    for shut_down in [true, false] {
        let mut reactor = on.reactor();
        let held = Rc::new(());
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (a, b, c, d, e) = (held.clone(), held.clone(), held.clone(), held.clone(), held.clone());
        let (f, g) = (held.clone(), held.clone());
        reactor.after(Duration::from_secs(3600), move |_| drop(a));
        reactor.every(Duration::from_secs(3600), move |_, _| assert!(Rc::strong_count(&b) > 0));
        reactor.watch(&ours, Interest::READABLE, move |_, _| assert!(Rc::strong_count(&c) > 0)).unwrap();
        reactor.when_idle(move |_| drop(d));
        reactor.next_tick(move |_| drop(e));
        reactor.on_drain(move |_| drop(f));
        reactor.on_shutdown(move |_| drop(g));
        assert_eq!(Rc::strong_count(&held), 8);
        if shut_down {
            reactor.stop();
            reactor.shutdown().unwrap();
        } else {
            drop(reactor);
        }
        assert_eq!(Rc::strong_count(&held), 1);
    }
}

fn state_is_kept_by_type(on: On) {
    let mut reactor = on.reactor();
    *reactor.state::<u32>() += 5;
    reactor.state::<String>().push('x');
    assert_eq!((*reactor.state::<u32>(), reactor.state::<String>().as_str()), (5, "x"));
    assert_eq!(reactor.put_state(6u32), Some(5));
    assert_eq!(reactor.take_state::<u32>(), Some(6));
    assert_eq!(reactor.try_state::<u32>(), None);
    // Callbacks see state that was set outside, and vice versa.
    reactor.next_tick(|reactor| *reactor.state::<u32>() = 9);
    poll(&mut reactor);
    assert_eq!(reactor.try_state::<u32>(), Some(&mut 9));
}

fn a_turn_with_a_timeout_waits_that_long(on: On) {
    let mut reactor = on.reactor();
    let start = Instant::now();
    reactor.turn(Some(Duration::from_millis(7))).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(7));
    let start = Instant::now();
    reactor.next_tick(|reactor| reactor.next_tick(|_| {}));
    reactor.turn(Some(Duration::from_secs(20))).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "there is a tick to run");
}

fn run_until_does_not_sleep_on_work_that_its_condition_queued(on: On) {
    let mut reactor = on.reactor();
    let ran = Rc::new(Cell::new(0));
    let mut asked = 0;
    run_until(&mut reactor, |reactor| {
        asked += 1;
        // The second call is right before the loop would sleep.
        if asked == 2 {
            let ran = ran.clone();
            reactor.next_tick(move |_| ran.set(1));
        }
        ran.get() == 1
    });
}

fn a_loop_inside_a_callback_of_another_is_refused_unless_asked_for(on: On) {
    type Start = fn(&mut EventLoop) -> Result<(), Error>;
    const STARTS: [Start; 4] = [
        |inner| inner.run().map(drop),
        |inner| inner.turn(None),
        |inner| inner.run_until(|_| false),
        |inner| inner.block_on(std::future::pending::<()>()),
    ];
    // From every kind of callback.
    let inside = move |done: Rc<Cell<usize>>| {
        for start in STARTS {
            let mut inner = on.reactor();
            inner.after(Duration::from_millis(1), |inner| inner.stop());
            let error = start(&mut inner).unwrap_err();
            assert!(matches!(error, Error::Nested), "{error:?}");
            assert!(error.to_string().contains("Reactor::start_thread"), "{error}");
            // A nested loop that does not wait is allowed.
            inner.turn(Some(Duration::ZERO)).unwrap();
        }
        // Explicitly allowed, it runs.
        let mut inner = on.build(on.builder().nested(true));
        inner.after(Duration::from_millis(1), |inner| inner.stop());
        assert_eq!(inner.run().unwrap(), Exit::Stopped);
        let mut inner = on.build(on.builder().nested(true));
        assert_eq!(inner.block_on(async { 7 }).unwrap(), 7);
        done.set(done.get() + 1);
    };
    let mut reactor = on.reactor();
    let done = Rc::new(Cell::new(0));
    let count = done.clone();
    reactor.next_tick(move |_| inside(count));
    let count = done.clone();
    reactor.after(Duration::ZERO, move |_| inside(count));
    let count = done.clone();
    reactor.when_idle(move |_| inside(count));
    let count = done.clone();
    reactor.spawn(async move { inside(count) });
    let count = done.clone();
    run_until(&mut reactor, |_| count.get() == 4);
    // A turned loop leaves no trace, even if a callback panicked.
    let mut panics = on.build(on.builder().panic_policy(PanicPolicy::Propagate));
    panics.on_fault(|_, _| {});
    panics.next_tick(|_| std::panic::resume_unwind(Box::new("on purpose")));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panics.turn(None))).is_err());
    let mut next = on.reactor();
    next.next_tick(|reactor| reactor.stop());
    assert_eq!(next.run().unwrap(), Exit::Stopped);
}
