//! Blocking work on lanes, on every engine.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pelton::{
    CallbackKind, DeferFailure, Error, EventLoop, Exit, Lane, LaneSettings, PanicPolicy, Reactor, Refusal, Rejected,
};
use pelton_testing::{DEADLINE, Log, On, on_every_engine, poll, run, run_until};

on_every_engine![
    work_runs_on_a_thread_and_its_callback_on_the_loop,
    finished_results_are_delivered_together,
    loop_keeps_running_while_work_blocks,
    panic_is_returned_with_its_message,
    panic_in_the_callback_is_a_fault_of_the_loop,
    promise_is_settled_with_the_outcome,
    full_lane_returns_the_work,
    queued_work_can_be_cancelled,
    deferred_work_starts_without_another_turn,
    work_deferred_by_a_condition_starts_before_the_loop_sleeps,
    lanes_do_not_block_each_other,
    draining_waits_for_deferred_work,
    draining_gives_up_at_its_deadline,
    stopping_does_not_wait,
    dropped_reactor_lets_running_work_finish,
    everything_is_dropped_once,
    a_hundred_thousand_jobs_all_run,
    a_reply_can_be_waited_for_on_other_threads,
    a_stopped_reactor_refuses,
    lanes_are_counted,
];

/// One thread per lane, and a queue of this length.
fn narrow(on: On, lane: Lane, waiting: usize) -> EventLoop {
    on.build(on.builder().lane(lane, LaneSettings { threads: 1, waiting, ..LaneSettings::CPU }))
}

/// Work that signals when it has started, and ends when the sender is dropped.
fn stuck() -> (Sender<()>, Receiver<()>, impl FnOnce() + Send + 'static) {
    let (release, released) = channel::<()>();
    let (begin, begun) = channel();
    let op = move || {
        begin.send(()).unwrap();
        let _ = released.recv_timeout(DEADLINE);
    };
    (release, begun, op)
}

/// Polls for something that another thread does without a notification.
fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

fn work_runs_on_a_thread_and_its_callback_on_the_loop(on: On) {
    let mut reactor = on.reactor();
    let here = std::thread::current().id();
    let seen = Rc::new(RefCell::new(Vec::<(Lane, ThreadId, String)>::new()));
    for lane in Lane::ALL {
        let seen = seen.clone();
        let op = || (std::thread::current().id(), std::thread::current().name().unwrap().to_owned());
        reactor
            .defer(lane, op, move |_, outcome| {
                assert_eq!(std::thread::current().id(), here);
                let (thread, name) = outcome.unwrap();
                seen.borrow_mut().push((lane, thread, name));
            })
            .unwrap();
    }
    assert!(seen.borrow().is_empty(), "called before defer returned");
    run_until(&mut reactor, |_| seen.borrow().len() == Lane::ALL.len());
    for (lane, thread, name) in seen.take() {
        assert_ne!(thread, here);
        assert_eq!(name, format!("pelton-{lane}"));
    }
}

