//! Rust calls Python: what a call can return, what can go wrong, and that somebody is told exactly once.

#![cfg(feature = "embed")]

mod host_support;

use std::time::{Duration, Instant};

use host_support::{LONG, start, start_with, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, PartlyRefused, RefusalKind, Refused, StartError, TaskError};

#[test]
fn a_function_is_called_and_its_result_comes_back() {
    let host = start();
    let reply = host.create_task("math", "sqrt", (2.0,), ()).unwrap();
    assert_eq!(wait(reply).unwrap(), Value::Float(2.0f64.sqrt()));
    assert_eq!(host.run("builtins", "int", ("ff",), [("base", 16)]).unwrap(), Value::Int(255));
    assert_eq!(host.run("os.path", "join", ("a", "b"), ()).unwrap(), Value::from("a/b"));
    assert_eq!(host.run("builtins", "str.upper", ("a",), ()).unwrap(), Value::from("A"), "attributes are followed");
    assert!(host.shutdown(LONG).is_clean());
}

#[test]
fn many_arguments_go_over() {
    let host = start();
    let call = (0..100).fold(Call::new("builtins", "max"), |call, number| call.arg(number));
    assert_eq!(wait(host.submit(call).unwrap()).unwrap(), Value::Int(99));
    let process = with(&host, "def count(*args, **kwargs):\n    return [len(args), sorted(kwargs)]");
    let call = (0..20).fold(Call::new("__main__", "count"), |call, number| call.arg(number));
    let call = call.keyword("b", 1).keyword("a", 2);
    let expected = Value::from(vec![Value::from(20), Value::from(vec!["a", "b"])]);
    assert_eq!(wait(process.submit(call).unwrap()).unwrap(), expected);
}

const KINDS: &str = "
import asyncio, types

def value(): return 1

async def coroutine(): return 2

async def sleeps():
    await asyncio.sleep(0.001)
    return 3

def done_future():
    future = asyncio.get_running_loop().create_future()
    future.set_result(4)
    return future

def future():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, future.set_result, 5)
    return future

def task():
    return asyncio.get_running_loop().create_task(sleeps())

class Awaitable:
    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return 6

@types.coroutine
def old():
    yield
    return 7

def generator():
    yield 8

async def asynchronous():
    yield 9

class Callable:
    async def __call__(self): return 10

callable_object = Callable()
";

#[test]
fn what_can_be_awaited_is_awaited_and_nothing_else() {
    let host = start();
    let process = with(&host, KINDS);
    for (function, expected) in [
        ("value", 1),
        ("coroutine", 2),
        ("sleeps", 3),
        ("done_future", 4),
        ("future", 5),
        ("task", 3),
        ("Awaitable", 6),
        ("old", 7),
        ("callable_object", 10),
    ] {
        assert_eq!(process.run("__main__", function, (), ()).unwrap(), Value::Int(expected), "{function}");
    }
    for function in ["generator", "asynchronous"] {
        let object = process.run("__main__", function, (), ()).unwrap();
        assert!(object.as_object().is_some(), "{function} is handed over as an object");
    }
    assert_eq!(wait(process.eval("coroutine()").unwrap()).unwrap(), Value::Int(2), "an expression too");
}

#[test]
fn a_coroutine_is_a_real_task_from_its_first_line_on() {
    let host = start();
    let process = with(
        &host,
        "
import asyncio

async def at_once():
    return asyncio.current_task() is not None and asyncio.current_task() in asyncio.all_tasks()

async def groups():
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        children = [group.create_task(asyncio.sleep(0.001, number)) for number in range(3)]
    return [child.result() for child in children]

async def overruns():
    async with asyncio.timeout(0.001):
        await asyncio.sleep(60)

async def after():
    return asyncio.current_task() is not None and len(asyncio.all_tasks())
",
    );
    assert_eq!(process.run("__main__", "at_once", (), ()).unwrap(), Value::Bool(true));
    assert_eq!(process.run("__main__", "groups", (), ()).unwrap(), Value::from(vec![0, 1, 2]));
    let error = process.run("__main__", "overruns", (), ()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "TimeoutError");
    assert_eq!(process.run("__main__", "after", (), ()).unwrap(), Value::Int(1), "none is left behind");
}

