//! Namespaces, streams, threads for what blocks, and what is stuck.

#![cfg(feature = "embed")]

mod host_support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use host_support::{LONG, start, start_with, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, Process, Stall, TaskError};

#[test]
fn what_is_defined_in_a_namespace_stays_there() {
    let host = start();
    let process = with(
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
        let outcome = process.run("__main__", "tracked_call", (42,), ()).unwrap();
        assert_eq!(outcome.get("call_number"), Some(&Value::Int(number)));
    }
    assert_eq!(
        wait(process.eval("call_count, __name__").unwrap()).unwrap().as_slice().unwrap()[1],
        Value::from("__main__")
    );
    assert_eq!(process.run("__main__", "len", ("abc",), ()).unwrap(), Value::Int(3), "built-in functions are there");
}

#[test]
fn others_cannot_see_it() {
    let host = start_with(Config::new().loops(2));
    let processes: Vec<Process> = (0..5).map(|_| host.process()).collect();
    for (number, process) in processes.iter().enumerate() {
        wait(process.exec(format!("my_id = {number}")).unwrap()).unwrap();
    }
    for (number, process) in (0..).zip(&processes) {
        assert_eq!(wait(process.eval("my_id").unwrap()).unwrap(), Value::Int(number));
    }
    for outsider in [host.process().eval("my_id").unwrap(), host.create_task("__main__", "my_id", (), ()).unwrap()] {
        assert!(wait(outsider).is_err());
    }
}