fn finished_results_are_delivered_together(on: On) {
    const COUNT: usize = 100;
    let mut reactor = narrow(on, Lane::Cpu, COUNT);
    let told = Rc::new(Cell::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..COUNT {
        let (told, done) = (told.clone(), done.clone());
        let op = move || done.fetch_add(1, Ordering::SeqCst);
        reactor
            .defer(Lane::Cpu, op, move |_, outcome| {
                assert_eq!(outcome.unwrap(), told.get(), "in the order of completion");
                told.set(told.get() + 1);
            })
            .unwrap();
    }
    let handle = reactor.handle();
    until(|| done.load(Ordering::SeqCst) == COUNT && handle.pending_posts() == COUNT);
    poll(&mut reactor);
    assert_eq!(told.get(), COUNT);
    let stats = reactor.stats();
    assert_eq!((stats.turns, stats.calls(CallbackKind::Tick)), (1, COUNT as u64));
}

fn loop_keeps_running_while_work_blocks(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (release, begun, op) = stuck();
    let entry = log.clone();
    reactor.defer(Lane::Files, op, move |_, _| entry.add("done")).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    let (entry, release) = (log.clone(), Cell::new(Some(release)));
    reactor.every(Duration::from_millis(1), move |_, _| {
        entry.add("beat");
        if entry.len() == 5 {
            release.take();
        }
    });
    run_until(&mut reactor, |_| log.len() >= 6);
    let told = log.take();
    assert_eq!(told[..5], ["beat"; 5]);
    run_until(&mut reactor, |_| told.contains(&"done".to_owned()) || log.take().contains(&"done".to_owned()));
}

fn panic_is_returned_with_its_message(on: On) {
    let mut reactor = narrow(on, Lane::Cpu, 8);
    let told = Rc::new(RefCell::new(Vec::new()));
    for number in 0..3 {
        let told = told.clone();
        let op = move || {
            assert_ne!(number, 1, "on purpose");
            number
        };
        reactor.defer(Lane::Cpu, op, move |_, outcome| told.borrow_mut().push(outcome)).unwrap();
    }
    run_until(&mut reactor, |_| told.borrow().len() == 3);
    let told = told.take();
    assert_eq!((&told[0], &told[2]), (&Ok(0), &Ok(2)), "the thread survives");
    let failure = told[1].clone().unwrap_err();
    assert!(matches!(&failure, DeferFailure::Panicked(message) if message.contains("on purpose")), "{failure}");
    assert!(failure.to_string().starts_with("it panicked: "));
    let stats = reactor.stats();
    assert_eq!((stats.panics, stats.lane(Lane::Cpu).panicked), (0, 1), "the loop did not panic");
}

fn panic_in_the_callback_is_a_fault_of_the_loop(on: On) {
    let mut reactor = on.catching();
    let faults = Log::default();
    let entry = faults.clone();
    reactor.on_fault(move |_, fault| entry.add(fault.to_string()));
    let line = line!() + 1;
    reactor.defer(Lane::Cpu, || {}, |_, _| panic!("on purpose")).unwrap();
    run_until(&mut reactor, |_| faults.len() == 1);
    let fault = faults.take().remove(0);
    assert!(fault.contains(&format!("tests/defer.rs:{line}:")) && fault.ends_with("panicked: on purpose"), "{fault}");
}

fn promise_is_settled_with_the_outcome(on: On) {
    let mut reactor = narrow(on, Lane::Cpu, 8);
    let kept = reactor.defer_promise(Lane::Cpu, || 7).unwrap().map(|seven| seven * 6);
    assert_eq!(reactor.block_on(kept).unwrap(), Ok(42));
    let broken = reactor.defer_promise(Lane::Cpu, || panic!("on purpose")).unwrap().map(|()| "kept");
    let outcome = reactor.block_on(broken).unwrap();
    assert_eq!(outcome, Err(Rejected::Failed(DeferFailure::Panicked("on purpose".into()))));
    reactor.stop();
    run(&mut reactor);
    assert_eq!((reactor.defer_promise(Lane::Cpu, || 7).unwrap_err().op)(), 7);
}

fn full_lane_returns_the_work(on: On) {
    let mut reactor = narrow(on, Lane::Cpu, 1);
    let (release, begun, op) = stuck();
    reactor.defer(Lane::Cpu, op, |_, _| {}).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    reactor.defer(Lane::Cpu, || {}, |_, _| {}).unwrap();
    let dropped = Rc::new(());
    let kept = dropped.clone();
    let error = reactor.defer(Lane::Cpu, || "run here instead", move |_, _| drop(kept)).unwrap_err();
    assert_eq!(Rc::strong_count(&dropped), 1, "the callback is dropped");
    assert!(matches!(error.refusal, Refusal::Full(1)));
    assert_eq!(error.to_string(), "defer to the cpu lane: the lane is full, with 1 waiting for a thread");
    assert_eq!((error.op)(), "run here instead");
    let error = reactor.defer_reply(Lane::Cpu, || 7).unwrap_err();
    assert_eq!((error.op)(), 7);
    assert_eq!(reactor.holds(), 0);
    assert!(matches!(Error::from(reactor.defer(Lane::Cpu, || {}, |_, _| {}).unwrap_err()), Error::LaneFull { .. }));
    drop(release);
    run_until(&mut reactor, |reactor| reactor.stats().lane(Lane::Cpu).done == 2);
    assert_eq!(reactor.stats().lane(Lane::Cpu).refused, 3);
    reactor.defer(Lane::Cpu, || {}, |reactor, _| reactor.stop()).unwrap();
    run(&mut reactor);
}

fn queued_work_can_be_cancelled(on: On) {
    let mut reactor = narrow(on, Lane::Cpu, 3);
    let log = Log::default();
    let done = Arc::new(AtomicUsize::new(0));
    let (release, begun, op) = stuck();
    let entry = log.clone();
    let first = reactor.defer(Lane::Cpu, op, move |_, _| entry.add("first")).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    let [second, third, _fourth] = ["second", "third", "fourth"].map(|name| {
        let (entry, done) = (log.clone(), done.clone());
        reactor.defer(Lane::Cpu, move || done.fetch_add(1, Ordering::SeqCst), move |_, _| entry.add(name)).unwrap()
    });
    assert!(reactor.cancel_deferred(second), "in time");
    assert!(!reactor.cancel_deferred(second), "only once");
    assert!(!reactor.cancel_deferred(first), "it has already started");
    reactor.defer(Lane::Cpu, || {}, |_, _| {}).unwrap();
    drop(release);
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["third", "fourth"]);
    assert!(!reactor.cancel_deferred(third), "too late");
    assert_eq!(done.load(Ordering::SeqCst), 2, "the second never ran");
}