#[test]
fn a_call_can_be_awaited_by_rust() {
    let host = start();
    let both = async {
        let one = host.create_task("asyncio", "sleep", (0.001, 1), ()).unwrap();
        let other = host.create_task("math", "sqrt", (4.0,), ()).unwrap();
        (one.await.unwrap(), other.await.unwrap())
    };
    assert_eq!(futures::executor::block_on(both), (Value::Int(1), Value::Float(2.0)));
}

const ERRORS: &str = "
import asyncio

class Custom(Exception): pass
class Rude(Exception):
    def __str__(self): raise SystemExit(3)
class Base(BaseException): pass

def make(kind):
    return {
        'custom': Custom('what it says'),
        'rude': Rude(),
        'base': Base('base'),
        'exit': SystemExit(7),
        'interrupt': KeyboardInterrupt(),
        'generator': GeneratorExit(),
        'stop': StopAsyncIteration('s'),
        'surrogate': ValueError('half \\udc80 of a pair'),
        'cancelled': asyncio.CancelledError(),
    }[kind]

def at_once(kind): raise make(kind)
async def first_step(kind): raise make(kind)
async def later(kind):
    await asyncio.sleep(0.001)
    raise make(kind)
async def task_of_another(kind):
    return await asyncio.create_task(later(kind))
";

#[test]
fn whatever_is_raised_is_told_and_the_loop_goes_on() {
    let host = start();
    let process = with(&host, ERRORS);
    for kind in ["custom", "rude", "base", "exit", "interrupt", "generator", "stop", "surrogate"] {
        for function in ["at_once", "first_step", "later", "task_of_another"] {
            let error = wait(process.create_task("__main__", function, (kind,), ()).unwrap()).unwrap_err();
            let exception = error.exception().unwrap_or_else(|| panic!("{function}({kind}): {error:?}"));
            let expected = match kind {
                "custom" => "__main__.Custom",
                "rude" => "__main__.Rude",
                "base" => "__main__.Base",
                "exit" => "SystemExit",
                "interrupt" => "KeyboardInterrupt",
                "generator" => "GeneratorExit",
                "stop" => "StopAsyncIteration",
                _ => "ValueError",
            };
            assert_eq!(exception.type_name(), expected, "{function}({kind})");
            assert!(exception.traceback().contains(function), "{}", exception.traceback());
            assert!(exception.object().is_none());
            match kind {
                "custom" => assert_eq!(exception.message(), "what it says"),
                "surrogate" => assert_eq!(exception.message(), "half ? of a pair"),
                _ => {}
            }
            assert_eq!(process.run("math", "sqrt", (1.0,), ()).unwrap(), Value::Float(1.0), "the loop goes on");
        }
    }
    for function in ["first_step", "later"] {
        let outcome = process.run("__main__", function, ("cancelled",), ());
        assert!(matches!(outcome, Err(TaskError::Cancelled)), "{outcome:?}");
    }
}

#[test]
fn the_exception_itself_is_kept_on_request() {
    let host = start();
    let process = with(&host, ERRORS);
    for function in ["at_once", "later"] {
        let call = Call::new("__main__", function).arg("exit").keep_exception();
        let error = wait(process.submit(call).unwrap()).unwrap_err();
        let object = error.exception().unwrap().object().unwrap().clone();
        let code = process.run("builtins", "getattr", (Value::Object(object), Value::from("code")), ());
        assert_eq!(code.unwrap(), Value::Int(7));
    }
}

