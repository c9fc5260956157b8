//! Namespaces, streams, worker threads, and stuck code.

#![cfg(feature = "embed")]

mod host_support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use host_support::{LONG, start, start_with, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, Namespace, Stall, TaskError};

#[test]
fn definitions_persist_in_a_namespace() {
    let host = start();
    let namespace = with(
        &host,
        "
call_count = 0

async def tracked_call(x):
    global call_count
    call_count += 1
    return {'result': x, 'call_number': call_count}
",
    );
    for number in 1..4 {
        let outcome = namespace.run("__main__", "tracked_call", (42,), ()).unwrap();
        assert_eq!(outcome.get("call_number"), Some(&Value::Int(number)));
    }
    assert_eq!(
        wait(namespace.eval("call_count, __name__").unwrap()).unwrap().as_slice().unwrap()[1],
        Value::from("__main__")
    );
    assert_eq!(
        namespace.run("__main__", "len", ("abc",), ()).unwrap(),
        Value::Int(3),
        "built-in functions are available"
    );
}

#[test]
fn definitions_are_not_visible_to_others() {
    let host = start_with(Config::new().loops(2));
    let namespaces: Vec<Namespace> = (0..5).map(|_| host.namespace()).collect();
    for (number, namespace) in namespaces.iter().enumerate() {
        wait(namespace.exec(format!("my_id = {number}")).unwrap()).unwrap();
    }
    for (number, namespace) in (0..).zip(&namespaces) {
        assert_eq!(wait(namespace.eval("my_id").unwrap()).unwrap(), Value::Int(number));
    }
    for outsider in [host.namespace().eval("my_id").unwrap(), host.create_task("__main__", "my_id", (), ()).unwrap()] {
        assert!(wait(outsider).is_err());
    }
}

fn count_marks(host: &Host) -> i64 {
    host.run("gc", "collect", (), ()).unwrap();
    let namespace = host.namespace();
    let count = "sum(1 for o in __import__('gc').get_objects() if type(o).__name__ == 'PeltonMark')";
    wait(namespace.eval(count).unwrap()).unwrap().as_int().unwrap()
}

const MARKED: &str = "
import asyncio
class PeltonMark: pass
mark = PeltonMark()
mark.friend = [mark]
def plain(): return mark
async def waits():
    await asyncio.sleep(0.05)
    return type(mark).__name__
";

#[test]
fn a_namespace_is_freed_with_its_last_handle() {
    let host = start();
    let namespace = with(&host, MARKED);
    let copy = namespace.clone();
    drop(namespace);
    assert_eq!(copy.run("__main__", "waits", (), ()).unwrap(), Value::from("PeltonMark"));
    assert_eq!(count_marks(&host), 1);
    drop(copy);
    assert_eq!(count_marks(&host), 0);
    // Without cycles that only the collector could free, it is freed at once.
    let namespace = with(&host, "import weakref\nclass Thing: pass\nthing = Thing()\ndef f(): return thing");
    wait(namespace.exec("import builtins; builtins.pelton_watch = weakref.ref(thing); del Thing").unwrap()).unwrap();
    host.run("gc", "disable", (), ()).unwrap();
    drop(namespace);
    let gone = wait(host.namespace().eval("pelton_watch() is None").unwrap()).unwrap();
    host.run("gc", "enable", (), ()).unwrap();
    assert_eq!(gone, Value::Bool(true));
}

#[test]
fn a_namespace_dropped_during_a_task_lives_as_long_as_the_task() {
    let host = start();
    let namespace = with(&host, MARKED);
    let reply = namespace.create_task("__main__", "waits", (), ()).unwrap();
    let queued = namespace.eval("type(mark).__name__").unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    drop(namespace);
    assert_eq!(wait(queued).unwrap(), Value::from("PeltonMark"), "tasks submitted before still find it");
    assert_eq!(wait(reply).unwrap(), Value::from("PeltonMark"));
    assert_eq!(count_marks(&host), 0);
}

#[test]
fn ten_thousand_namespaces_live_at_once() {
    let host = start();
    let namespaces: Vec<Namespace> = (0..10_000).map(|_| host.namespace()).collect();
    let replies: Vec<_> = (0..)
        .zip(&namespaces)
        .map(|(number, namespace): (i64, _)| namespace.exec(format!("n = {number}")).unwrap())
        .collect();
    for reply in replies {
        wait(reply).unwrap();
    }
    let replies: Vec<_> = namespaces.iter().map(|namespace| namespace.eval("n").unwrap()).collect();
    for (number, reply) in (0..).zip(replies) {
        assert_eq!(wait(reply).unwrap(), Value::Int(number));
    }
    until("they are all counted", || host.stats()[0].namespaces == 10_000);
    drop(namespaces);
    host.run("math", "sqrt", (1.0,), ()).unwrap();
    until("they are freed", || host.stats()[0].namespaces == 0);
}