/// One thread, which looks for work only when it is woken.
const SLEEPY: LaneSettings = LaneSettings { threads: 1, waiting: 8, linger: Duration::from_secs(3600) };

fn deferred_work_starts_without_another_turn(on: On) {
    // The threads sleep, so they must be woken.
    let idle = |reactor: &mut EventLoop| until(|| reactor.stats().lane(Lane::Cpu).running == 0);
    for policy in [PanicPolicy::Close, PanicPolicy::Propagate] {
        let mut reactor = on.build(on.builder().lane(Lane::Cpu, SLEEPY).panic_policy(policy));
        for _ in 0..20 {
            let (release, begun, op) = stuck();
            reactor.defer(Lane::Cpu, op, |_, _| {}).unwrap();
            begun.recv_timeout(DEADLINE).expect("not started outside a turn");
            drop(release);
            idle(&mut reactor);

            let (release, begun, op) = stuck();
            reactor.next_tick(move |reactor| {
                reactor.defer(Lane::Cpu, op, |_, _| {}).unwrap();
                panic!("on purpose");
            });
            let turned = catch_unwind(AssertUnwindSafe(|| poll(&mut reactor)));
            assert_eq!(turned.is_err(), policy == PanicPolicy::Propagate);
            begun.recv_timeout(DEADLINE).expect("not started after the turn");
            drop(release);
            idle(&mut reactor);
        }
    }
}

fn work_deferred_by_a_condition_starts_before_the_loop_sleeps(on: On) {
    let mut reactor = on.build(on.builder().lane(Lane::Cpu, SLEEPY));
    for _ in 0..20 {
        until(|| reactor.stats().lane(Lane::Cpu).running == 0);
        let done = Rc::new(Cell::new(false));
        let told = done.clone();
        let mut asked = 0;
        run_until(&mut reactor, move |reactor| {
            asked += 1;
            // First before the turn, then during it.
            if asked == 2 {
                let told = told.clone();
                reactor.defer(Lane::Cpu, || (), move |_, _| told.set(true)).unwrap();
            }
            done.get()
        });
    }
}

fn lanes_do_not_block_each_other(on: On) {
    for blocked in Lane::ALL {
        let mut reactor = narrow(on, blocked, 4);
        let (_release, begun, op) = stuck();
        reactor.defer(blocked, op, |_, _| panic!("nobody released it")).unwrap();
        begun.recv_timeout(DEADLINE).unwrap();
        let told = Rc::new(Cell::new(0));
        for lane in Lane::ALL.into_iter().filter(|lane| *lane != blocked) {
            let told = told.clone();
            reactor.defer(lane, || {}, move |_, _| told.set(told.get() + 1)).unwrap();
        }
        run_until(&mut reactor, |_| told.get() == Lane::ALL.len() - 1);
    }
}