#[test]
fn names_may_be_of_any_length_and_wrong() {
    let host = start();
    let long = "n".repeat(100_000);
    for (module, function, expected) in [
        (long.clone(), "f".to_owned(), "ModuleNotFoundError"),
        ("math".to_owned(), long.clone(), "AttributeError"),
        ("no_such_module".to_owned(), "f".to_owned(), "ModuleNotFoundError"),
        ("math".to_owned(), String::new(), "AttributeError"),
        ("math".to_owned(), "pi".to_owned(), "TypeError"),
        (String::new(), "f".to_owned(), "ValueError"),
    ] {
        let error = wait(host.create_task(module.clone(), function.clone(), (), ()).unwrap()).unwrap_err();
        let name = error.exception().unwrap_or_else(|| panic!("{error:?}")).type_name().to_owned();
        assert_eq!(name, expected, "{:.20}.{:.20}", module, function);
    }
    let process = host.process();
    process.exec(format!("def {long}():\n    return 1")).unwrap().wait().unwrap();
    assert_eq!(process.run("__main__", long, (), ()).unwrap(), Value::Int(1));
    let error = process.run("__main__", "missing", (), ()).unwrap_err();
    assert_eq!(error.to_string(), "NameError: name 'missing' is not defined");
    let error = wait(process.exec("a = \0").unwrap()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "ValueError");
    let error = wait(process.exec("def broken(:").unwrap()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "SyntaxError");
}

#[test]
fn data_that_cannot_be_converted_is_an_error_of_the_task() {
    let host = start();
    let process = with(
        &host,
        "
def cyclic():
    a = []
    a.append(a)
    return a

def deep(levels):
    value = 1
    for _ in range(levels): value = [value]
    return value

async def later(): return cyclic()
def text(): return 'half \\udc80'
def echo(value): return value
",
    );
    for (function, args) in
        [("cyclic", vec![]), ("deep", vec![Value::Int(100_000)]), ("later", vec![]), ("text", vec![])]
    {
        let outcome = wait(process.create_task("__main__", function, args, ()).unwrap());
        assert!(matches!(outcome, Err(TaskError::Conversion(_))), "{function}: {outcome:?}");
    }
    let deep = (0..1_500).fold(Value::Int(1), |value, _| Value::List(vec![value]));
    let outcome = wait(process.create_task("__main__", "echo", vec![deep], ()).unwrap());
    assert!(matches!(outcome, Err(TaskError::Conversion(_))), "{outcome:?}");
    // Far more than any stack has room for, and dropped on the loop, or here if it is not taken on.
    let deepest = || (0..1_000_000).fold(Value::Int(1), |value, _| Value::List(vec![value]));
    let call = || Call::new("__main__", "echo").keyword("value", deepest());
    for call in [call(), call().on_worker()] {
        let outcome = wait(process.submit(call).unwrap());
        assert!(matches!(outcome, Err(TaskError::Conversion(_))), "{outcome:?}");
    }
    let cancelled = process.submit(call().timeout(Duration::ZERO)).unwrap();
    assert!(matches!(wait(cancelled), Err(TaskError::TimedOut)));
    let unhashable = Value::Dict(vec![(Value::List(vec![]), Value::None)]);
    let outcome = wait(process.submit(Call::new("__main__", "echo").arg(1).arg(unhashable)).unwrap());
    assert!(
        matches!(&outcome, Err(TaskError::Conversion(error)) if error.path().starts_with("args[1]")),
        "{outcome:?}"
    );
    assert_eq!(process.run("__main__", "echo", ("fine",), ()).unwrap(), Value::from("fine"));
}

#[test]
fn a_result_can_stay_in_python() {
    let host = start();
    let list = wait(host.submit(Call::new("builtins", "list").arg(vec![1, 2]).as_object()).unwrap()).unwrap();
    let object = list.as_object().expect("an object, though it could be converted").clone();
    host.run("builtins", "list.append", (Value::Object(object.clone()), Value::from(3)), ()).unwrap();
    assert_eq!(host.run("builtins", "sum", (Value::Object(object.clone()),), ()).unwrap(), Value::Int(6));
    let count = wait(host.submit(Call::new("builtins", "len").arg(Value::Object(object))).unwrap()).unwrap();
    assert_eq!(count, Value::Int(3));
}