const STREAMS: &str = "
import asyncio
produced = 0
closed = []

def numbers(count):
    global produced
    try:
        for number in range(count):
            produced += 1
            yield number
    finally:
        closed.append('numbers')

async def later(count):
    global produced
    try:
        for number in range(count):
            await asyncio.sleep(0)
            produced += 1
            yield number
    finally:
        closed.append('later')

async def fails():
    yield 1
    raise ValueError('after one')

def cannot_be_said():
    yield 1
    yield 'half \\udc80'

async def stuck():
    yield 1
    await asyncio.sleep(3600)

async def makes(): return later(3)
def plain(): return [1, 2, 3]
";

#[test]
fn generators_are_streamed_to_their_end() {
    let host = start();
    let namespace = with(&host, STREAMS);
    for function in ["numbers", "later"] {
        let stream = namespace.stream(Call::new("__main__", function).arg(1_000), 16).unwrap();
        let items: Vec<i64> = stream.map(|item| item.unwrap().as_int().unwrap()).collect();
        assert_eq!(items, (0..1_000).collect::<Vec<i64>>(), "{function}");
    }
    for function in ["makes", "plain"] {
        assert_eq!(namespace.stream(Call::new("__main__", function), 1).unwrap().count(), 3, "{function}");
    }
    let items: Vec<_> = namespace.stream(Call::new("__main__", "fails"), 4).unwrap().collect();
    assert_eq!(items.len(), 2);
    assert_eq!(items[1].as_ref().unwrap_err().exception().unwrap().message(), "after one");
    let items: Vec<_> = namespace.stream(Call::new("__main__", "cannot_be_said"), 4).unwrap().collect();
    assert!(items[0].is_ok() && items[1].is_err() && items.len() == 2, "{items:?}");
    let items: Vec<_> = namespace.stream(Call::new("__main__", "len").arg("a"), 4).unwrap().collect();
    assert!(items.len() == 1 && items[0].is_err(), "an object that is not iterable is an error: {items:?}");
    let mut stream = namespace.stream(Call::new("__main__", "later").arg(5), 2).unwrap();
    let mut sum = 0;
    futures::executor::block_on(async {
        while let Some(item) = stream.next_item().await {
            sum += item.unwrap().as_int().unwrap();
        }
    });
    assert_eq!(sum, 10);
}

#[test]
fn a_generator_runs_ahead_by_at_most_its_credit() {
    let host = start();
    let namespace = with(&host, STREAMS);
    for function in ["numbers", "later"] {
        wait(namespace.exec("produced = 0").unwrap()).unwrap();
        let mut stream = namespace.stream(Call::new("__main__", function).arg(1_000_000), 10).unwrap();
        let produced = || wait(namespace.eval("produced").unwrap()).unwrap().as_int().unwrap();
        until("it has used its credit", || produced() == 10);
        for _ in 0..100 {
            assert_eq!(produced(), 10, "{function}: it waits for credit");
        }
        for number in 0..50 {
            assert_eq!(stream.next().unwrap().unwrap(), Value::Int(number));
        }
        assert!(produced() <= 60, "{function}: {}", produced());
        wait(namespace.exec("closed.clear()").unwrap()).unwrap();
        drop(stream);
        until("the generator is closed", || {
            wait(namespace.eval("closed").unwrap()).unwrap() == Value::from(vec![function])
        });
    }
}

#[test]
fn a_stream_can_be_cancelled() {
    let host = start();
    let namespace = with(&host, STREAMS);
    let mut stream = namespace.stream(Call::new("__main__", "stuck"), 4).unwrap();
    assert_eq!(stream.next().unwrap().unwrap(), Value::Int(1));
    assert!(stream.next_timeout(Duration::from_millis(5)).is_none(), "no item yet");
    stream.cancel();
    assert!(matches!(stream.next_timeout(LONG), Some(Some(Err(TaskError::Cancelled)))));
    assert!(stream.next().is_none());
}

const BLOCKING: &str = "
import asyncio, time, threading
def nap(seconds):
    time.sleep(seconds)
    return threading.current_thread().name
def spin():
    while True: pass
async def spin_later():
    await asyncio.sleep(0.001)
    while True: pass
def careful():
    while True:
        try:
            while True: pass
        except Exception: pass