fn draining_waits_for_deferred_work(on: On) {
    for with_reply in [false, true] {
        let mut reactor = on.reactor();
        let told = Rc::new(Cell::new(false));
        let (release, begun, op) = stuck();
        if with_reply {
            let reply = reactor.defer_reply(Lane::Files, op).unwrap();
            let told = told.clone();
            reactor.on_shutdown(move |_| told.set(reply.try_take().is_ok()));
        } else {
            let told = told.clone();
            reactor.defer(Lane::Files, op, move |_, _| told.set(true)).unwrap();
        }
        begun.recv_timeout(DEADLINE).unwrap();
        reactor.drain(DEADLINE);
        poll(&mut reactor);
        poll(&mut reactor);
        assert!(!reactor.stopped(), "draining waits");
        drop(release);
        assert_eq!(run(&mut reactor), Exit::Drained);
        assert!(told.get());
    }
}

fn draining_gives_up_at_its_deadline(on: On) {
    let mut reactor = on.reactor();
    let (_release, begun, op) = stuck();
    let (_other_release, other_begun, other_op) = stuck();
    reactor.defer(Lane::Files, op, |_, _| panic!("too late")).unwrap();
    let reply = reactor.defer_reply(Lane::Files, other_op).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    other_begun.recv_timeout(DEADLINE).unwrap();
    reactor.drain(Duration::from_millis(5));
    assert_eq!(run(&mut reactor), Exit::DrainTimedOut { holds: 2, connections: 0 });
    drop(reply);
}

fn stopping_does_not_wait(on: On) {
    let mut reactor = narrow(on, Lane::Cpu, 8);
    let (release, begun, op) = stuck();
    let ended = Arc::new(());
    let (in_op, in_waiting) = (ended.clone(), ended.clone());
    let first = move || {
        op();
        drop(in_op);
    };
    reactor.defer(Lane::Cpu, first, |_, _| panic!("called after the loop stopped")).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    let waiting = reactor.defer_reply(Lane::Cpu, move || drop(in_waiting)).unwrap();
    reactor.stop();
    assert_eq!(run(&mut reactor), Exit::Stopped);
    assert!(waiting.wait().is_err(), "queued work is not started, and its reply is lost");
    drop(release);
    until(|| Arc::strong_count(&ended) == 1);
}

fn dropped_reactor_lets_running_work_finish(on: On) {
    struct Told(Sender<ThreadId>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }
    let mut reactor = on.reactor();
    let (release, begun, op) = stuck();
    let (dropped, dropping) = channel();
    let op = move || {
        op();
        Told(dropped)
    };
    let callback = Rc::new(());
    let captured = callback.clone();
    reactor.defer(Lane::Cpu, op, move |_, _| drop(captured)).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    drop(reactor);
    assert_eq!(Rc::strong_count(&callback), 1, "the callback goes with the loop");
    drop(release);
    let thread = dropping.recv_timeout(DEADLINE).unwrap();
    assert_ne!(thread, std::thread::current().id(), "an unwanted result is dropped on the worker thread");
}

fn everything_is_dropped_once(on: On) {
    /// Large enough to be boxed, or small enough to be stored inline.
    struct Counted<const BYTES: usize>(Arc<AtomicUsize>, [u8; BYTES]);
    impl<const BYTES: usize> Drop for Counted<BYTES> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn work<const BYTES: usize>(reactor: &mut EventLoop) -> usize {
        let drops = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let counted = |index: usize| Counted::<BYTES>(drops[index].clone(), [0; BYTES]);
        let mut begun = 0;
        for number in 0..40 {
            let (op, value, then) = (counted(0), counted(1), counted(2));
            let op = move || {
                let (_op, value) = (op, value);
                assert_ne!(number % 3, 1, "on purpose");
                value
            };
            let id = reactor.defer(Lane::Cpu, op, move |_, _| drop(then)).unwrap();
            begun += 1;
            if number % 3 == 2 {
                reactor.cancel_deferred(id);
            }
        }
        until(|| {
            poll(reactor);
            drops.iter().all(|drops| drops.load(Ordering::SeqCst) == begun)
        });
        begun
    }

    let mut reactor = on.reactor();
    assert_eq!(work::<0>(&mut reactor) + work::<100>(&mut reactor), 80);
}