#[test]
fn arguments_are_let_go_of_when_the_call_has_been_made() {
    let host = start();
    let process = with(
        &host,
        "
import asyncio, weakref
class Thing: pass
def make():
    global watch
    thing = Thing()
    watch = weakref.ref(thing)
    return thing
async def forgets(thing):
    del thing
    await asyncio.sleep(3600)
",
    );
    for function in ["forgets", "id"] {
        let thing = process.run("__main__", "make", (), ()).unwrap();
        let kept = process.submit(Call::new("__main__", function).arg(thing)).unwrap();
        let gone = || wait(process.eval("watch() is None").unwrap()).unwrap() == Value::Bool(true);
        until("nobody has it, though somebody has the reply", gone);
        kept.cancel();
        drop(kept);
    }
}

#[test]
fn gather_gives_each_its_own_outcome() {
    let host = start();
    let outcomes = host.gather(vec![
        Call::new("math", "sqrt").arg(4.0),
        Call::new("math", "sqrt").arg(-1.0),
        Call::new("asyncio", "sleep").arg(0.001).arg("slept"),
        Call::new("math", "sqrt").arg("x"),
    ]);
    assert_eq!(*outcomes[0].as_ref().unwrap(), Value::Float(2.0));
    assert_eq!(outcomes[1].as_ref().unwrap_err().exception().unwrap().type_name(), "ValueError");
    assert_eq!(*outcomes[2].as_ref().unwrap(), Value::from("slept"));
    assert_eq!(outcomes[3].as_ref().unwrap_err().exception().unwrap().type_name(), "TypeError");
    assert!(host.gather(Vec::new()).is_empty());
}

#[test]
fn more_than_a_batch_at_once() {
    let host = start_with(Config::new().batch(7));
    let calls = (0..10_000).map(|number| Call::new("builtins", "int").arg(number)).collect();
    let outcomes = host.batch(calls).unwrap().wait();
    for (number, outcome) in (0..).zip(outcomes) {
        assert_eq!(outcome.unwrap(), Value::Int(number));
    }
}

#[test]
fn a_full_queue_gives_the_call_back() {
    let host = start_with(Config::new().queue_bound(10));
    let process = with(
        &host,
        "import builtins, threading\nheld = builtins.pelton_test_held = threading.Event()\ndef hold(): held.wait()",
    );
    let holding = process.create_task("__main__", "hold", (), ()).unwrap();
    until("the loop is held up", || host.stats()[0].queued == 0);
    let mut replies = Vec::new();
    let Refused { kind, call } = loop {
        match host.submit(Call::new("builtins", "len").arg("abc")) {
            Ok(reply) => replies.push(reply),
            Err(refused) => break refused,
        }
    };
    assert_eq!((kind, replies.len()), (RefusalKind::Full, 10));
    let PartlyRefused { rest, accepted, .. } = host.batch(vec![*call.clone(), *call.clone()]).unwrap_err();
    assert_eq!((rest.len(), accepted.wait().len()), (2, 0));
    release();
    wait(holding).unwrap();
    for reply in replies {
        assert_eq!(wait(reply).unwrap(), Value::Int(3));
    }
    assert_eq!(wait(host.submit(*call).unwrap()).unwrap(), Value::Int(3), "what came back can be handed in again");
}

/// Sets the event that holds up the loop, by Python code on this thread.
fn release() {
    use pyo3::prelude::*;
    Python::attach(|py| {
        let held = py.import("builtins").unwrap().getattr("pelton_test_held").unwrap();
        held.call_method0("set").unwrap();
    });
}

