//! Shutdown, in every state; and that every task has its one outcome.

#![cfg(feature = "embed")]

mod host_support;

use std::time::{Duration, Instant};

use host_support::{LONG, start, start_with, turn, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, RefusalKind, TaskError};

const TASKS: &str = "
import asyncio, time
log = []
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
    time.sleep(seconds)
    return 'napped'
";

#[test]
fn an_idle_host_ends_at_once() {
    let host = start_with(Config::new().loops(2));
    let start = Instant::now();
    assert!(host.shutdown(LONG).is_clean());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(host.shutdown(LONG).is_clean(), "again there is nothing to do");
    let refused = host.create_task("math", "sqrt", (2.0,), ()).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::ShuttingDown);
    assert_eq!(refused.call.name(), "math.sqrt");
}

#[test]
fn what_there_is_comes_to_its_end() {
    let host = start();
    let process = with(&host, TASKS);
    let replies: Vec<_> = (0..100).map(|_| process.create_task("__main__", "short", (), ()).unwrap()).collect();
    let queued: Vec<_> = (0..1_000).map(|_| process.create_task("math", "sqrt", (4.0,), ()).unwrap()).collect();
    let worker = process.submit(Call::new("__main__", "nap").arg(0.05).on_worker()).unwrap();
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
fn what_is_not_done_by_the_deadline_is_cancelled() {
    let host = start();
    let process = with(&host, TASKS);
    let long: Vec<_> = (0..10).map(|_| process.create_task("__main__", "long", (), ()).unwrap()).collect();
    until("they wait", || host.stats()[0].waiting == 10);
    let remains = host.shutdown(Duration::from_millis(10));
    assert_eq!((remains.cancelled, remains.abandoned, remains.stuck.len()), (10, 0, 0));
    for reply in long {
        assert!(matches!(reply.try_take().unwrap(), Err(TaskError::Cancelled)));
    }
}

#[test]
fn what_is_queued_behind_a_blocking_call_is_cancelled_too() {
    let host = start();
    let process = with(&host, TASKS);
    let nap = process.create_task("__main__", "nap", (0.3,), ()).unwrap();
    until("it naps", || host.stats()[0].queued == 0);
    let behind: Vec<_> = (0..100).map(|_| process.create_task("math", "sqrt", (4.0,), ()).unwrap()).collect();
    let remains = host.shutdown(Duration::ZERO);
    assert!(remains.cancelled >= 100 && remains.stuck.is_empty(), "{remains:?}");
    assert_eq!(nap.try_take().unwrap().unwrap(), Value::from("napped"));
    for reply in behind {
        assert!(matches!(reply.try_take().unwrap(), Err(TaskError::Cancelled)));
    }
}

#[test]
fn what_will_not_be_cancelled_is_abandoned() {
    let host = start();
    let process = with(&host, TASKS);
    let reply = process.create_task("__main__", "stubborn", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    let remains = host.shutdown(Duration::from_millis(10));
    assert_eq!((remains.cancelled, remains.abandoned, remains.stuck.len()), (1, 1, 0));
    assert!(matches!(reply.try_take().unwrap(), Err(TaskError::LoopGone)));
}

#[test]
fn a_call_that_never_returns_is_interrupted() {
    let host = start();
    let process = with(&host, TASKS);
    let spinning = process.create_task("__main__", "spin", (), ()).unwrap();
    until("it spins", || host.stats()[0].queued == 0);
    let behind = process.create_task("math", "sqrt", (4.0,), ()).unwrap();
    let remains = host.shutdown(Duration::from_millis(10));
    assert!(remains.stuck.is_empty(), "{remains:?}");
    let error = spinning.try_take().unwrap().unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "pelton._host.Interrupted");
    assert!(matches!(behind.try_take().unwrap(), Err(TaskError::Cancelled | TaskError::LoopGone)));
}

#[test]
fn dropping_the_last_handle_ends_the_host() {
    let turn = turn();
    let host = Host::start(Config::new()).unwrap();
    let process = with(&host, TASKS);
    let reply = process.create_task("__main__", "long", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    drop(host);
    assert!(matches!(reply.try_take().unwrap(), Err(TaskError::Cancelled | TaskError::LoopGone)));
    assert!(process.create_task("__main__", "short", (), ()).is_err());
    drop(turn);
}

#[test]
fn callers_that_race_a_shutdown_all_hear_something() {
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
                                    // Whatever it is, it is something.
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
            until("all are at it", || host.stats().iter().map(|stats| stats.tasks).sum::<u64>() > 50);
            host.shutdown(Duration::from_millis(round as u64 % 3));
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        assert!(counts.iter().all(|(_, refused)| *refused == 10));
    }
}

#[test]
fn a_stream_ends_with_the_host() {
    let host = start();
    let process = with(
        &host,
        "import asyncio\nasync def ticks():\n    while True:\n        yield 1\n        await asyncio.sleep(0.001)",
    );
    let mut stream = process.stream(Call::new("__main__", "ticks"), 4).unwrap();
    assert_eq!(stream.next().unwrap().unwrap(), Value::Int(1));
    host.shutdown(Duration::ZERO);
    let last = stream.by_ref().last().unwrap();
    assert!(matches!(last, Err(TaskError::Cancelled | TaskError::LoopGone)), "{last:?}");
    assert!(stream.next().is_none());
}