fn a_hundred_thousand_jobs_all_run(on: On) {
    const ALL: u64 = 100_000;
    const AT_A_TIME: u64 = 1_000;
    fn next(reactor: &mut Reactor, number: u64, sum: &Rc<Cell<u64>>) {
        let sum = sum.clone();
        let then = move |reactor: &mut Reactor, outcome: Result<u64, _>| {
            sum.set(sum.get() + outcome.unwrap());
            if number + AT_A_TIME < ALL {
                next(reactor, number + AT_A_TIME, &sum);
            }
        };
        reactor.defer(Lane::Cpu, move || number, then).unwrap();
    }
    let mut reactor = on.reactor();
    let sum = Rc::new(Cell::new(0));
    for number in 0..AT_A_TIME {
        next(&mut reactor, number, &sum);
    }
    reactor.drain(DEADLINE);
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(sum.get(), ALL * (ALL - 1) / 2);
    assert_eq!(reactor.stats().lane(Lane::Cpu).done, ALL);
}

fn a_reply_can_be_waited_for_on_other_threads(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let other = std::thread::spawn(move || {
        let sum = handle.defer_reply(Lane::Cpu, || (1..=10).sum::<u32>()).unwrap().wait();
        let panic = handle.defer_reply(Lane::Cpu, || panic!("on purpose")).unwrap().wait();
        handle.stop();
        (sum, panic)
    });
    run(&mut reactor);
    let (sum, panic): (_, Result<Result<(), _>, _>) = other.join().unwrap();
    assert_eq!(sum, Ok(Ok(55)));
    assert_eq!(panic, Ok(Err(DeferFailure::Panicked("on purpose".into()))));
    // The reply is sent first, while the loop still exists.
    until(|| reactor.holds() == 0);
}

fn a_stopped_reactor_refuses(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    reactor.stop();
    run(&mut reactor);
    let error = reactor.defer(Lane::Cpu, || 5, |_, _| {}).unwrap_err();
    assert!(matches!(error.refusal, Refusal::Stopped), "{error}");
    assert_eq!((error.op)(), 5);
    drop(reactor);
    let error = handle.defer_reply(Lane::Cpu, || 5).unwrap_err();
    assert!(matches!(error.refusal, Refusal::Stopped), "{error}");
}

fn lanes_are_counted(on: On) {
    let mut reactor = narrow(on, Lane::Files, 1);
    let (release, begun, op) = stuck();
    reactor.defer(Lane::Files, op, |_, _| {}).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    reactor.defer(Lane::Files, || panic!("on purpose"), |reactor, _: Result<(), _>| reactor.stop()).unwrap();
    reactor.defer(Lane::Files, || {}, |_, _| {}).unwrap_err();
    let lane = reactor.stats().lane(Lane::Files);
    assert_eq!((lane.threads, lane.waiting, lane.running, lane.done, lane.refused), (1, 1, 1, 0, 1));
    let text = reactor.stats().to_prometheus();
    for line in [
        "# TYPE pelton_lane_waiting gauge",
        "pelton_lane_waiting{lane=\"files\"} 1",
        "pelton_lane_running{lane=\"files\"} 1",
        "pelton_lane_running{lane=\"cpu\"} 0",
        "# TYPE pelton_lane_refused_total counter",
        "pelton_lane_refused_total{lane=\"files\"} 1",
    ] {
        assert!(text.lines().any(|printed| printed == line), "no {line:?} in\n{text}");
    }
    drop(release);
    run(&mut reactor);
    let lane = reactor.stats().lane(Lane::Files);
    assert_eq!((lane.waiting, lane.running, lane.done, lane.panicked), (0, 0, 2, 1));
}