#[test]
fn a_task_that_waits_is_really_cancelled() {
    let host = start();
    let process = with(
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
    let reply = process.create_task("__main__", "waits", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    reply.cancel();
    assert!(matches!(wait(reply), Err(TaskError::Cancelled)));
    let log = wait(process.eval("log").unwrap()).unwrap();
    assert_eq!(log, Value::from(vec!["began", "cancelled", "cleaned up"]));

    let reply = process.create_task("__main__", "stubborn", (), ()).unwrap();
    until("it waits", || host.stats()[0].waiting == 1);
    reply.cancel();
    assert_eq!(wait(reply).unwrap(), Value::from("no"));
}

#[test]
fn a_reply_can_take_its_task_with_it() {
    let host = start();
    let process = with(
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
    let task = |name: &str| process.create_task("__main__", "waits", (name,), ()).unwrap();
    let left_alone = task("left alone");
    let dropped = task("dropped").cancel_on_drop();
    let mut polled = Box::pin(task("polled").cancel_on_drop());
    let late = task("given back").cancel_on_drop().wait_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(futures::FutureExt::now_or_never(&mut polled).is_none());
    until("they wait", || host.stats()[0].waiting == 4);
    drop((left_alone, dropped, polled, late));
    until("three are over", || host.stats()[0].waiting == 1);
    let log = wait(process.eval("sorted(log)").unwrap()).unwrap();
    assert_eq!(log, Value::from(vec!["dropped", "given back", "polled"]));
    // One that has its outcome has nothing to cancel, however it was had.
    let short = || process.create_task("__main__", "short", (), ()).unwrap().cancel_on_drop();
    assert_eq!(wait(short()).unwrap(), Value::from("done"));
    assert_eq!(futures::executor::block_on(short()).unwrap(), Value::from("done"));
}

#[test]
fn a_task_that_has_not_begun_never_does_if_cancelled() {
    let host = start();
    let process = with(&host, "import time\nran = []\ndef block(): time.sleep(0.2)\ndef note(): ran.append(1)");
    let blocking = process.create_task("__main__", "block", (), ()).unwrap();
    let reply = process.create_task("__main__", "note", (), ()).unwrap();
    reply.cancel();
    assert!(matches!(wait(reply), Err(TaskError::Cancelled)));
    wait(blocking).unwrap();
    assert_eq!(wait(process.eval("ran").unwrap()).unwrap(), Value::List(vec![]));
}

#[test]
fn a_cancelled_task_that_is_over_harms_no_other() {
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
fn time_that_is_over_is_told_at_once_and_the_task_cancelled() {
    let host = start();
    let process = with(
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
    assert!(matches!(wait(process.submit(call).unwrap()), Err(TaskError::TimedOut)));
    assert!(start.elapsed() >= Duration::from_millis(20), "not before its time");
    until("the task has ended", || wait(process.eval("len(ended)").unwrap()).unwrap() == Value::Int(1));

    let blocking = process.create_task("__main__", "block", (), ()).unwrap();
    let late = process.submit(Call::new("__main__", "stubborn").timeout(Duration::from_millis(1))).unwrap();
    assert!(matches!(wait(late), Err(TaskError::TimedOut)), "it never began");
    wait(blocking).unwrap();
    let in_time = Call::new("asyncio", "sleep").arg(0.001).arg(1).timeout(LONG);
    assert_eq!(wait(host.submit(in_time).unwrap()).unwrap(), Value::Int(1));
}

#[test]
fn a_reply_that_is_not_there_in_time_is_given_back() {
    let host = start();
    let reply = host.create_task("asyncio", "sleep", (0.05, "late"), ()).unwrap();
    let reply = reply.try_take().unwrap_err();
    let reply = reply.wait_timeout(Duration::from_millis(1)).unwrap_err();
    assert_eq!(wait(reply).unwrap(), Value::from("late"));
}

#[test]
fn callers_that_vanish_leave_their_tasks_alone() {
    let host = start();
    let process =
        with(&host, "import asyncio\ndone = []\nasync def work():\n    await asyncio.sleep(0.001)\n    done.append(1)");
    for _ in 0..100 {
        drop(process.create_task("__main__", "work", (), ()).unwrap());
        process.spawn(Call::new("__main__", "work")).unwrap();
    }
    process.spawn(Call::new("__main__", "missing")).unwrap();
    until("all have run", || wait(process.eval("len(done)").unwrap()).unwrap() == Value::Int(200));
}

#[test]
fn a_reload_is_seen_by_the_next_call() {
    let directory = std::env::temp_dir().join(format!("pelton-reload-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("pelton_reloaded.py");
    std::fs::write(&file, "def answer(): return 1\n").unwrap();
    let host = start_with(Config::new().path(&directory));
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::Int(1));
    std::fs::write(&file, "def answer(): return 'changed'\n").unwrap();
    host.run("importlib", "invalidate_caches", (), ()).unwrap();
    host.reload("pelton_reloaded").unwrap();
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::from("changed"));
    // And so is whatever Python code puts in its place.
    let process = host.process();
    let replace = "import sys, types\nnew = types.ModuleType('pelton_reloaded')\nnew.answer = lambda: 3\n\
                   sys.modules['pelton_reloaded'] = new";
    process.exec(replace).unwrap().wait().unwrap();
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::Int(3));
    process.exec("new.answer = lambda: 4").unwrap().wait().unwrap();
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::Int(4));
    assert!(host.reload("no_such_module").is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn settings_that_make_no_sense_are_refused_and_there_is_one_host() {
    let host = start();
    assert!(matches!(Host::start(Config::new()), Err(StartError::AlreadyRunning)));
    assert!(matches!(Host::start(Config::new().loops(0)), Err(StartError::Setting(_))));
    host.shutdown(LONG);
    let again = Host::start(Config::new()).unwrap();
    assert_eq!(again.run("math", "sqrt", (1.0,), ()).unwrap(), Value::Float(1.0));
    let error = Host::start(Config::new().environment("/no/such/place"));
    assert!(matches!(error, Err(StartError::AlreadyRunning)));
    drop(again);
    let error = Host::start(Config::new().environment("/no/such/place")).unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");
    assert!(Host::start(Config::new()).is_ok(), "a failed start leaves nothing behind");
}

#[test]
fn recursion_in_c_has_as_much_stack_as_on_the_main_thread() {
    let host = start();
    let process = with(
        &host,
        "
import sys, threading
def levels(count):
    # Sorting takes some kilobytes of stack, and calls the key.
    return 0 if count == 0 else sorted([count - 1], key=lambda below: levels(below))[0] + 1
def deep():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return levels(1_200)
    except RecursionError:
        return 1_200
    finally:
        sys.setrecursionlimit(before)
",
    );
    for call in [Call::new("__main__", "deep"), Call::new("__main__", "deep").on_worker()] {
        assert_eq!(wait(process.submit(call).unwrap()).unwrap(), Value::Int(1_200));
    }
    drop(host);
    assert!(matches!(Host::start(Config::new().stack_size(1 << 10)), Err(StartError::Setting(_))));
}

#[test]
fn a_virtual_environment_is_used() {
    let directory = std::env::temp_dir().join(format!("pelton-environment-{}", std::process::id()));
    let ask = |host: &Host, expression: &'static str| {
        let process = with(host, "import os, sys");
        wait(process.eval(expression).unwrap()).unwrap().as_str().unwrap().to_owned()
    };
    let host = start();
    let program = ask(&host, "'{}/bin/python{}.{}'.format(sys.base_prefix, *sys.version_info)");
    let library = ask(&host, "'python{}.{}'.format(*sys.version_info)");
    let keep = "sys.kept_by_test = (sys.path[:], sys.prefix, sys.exec_prefix, sys.executable)";
    wait(with(&host, "import sys").exec(keep).unwrap()).unwrap();
    host.shutdown(LONG);
    let made = std::process::Command::new(&program).args(["-m", "venv", "--without-pip"]).arg(&directory).status();
    assert!(made.unwrap().success(), "{program} makes environments");
    let packages = directory.join("lib").join(library).join("site-packages");
    std::fs::create_dir(directory.join("elsewhere")).unwrap();
    for (file, text) in [
        (packages.join("pelton_in_environment.py"), "def answer(): return 42\n"),
        (packages.join("pelton_elsewhere.pth"), directory.join("elsewhere").to_str().unwrap()),
        (directory.join("elsewhere/pelton_elsewhere.py"), "def answer(): return 43\n"),
    ] {
        std::fs::write(file, text).unwrap();
    }

    let next = Host::start(Config::new().environment(&directory)).unwrap();
    assert_eq!(next.run("pelton_in_environment", "answer", (), ()).unwrap(), Value::Int(42));
    assert_eq!(next.run("pelton_elsewhere", "answer", (), ()).unwrap(), Value::Int(43), "named in a .pth file");
    assert_eq!(ask(&next, "sys.prefix"), directory.to_str().unwrap());
    assert_eq!(ask(&next, "os.environ['VIRTUAL_ENV']"), directory.to_str().unwrap());
    let process = with(&next, "import sys, os");
    wait(process.exec("sys.path[:], sys.prefix, sys.exec_prefix, sys.executable = sys.kept_by_test").unwrap()).unwrap();
    wait(process.exec("del os.environ['VIRTUAL_ENV']").unwrap()).unwrap();
    assert!(next.run("pelton_elsewhere", "answer", (), ()).is_ok(), "what was imported stays");
    next.shutdown(LONG);

    // One of another Python is refused, by name.
    let settings = std::fs::read_to_string(directory.join("pyvenv.cfg")).unwrap();
    let others = settings.lines().map(|line| if line.starts_with("version") { "version = 2.7.18" } else { line });
    std::fs::write(directory.join("pyvenv.cfg"), others.collect::<Vec<_>>().join("\n")).unwrap();
    let error = Host::start(Config::new().environment(&directory)).unwrap_err();
    assert!(error.to_string().contains("made for Python 2.7.18"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn arguments_and_paths_are_what_was_set() {
    let host = start_with(Config::new().arguments(["program", "-x"]).path("/somewhere").path("/else"));
    let process = with(&host, "import sys");
    assert_eq!(wait(process.eval("sys.argv").unwrap()).unwrap(), Value::from(vec!["program", "-x"]));
    assert_eq!(wait(process.eval("sys.path[:2]").unwrap()).unwrap(), Value::from(vec!["/somewhere", "/else"]));
    wait(process.exec("sys.path[:2] = []; sys.argv[:] = ['']").unwrap()).unwrap();
}

#[test]
fn each_thread_has_a_loop_of_its_own_among_several() {
    let host = start_with(Config::new().loops(3));
    let identity = |host: &Host| host.run("threading", "get_ident", (), ()).unwrap();
    let mine = identity(&host);
    for _ in 0..20 {
        assert_eq!(identity(&host), mine, "a thread's calls all go to one loop");
    }
    let others: std::collections::HashSet<i64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(|| identity(&host).as_int().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(others.len(), 3, "and threads are spread over all loops");
}

#[test]
fn a_reply_is_a_promise_on_the_loop_that_asks_for_one() {
    let host = start();
    let mut reactor = pelton::Reactor::new().unwrap();
    let root = host.create_task("math", "sqrt", (2.0,), ()).unwrap().into_promise(&mut reactor);
    let refused = host.create_task("math", "sqrt", (-1.0,), ()).unwrap().into_promise(&mut reactor);
    let (outcome, outcomes) = std::sync::mpsc::channel();
    let second = outcome.clone();
    root.map(|root| root.as_float()).done(move |_, root| outcome.send(format!("{root:?}")).unwrap());
    refused.done(move |_, error| {
        let raised = matches!(error, Err(pelton::Rejected::Failed(TaskError::Raised(_))));
        second.send(format!("raised: {raised}")).unwrap();
    });
    reactor.after(LONG, |reactor| reactor.stop());
    let mut told = Vec::new();
    reactor
        .run_until(|_| {
            told.extend(outcomes.try_iter());
            told.len() == 2
        })
        .unwrap();
    told.sort();
    assert_eq!(told, ["Ok(Some(1.4142135623730951))", "raised: true"]);
    reactor.stop();
    reactor.run().unwrap();
    let late = host.create_task("math", "sqrt", (2.0,), ()).unwrap().into_promise(&mut reactor);
    let late = pelton::Reactor::new().unwrap().block_on(late).unwrap();
    assert!(matches!(late, Err(pelton::Rejected::Abandoned)), "{late:?}");
    assert!(host.shutdown(LONG).is_clean());
}
