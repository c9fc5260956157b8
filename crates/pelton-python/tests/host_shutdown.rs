//! Shutdown in every state, with exactly one outcome for each task.

#![cfg(feature = "embed")]

mod host_support;

use std::time::{Duration, Instant};

use host_support::{LONG, start, start_with, turn, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, RefusalKind, TaskError};
use pyo3::prelude::*;

const TASKS: &str = "
import asyncio, builtins, time
builtins.pelton_test_naps = False
async def short():
    await asyncio.sleep(0.02)
    return 'done'
async def long(): await asyncio.sleep(3600)
async def stubborn():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError: pass
def spin():
    while True: pass
def nap(seconds):
    builtins.pelton_test_naps = True
    time.sleep(seconds)
    return 'napped'
async def naps(seconds):
    await asyncio.sleep(0)
    return nap(seconds)
";

/// Longer than a shutdown that gives up takes, including its wait for the loop.
const TOO_LONG: f64 = 5.0;

/// Returns whether a nap has started since the tasks were defined.
fn naps() -> bool {
    Python::attach(|py| py.import("builtins")?.getattr("pelton_test_naps")?.is_truthy()).unwrap()
}

#[test]
fn an_idle_host_ends_at_once() {
    let host = start_with(Config::new().loops(2));
    let start = Instant::now();
    assert!(host.shutdown(LONG).is_clean());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(host.shutdown(LONG).is_clean(), "a second shutdown does nothing");
    let refused = host.create_task("math", "sqrt", (2.0,), ()).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::ShuttingDown);
    assert_eq!(refused.call.name(), "math.sqrt");
}

#[test]
fn tasks_in_progress_finish_before_the_deadline() {
    let host = start();
    let namespace = with(&host, TASKS);
    let replies: Vec<_> = (0..100).map(|_| namespace.create_task("__main__", "short", (), ()).unwrap()).collect();
    let queued: Vec<_> = (0..1_000).map(|_| namespace.create_task("math", "sqrt", (4.0,), ()).unwrap()).collect();
    let worker = namespace.submit(Call::new("__main__", "nap").arg(0.05).on_worker()).unwrap();
    assert!(host.shutdown(LONG).is_clean());
    for reply in replies {
        assert_eq!(reply.try_take().unwrap().unwrap(), Value::from("done"));
    }
    for reply in queued {
        assert_eq!(reply.try_take().unwrap().unwrap(), Value::Float(2.0));
    }
    assert_eq!(worker.try_take().unwrap().unwrap(), Value::from("napped"));
}

#[test]
fn tasks_not_done_by_the_deadline_are_cancelled() {
    let host = start();
    let namespace = with(&host, TASKS);
    let long: Vec<_> = (0..10).map(|_| namespace.create_task("__main__", "long", (), ()).unwrap()).collect();
    until("they wait", || host.stats()[0].waiting == 10);
    let remains = host.shutdown(Duration::from_millis(10));
    assert_eq!((remains.cancelled, remains.abandoned, remains.stuck.len()), (10, 0, 0));
    for reply in long {
        assert!(matches!(reply.try_take().unwrap(), Err(TaskError::Cancelled)));
    }
}

#[test]
fn tasks_queued_behind_a_blocking_call_are_cancelled() {
    let host = start();
    let namespace = with(&host, TASKS);
    let nap = namespace.create_task("__main__", "nap", (0.3,), ()).unwrap();
    until("it naps", naps);
    let behind: Vec<_> = (0..100).map(|_| namespace.create_task("math", "sqrt", (4.0,), ()).unwrap()).collect();
    let remains = host.shutdown(Duration::ZERO);
    assert!(remains.cancelled >= 100 && remains.stuck.is_empty(), "{remains:?}");
    assert_eq!(nap.try_take().unwrap().unwrap(), Value::from("napped"));
    for reply in behind {
        assert!(matches!(reply.try_take().unwrap(), Err(TaskError::Cancelled)));
    }
}

#[test]
fn tasks_that_suppress_cancellation_are_abandoned() {
    let host = start();
    let namespace = with(&host, TASKS);
    let reply = namespace.create_task("__main__", "stubborn", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    let remains = host.shutdown(Duration::from_millis(10));
    assert_eq!((remains.cancelled, remains.abandoned, remains.stuck.len()), (1, 1, 0));
    assert!(matches!(reply.try_take().unwrap(), Err(TaskError::LoopGone)));
}

#[test]
fn a_call_that_never_returns_is_interrupted() {
    let host = start();
    let namespace = with(&host, TASKS);
    let spinning = namespace.create_task("__main__", "spin", (), ()).unwrap();
    until("it spins", || host.stats()[0].queued == 0);
    let behind = namespace.create_task("math", "sqrt", (4.0,), ()).unwrap();
    let remains = host.shutdown(Duration::from_millis(10));
    assert!(remains.stuck.is_empty(), "{remains:?}");
    let error = spinning.try_take().unwrap().unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "pelton._host.Interrupted");
    assert!(matches!(behind.try_take().unwrap(), Err(TaskError::Cancelled | TaskError::LoopGone)));
}