fn count_marks(host: &Host) -> i64 {
    host.run("gc", "collect", (), ()).unwrap();
    let process = host.process();
    let count = "sum(1 for o in __import__('gc').get_objects() if type(o).__name__ == 'PeltonMark')";
    wait(process.eval(count).unwrap()).unwrap().as_int().unwrap()
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
fn a_namespace_is_freed_when_nobody_has_it_any_more() {
    let host = start();
    let process = with(&host, MARKED);
    let copy = process.clone();
    drop(process);
    assert_eq!(copy.run("__main__", "waits", (), ()).unwrap(), Value::from("PeltonMark"));
    assert_eq!(count_marks(&host), 1);
    drop(copy);
    assert_eq!(count_marks(&host), 0);
    // Without anything in it that only the collector could free, it goes at once.
    let process = with(&host, "import weakref\nclass Thing: pass\nthing = Thing()\ndef f(): return thing");
    wait(process.exec("import builtins; builtins.pelton_watch = weakref.ref(thing); del Thing").unwrap()).unwrap();
    host.run("gc", "disable", (), ()).unwrap();
    drop(process);
    let gone = wait(host.process().eval("pelton_watch() is None").unwrap()).unwrap();
    host.run("gc", "enable", (), ()).unwrap();
    assert_eq!(gone, Value::Bool(true));
}

#[test]
fn a_namespace_dropped_during_a_task_lives_as_long_as_the_task() {
    let host = start();
    let process = with(&host, MARKED);
    let reply = process.create_task("__main__", "waits", (), ()).unwrap();
    let queued = process.eval("type(mark).__name__").unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    drop(process);
    assert_eq!(wait(queued).unwrap(), Value::from("PeltonMark"), "what was submitted before still finds it");
    assert_eq!(wait(reply).unwrap(), Value::from("PeltonMark"));
    assert_eq!(count_marks(&host), 0);
}

#[test]
fn ten_thousand_namespaces_live_at_once() {
    let host = start();
    let processes: Vec<Process> = (0..10_000).map(|_| host.process()).collect();
    let replies: Vec<_> = (0..)
        .zip(&processes)
        .map(|(number, process): (i64, _)| process.exec(format!("n = {number}")).unwrap())
        .collect();
    for reply in replies {
        wait(reply).unwrap();
    }
    let replies: Vec<_> = processes.iter().map(|process| process.eval("n").unwrap()).collect();
    for (number, reply) in (0..).zip(replies) {
        assert_eq!(wait(reply).unwrap(), Value::Int(number));
    }
    until("they are counted", || host.stats()[0].namespaces == 10_000);
    drop(processes);
    host.run("math", "sqrt", (1.0,), ()).unwrap();
    until("they are gone", || host.stats()[0].namespaces == 0);
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
    let process = with(&host, STREAMS);
    for function in ["numbers", "later"] {
        let stream = process.stream(Call::new("__main__", function).arg(1_000), 16).unwrap();
        let items: Vec<i64> = stream.map(|item| item.unwrap().as_int().unwrap()).collect();
        assert_eq!(items, (0..1_000).collect::<Vec<i64>>(), "{function}");
    }
    for function in ["makes", "plain"] {
        assert_eq!(process.stream(Call::new("__main__", function), 1).unwrap().count(), 3, "{function}");
    }
    let items: Vec<_> = process.stream(Call::new("__main__", "fails"), 4).unwrap().collect();
    assert_eq!(items.len(), 2);
    assert_eq!(items[1].as_ref().unwrap_err().exception().unwrap().message(), "after one");
    let items: Vec<_> = process.stream(Call::new("__main__", "cannot_be_said"), 4).unwrap().collect();
    assert!(items[0].is_ok() && items[1].is_err() && items.len() == 2, "{items:?}");
    let items: Vec<_> = process.stream(Call::new("__main__", "len").arg("a"), 4).unwrap().collect();
    assert!(items.len() == 1 && items[0].is_err(), "what is no iterable is an error: {items:?}");
    let mut stream = process.stream(Call::new("__main__", "later").arg(5), 2).unwrap();
    let mut sum = 0;
    futures::executor::block_on(async {
        while let Some(item) = stream.next_item().await {
            sum += item.unwrap().as_int().unwrap();
        }
    });
    assert_eq!(sum, 10);
}

#[test]
fn a_generator_runs_ahead_by_its_credit_and_no_further() {
    let host = start();
    let process = with(&host, STREAMS);
    for function in ["numbers", "later"] {
        wait(process.exec("produced = 0").unwrap()).unwrap();
        let mut stream = process.stream(Call::new("__main__", function).arg(1_000_000), 10).unwrap();
        let produced = || wait(process.eval("produced").unwrap()).unwrap().as_int().unwrap();
        until("it is ahead", || produced() == 10);
        for _ in 0..100 {
            assert_eq!(produced(), 10, "{function}: and it stays there");
        }
        for number in 0..50 {
            assert_eq!(stream.next().unwrap().unwrap(), Value::Int(number));
        }
        assert!(produced() <= 60, "{function}: {}", produced());
        wait(process.exec("closed.clear()").unwrap()).unwrap();
        drop(stream);
        until("it is closed", || wait(process.eval("closed").unwrap()).unwrap() == Value::from(vec![function]));
    }
}

#[test]
fn a_stream_can_be_cancelled() {
    let host = start();
    let process = with(&host, STREAMS);
    let mut stream = process.stream(Call::new("__main__", "stuck"), 4).unwrap();
    assert_eq!(stream.next().unwrap().unwrap(), Value::Int(1));
    assert!(stream.next_timeout(Duration::from_millis(5)).is_none(), "there is none yet");
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
fn a_function_that_blocks_can_go_to_another_thread() {
    let host = start();
    let process = with(&host, BLOCKING);
    let begun = Instant::now();
    let naps: Vec<_> =
        (0..4).map(|_| process.submit(Call::new("__main__", "nap").arg(0.2).on_worker()).unwrap()).collect();
    let mut turns = 0;
    while host.stats()[0].on_workers > 0 || turns == 0 {
        host.run("math", "sqrt", (1.0,), ()).unwrap();
        turns += 1;
    }
    assert!(turns > 10, "the loop goes on meanwhile");
    for nap in naps {
        wait(nap).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_millis(700), "and they ran side by side");
    let elsewhere = wait(process.submit(Call::new("__main__", "ident").on_worker()).unwrap()).unwrap();
    let here = process.run("__main__", "ident", (), ()).unwrap();
    assert_ne!(elsewhere, here);
    let coroutine = wait(process.submit(Call::new("__main__", "there").on_worker()).unwrap()).unwrap();
    assert_eq!(coroutine, here, "what is to be awaited is awaited on the loop");
    let keywords = Call::new("builtins", "int").arg("ff").keyword("base", 16).on_worker();
    assert_eq!(wait(host.submit(keywords).unwrap()).unwrap(), Value::Int(255));
    let error = wait(host.submit(Call::new("builtins", "int").arg("x").on_worker()).unwrap()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "ValueError");
    let stream = process.stream(Call::new("builtins", "range").arg(5).on_worker(), 2).unwrap();
    assert_eq!(stream.count(), 5);
}

#[test]
fn an_interrupt_that_comes_too_late_is_nobody_elses() {
    let host = start();
    let process = with(&host, "def turns(): return sum(1 for _ in range(1_000))");
    // No Python code of its own in which it could be raised.
    let reply = host.submit(Call::new("time", "sleep").arg(0.2)).unwrap();
    until("it is interrupted", || reply.interrupt());
    assert_eq!(wait(reply).unwrap(), Value::None);
    for _ in 0..3 {
        assert_eq!(wait(process.create_task("__main__", "turns", (), ()).unwrap()).unwrap(), Value::Int(1_000));
    }
}

#[test]
fn what_is_stuck_can_be_interrupted() {
    let host = start();
    let process = with(&host, BLOCKING);
    for call in [
        Call::new("__main__", "spin"),
        Call::new("__main__", "careful"),
        Call::new("__main__", "spin_later"),
        Call::new("__main__", "spin").on_worker(),
    ] {
        let name = call.name().into_owned();
        let reply = process.submit(call).unwrap();
        until("it runs and is interrupted", || reply.interrupt());
        let error = wait(reply).unwrap_err();
        assert_eq!(error.exception().unwrap().type_name(), "pelton._host.Interrupted", "{name}");
        assert_eq!(process.run("math", "sqrt", (4.0,), ()).unwrap(), Value::Float(2.0), "nobody else is harmed");
    }
    let over = process.create_task("math", "sqrt", (4.0,), ()).unwrap();
    until("it is done", || host.stats()[0].queued == 0);
    assert!(!over.interrupt(), "what does not run cannot be interrupted");
    assert_eq!(wait(over).unwrap(), Value::Float(2.0));
}

#[test]
fn a_callback_that_blocks_is_reported_while_it_does() {
    let stalls: Arc<Mutex<Vec<Stall>>> = Arc::default();
    let told = stalls.clone();
    let config = Config::new().stall(Duration::from_millis(50)).on_stall(move |stall| {
        told.lock().unwrap().push(stall.clone());
    });
    let host = start_with(config);
    let process = with(&host, BLOCKING);
    let reply = process.create_task("__main__", "spin", (), ()).unwrap();
    until("it is reported", || !stalls.lock().unwrap().is_empty());
    let stall = stalls.lock().unwrap()[0].clone();
    assert!(stall.traceback().contains("in spin"), "{}", stall.traceback());
    assert!(stall.time() >= Duration::from_millis(50));
    assert_eq!(stall.loop_index(), 0);
    until("it is interrupted", || reply.interrupt());
    wait(reply).unwrap_err();
    stalls.lock().unwrap().clear();
    // A loop that sleeps is not stuck.
    let start = Instant::now();
    until("some time has passed", || start.elapsed() > Duration::from_millis(300));
    assert!(stalls.lock().unwrap().is_empty());
}
