//! Cancelled tasks, timeouts, and dropped replies.

use std::time::{Duration, Instant};

use pelton_python::Value;
use pelton_python::host::{Call, TaskError};

use super::host_support::{LONG, start, until, wait, with};

#[test]
fn a_waiting_task_is_cancelled() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio
log = []
async def waits():
    log.append('began')
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        log.append('cancelled')
        raise
    finally:
        await asyncio.sleep(0.001)
        log.append('cleaned up')

async def stubborn():
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return 'no'
",
    );
    let reply = namespace.create_task("__main__", "waits", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    reply.cancel();
    assert!(matches!(wait(reply), Err(TaskError::Cancelled)));
    let log = wait(namespace.eval("log").unwrap()).unwrap();
    assert_eq!(log, Value::from(vec!["began", "cancelled", "cleaned up"]));

    let reply = namespace.create_task("__main__", "stubborn", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    reply.cancel();
    assert_eq!(wait(reply).unwrap(), Value::from("no"));
}

#[test]
fn cancel_on_drop_cancels_the_task() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio
log = []
async def waits(name):
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        log.append(name)
        raise
async def short():
    await asyncio.sleep(0.001)
    return 'done'
",
    );
    let task = |name: &str| namespace.create_task("__main__", "waits", (name,), ()).unwrap();
    let left_alone = task("left alone");
    let dropped = task("dropped").cancel_on_drop();
    let mut polled = Box::pin(task("polled").cancel_on_drop());
    let late = task("given back").cancel_on_drop().wait_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(futures::FutureExt::now_or_never(&mut polled).is_none());
    until("they wait", || host.stats()[0].waiting == 4);
    drop((left_alone, dropped, polled, late));
    until("three have ended", || host.stats()[0].waiting == 1);
    let log = wait(namespace.eval("sorted(log)").unwrap()).unwrap();
    assert_eq!(log, Value::from(vec!["dropped", "given back", "polled"]));
    // With an outcome there is nothing to cancel, however it was taken.
    let short = || namespace.create_task("__main__", "short", (), ()).unwrap().cancel_on_drop();
    assert_eq!(wait(short()).unwrap(), Value::from("done"));
    assert_eq!(futures::executor::block_on(short()).unwrap(), Value::from("done"));
}

#[test]
fn a_task_cancelled_before_its_start_never_starts() {
    let host = start();
    let namespace = with(&host, "import time\nran = []\ndef block(): time.sleep(0.2)\ndef note(): ran.append(1)");
    let blocking = namespace.create_task("__main__", "block", (), ()).unwrap();
    let reply = namespace.create_task("__main__", "note", (), ()).unwrap();
    reply.cancel();
    assert!(matches!(wait(reply), Err(TaskError::Cancelled)));
    wait(blocking).unwrap();
    assert_eq!(wait(namespace.eval("ran").unwrap()).unwrap(), Value::List(vec![]));
}

#[test]
fn cancelling_a_finished_task_affects_no_other() {
    let host = start();
    let mut kept = Vec::new();
    for _ in 0..200 {
        let reply = host.submit(Call::new("asyncio", "sleep").arg(0.0).arg(1)).unwrap();
        let other = host.submit(Call::new("asyncio", "sleep").arg(0.002).arg(2)).unwrap();
        std::thread::yield_now();
        reply.cancel();
        kept.push((reply, other));
    }
    for (reply, other) in kept {
        let outcome = wait(reply);
        assert!(matches!(outcome, Ok(Value::Int(1)) | Err(TaskError::Cancelled)), "{outcome:?}");
        assert_eq!(wait(other).unwrap(), Value::Int(2));
    }
}

#[test]
fn a_timeout_is_reported_at_once_and_the_task_is_cancelled() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio, time
ended = []
async def stubborn():
    try:
        await asyncio.sleep(3600)
    finally:
        try:
            await asyncio.sleep(0.05)
        finally:
            ended.append(1)
def block(): time.sleep(0.2)
",
    );
    let call = Call::new("__main__", "stubborn").timeout(Duration::from_millis(20));
    let start = Instant::now();
    assert!(matches!(wait(namespace.submit(call).unwrap()), Err(TaskError::TimedOut)));
    assert!(start.elapsed() >= Duration::from_millis(20), "not before the timeout");
    until("the task has ended", || wait(namespace.eval("len(ended)").unwrap()).unwrap() == Value::Int(1));

    let blocking = namespace.create_task("__main__", "block", (), ()).unwrap();
    let late = namespace.submit(Call::new("__main__", "stubborn").timeout(Duration::from_millis(1))).unwrap();
    assert!(matches!(wait(late), Err(TaskError::TimedOut)), "it never started");
    wait(blocking).unwrap();
    let in_time = Call::new("asyncio", "sleep").arg(0.001).arg(1).timeout(LONG);
    assert_eq!(wait(host.submit(in_time).unwrap()).unwrap(), Value::Int(1));
}

#[test]
fn wait_timeout_returns_the_reply_without_an_outcome() {
    let host = start();
    let reply = host.create_task("asyncio", "sleep", (0.05, "late"), ()).unwrap();
    let reply = reply.try_take().unwrap_err();
    let reply = reply.wait_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(wait(reply).unwrap(), Value::from("late"));
}

#[test]
fn dropping_a_reply_does_not_affect_its_task() {
    let host = start();
    let namespace =
        with(&host, "import asyncio\ndone = []\nasync def work():\n    await asyncio.sleep(0.001)\n    done.append(1)");
    for _ in 0..100 {
        drop(namespace.create_task("__main__", "work", (), ()).unwrap());
        namespace.spawn(Call::new("__main__", "work")).unwrap();
    }
    namespace.spawn(Call::new("__main__", "missing")).unwrap();
    until("all have run", || wait(namespace.eval("len(done)").unwrap()).unwrap() == Value::Int(200));
}