#[test]
fn all_waiters_are_settled_if_a_loop_never_returns() {
    let host = start_with(Config::new().batch(8));
    let namespace = with(&host, TASKS);
    let waits = namespace.create_task("__main__", "long", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    // Of one batch, the first does not return, and the loop has already fetched the others; the rest are still queued.
    let running = namespace.create_task("__main__", "nap", (TOO_LONG,), ()).unwrap();
    until("it naps", naps);
    let queued: Vec<_> = (0..20).map(|_| namespace.create_task("math", "sqrt", (4.0,), ()).unwrap()).collect();
    let batch = namespace.batch((0..20).map(|_| Call::new("math", "sqrt").arg(4.0)).collect()).unwrap();
    let mut stream = namespace.stream(Call::new("builtins", "range").arg(5), 2).unwrap();
    let future = namespace.eval("1").unwrap();
    let (start, told) = (Instant::now(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        let tell = told.0;
        // Some wait before the loop is given up: on a thread, and as a future.
        let mut queued = queued.into_iter();
        let early = queued.next().unwrap();
        let (one, other, third) = (tell.clone(), tell.clone(), tell);
        scope.spawn(move || one.send(wait(early)).unwrap());
        scope.spawn(move || other.send(futures::executor::block_on(future)).unwrap());
        scope.spawn(move || third.send(stream.next().unwrap()).unwrap());
        let remains = host.shutdown(Duration::from_millis(10));
        assert!(start.elapsed() < Duration::from_secs_f64(TOO_LONG), "the nap ended too early for this test");
        assert_eq!(remains.stuck, [0]);
        assert_eq!(remains.abandoned, 1 + 1 + 20 + 20 + 1 + 1, "{remains:?}");
        assert_eq!(remains.cancelled, remains.abandoned);
        for _ in 0..3 {
            let outcome = told.1.recv_timeout(LONG).unwrap();
            assert!(matches!(outcome, Err(TaskError::LoopGone)), "{outcome:?}");
        }
        // The others get this outcome when they ask.
        for reply in queued.chain([waits, running]) {
            assert!(matches!(wait(reply), Err(TaskError::LoopGone)));
        }
        assert!(batch.wait().iter().all(|outcome| matches!(outcome, Err(TaskError::LoopGone))));
        assert!(start.elapsed() < Duration::from_secs_f64(TOO_LONG), "the nap ended too early for this test");
    });
}

#[test]
fn a_late_result_of_a_stuck_coroutine_is_dropped() {
    let host = start();
    let namespace = with(&host, TASKS);
    let seconds = 4.0;
    let reply = namespace.create_task("__main__", "naps", (seconds,), ()).unwrap();
    until("it naps", naps);
    let start = Instant::now();
    let remains = host.shutdown(Duration::ZERO);
    assert!(start.elapsed() < Duration::from_secs_f64(seconds), "the nap ended too early for this test");
    assert_eq!((remains.stuck.as_slice(), remains.abandoned), ([0].as_slice(), 1), "{remains:?}");
    assert!(matches!(wait(reply), Err(TaskError::LoopGone)));
    // Another host can start while the thread of this one is stuck, and is not affected when that thread returns.
    let next = Host::start(Config::new()).unwrap();
    until("the thread has returned", || start.elapsed() > Duration::from_secs_f64(seconds));
    assert_eq!(next.run("math", "sqrt", (4.0,), ()).unwrap(), Value::Float(2.0));
    assert!(next.shutdown(LONG).is_clean());
}

#[test]
fn waiters_are_settled_if_a_worker_function_never_returns() {
    let host = start();
    let namespace = with(&host, TASKS);
    let reply = namespace.submit(Call::new("__main__", "nap").arg(TOO_LONG).on_worker()).unwrap();
    until("it naps", naps);
    let start = Instant::now();
    let remains = host.shutdown(Duration::ZERO);
    assert_eq!((remains.stuck.len(), remains.abandoned), (0, 1), "{remains:?}");
    assert!(matches!(wait(reply), Err(TaskError::LoopGone)));
    assert!(start.elapsed() < Duration::from_secs_f64(TOO_LONG), "the nap ended too early for this test");
}

#[test]
fn dropping_the_last_handle_shuts_the_host_down() {
    let turn = turn();
    let host = Host::start(Config::new()).unwrap();
    let namespace = with(&host, TASKS);
    let reply = namespace.create_task("__main__", "long", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    drop(host);
    assert!(matches!(reply.try_take().unwrap(), Err(TaskError::Cancelled | TaskError::LoopGone)));
    assert!(namespace.create_task("__main__", "short", (), ()).is_err());
    drop(turn);
}

#[test]
fn callers_that_race_a_shutdown_all_get_an_outcome() {
    for round in 0..20 {
        let host = start_with(Config::new().loops(1 + round % 2));
        let counts: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut answered, mut refused) = (0, 0);
                        while refused < 10 {
                            match host.submit(Call::new("asyncio", "sleep").arg(0.0)) {
                                Ok(reply) => {
                                    // Any outcome will do.
                                    let _ = wait(reply);
                                    answered += 1;
                                }
                                Err(_) => refused += 1,
                            }
                        }
                        (answered, refused)
                    })
                })
                .collect();
            until("all threads are submitting", || host.stats().iter().map(|stats| stats.tasks).sum::<u64>() > 50);
            host.shutdown(Duration::from_millis(round as u64 % 3));
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        assert!(counts.iter().all(|(_, refused)| *refused == 10));
    }
}

#[test]
fn a_stream_ends_with_the_host() {
    let host = start();
    let namespace = with(
        &host,
        "import asyncio\nasync def ticks():\n    while True:\n        yield 1\n        await asyncio.sleep(0.001)",
    );
    let mut stream = namespace.stream(Call::new("__main__", "ticks"), 4).unwrap();
    assert_eq!(stream.next().unwrap().unwrap(), Value::Int(1));
    host.shutdown(Duration::ZERO);
    let last = stream.by_ref().last().unwrap();
    assert!(matches!(last, Err(TaskError::Cancelled | TaskError::LoopGone)), "{last:?}");
    assert!(stream.next().is_none());
}