def ident(): return threading.get_ident()
async def there():
    await asyncio.sleep(0)
    return threading.get_ident()
";

#[test]
fn blocking_functions_run_on_worker_threads() {
    let host = start();
    let namespace = with(&host, BLOCKING);
    let begun = Instant::now();
    let naps: Vec<_> =
        (0..4).map(|_| namespace.submit(Call::new("__main__", "nap").arg(0.2).on_worker()).unwrap()).collect();
    let mut turns = 0;
    while host.stats()[0].on_workers > 0 || turns == 0 {
        host.run("math", "sqrt", (1.0,), ()).unwrap();
        turns += 1;
    }
    assert!(turns > 10, "the loop keeps running");
    for nap in naps {
        wait(nap).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_millis(700), "they ran in parallel");
    let elsewhere = wait(namespace.submit(Call::new("__main__", "ident").on_worker()).unwrap()).unwrap();
    let here = namespace.run("__main__", "ident", (), ()).unwrap();
    assert_ne!(elsewhere, here);
    let coroutine = wait(namespace.submit(Call::new("__main__", "there").on_worker()).unwrap()).unwrap();
    assert_eq!(coroutine, here, "awaitables are awaited on the loop");
    let keywords = Call::new("builtins", "int").arg("ff").keyword("base", 16).on_worker();
    assert_eq!(wait(host.submit(keywords).unwrap()).unwrap(), Value::Int(255));
    let error = wait(host.submit(Call::new("builtins", "int").arg("x").on_worker()).unwrap()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "ValueError");
    let stream = namespace.stream(Call::new("builtins", "range").arg(5).on_worker(), 2).unwrap();
    assert_eq!(stream.count(), 5);
}

#[test]
fn a_late_interrupt_affects_no_other_task() {
    let host = start();
    let namespace = with(&host, "def turns(): return sum(1 for _ in range(1_000))");
    // `time.sleep` runs no Python code in which the exception could be raised.
    let reply = host.submit(Call::new("time", "sleep").arg(0.2)).unwrap();
    until("it is interrupted", || reply.interrupt());
    assert_eq!(wait(reply).unwrap(), Value::None);
    for _ in 0..3 {
        assert_eq!(wait(namespace.create_task("__main__", "turns", (), ()).unwrap()).unwrap(), Value::Int(1_000));
    }
}

#[test]
fn stuck_tasks_can_be_interrupted() {
    let host = start();
    let namespace = with(&host, BLOCKING);
    for call in [
        Call::new("__main__", "spin"),
        Call::new("__main__", "careful"),
        Call::new("__main__", "spin_later"),
        Call::new("__main__", "spin").on_worker(),
    ] {
        let name = call.name().into_owned();
        let reply = namespace.submit(call).unwrap();
        until("it runs and is interrupted", || reply.interrupt());
        let error = wait(reply).unwrap_err();
        assert_eq!(error.exception().unwrap().type_name(), "pelton._host.Interrupted", "{name}");
        assert_eq!(namespace.run("math", "sqrt", (4.0,), ()).unwrap(), Value::Float(2.0), "no other task is affected");
    }
    let over = namespace.create_task("math", "sqrt", (4.0,), ()).unwrap();
    until("it is done", || host.stats()[0].queued == 0);
    assert!(!over.interrupt(), "a task that is not running cannot be interrupted");
    assert_eq!(wait(over).unwrap(), Value::Float(2.0));
}

#[test]
fn a_blocking_callback_is_reported_while_it_blocks() {
    let stalls: Arc<Mutex<Vec<Stall>>> = Arc::default();
    let told = stalls.clone();
    let config = Config::new().stall(Duration::from_millis(50)).on_stall(move |stall| {
        told.lock().unwrap().push(stall.clone());
    });
    let host = start_with(config);
    let namespace = with(&host, BLOCKING);
    let reply = namespace.create_task("__main__", "spin", (), ()).unwrap();
    until("it is reported", || !stalls.lock().unwrap().is_empty());
    let stall = stalls.lock().unwrap()[0].clone();
    assert!(stall.traceback().contains("in spin"), "{}", stall.traceback());
    assert!(stall.time() >= Duration::from_millis(50));
    assert_eq!(stall.loop_index(), 0);
    until("it is interrupted", || reply.interrupt());
    wait(reply).unwrap_err();
    stalls.lock().unwrap().clear();
    // A sleeping loop is not stuck.
    let start = Instant::now();
    until("some time has passed", || start.elapsed() > Duration::from_millis(300));
    assert!(stalls.lock().unwrap().is_empty());
}
