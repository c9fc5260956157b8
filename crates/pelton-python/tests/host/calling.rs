//! Calls, their arguments and their results.

use pelton_python::Value;
use pelton_python::host::{Call, TaskError};

use super::host_support::{LONG, start, until, wait, with};

#[test]
fn a_function_is_called_and_its_result_comes_back() {
    let host = start();
    let reply = host.create_task("math", "sqrt", (2.0,), ()).unwrap();
    assert_eq!(wait(reply).unwrap(), Value::Float(2.0f64.sqrt()));
    assert_eq!(host.run("builtins", "int", ("ff",), [("base", 16)]).unwrap(), Value::Int(255));
    assert_eq!(host.run("os.path", "join", ("a", "b"), ()).unwrap(), Value::from("a/b"));
    assert_eq!(
        host.run("builtins", "str.upper", ("a",), ()).unwrap(),
        Value::from("A"),
        "attribute paths are resolved"
    );
    assert!(host.shutdown(LONG).is_clean());
}

#[test]
fn many_arguments_are_passed() {
    let host = start();
    let call = (0..100).fold(Call::new("builtins", "max"), |call, number| call.arg(number));
    assert_eq!(wait(host.submit(call).unwrap()).unwrap(), Value::Int(99));
    let namespace = with(&host, "def count(*args, **kwargs):\n    return [len(args), sorted(kwargs)]");
    let call = (0..20).fold(Call::new("__main__", "count"), |call, number| call.arg(number));
    let call = call.keyword("b", 1).keyword("a", 2);
    let expected = Value::from(vec![Value::from(20), Value::from(vec!["a", "b"])]);
    assert_eq!(wait(namespace.submit(call).unwrap()).unwrap(), expected);
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
fn awaitables_are_awaited_and_nothing_else() {
    let host = start();
    let namespace = with(&host, KINDS);
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
        assert_eq!(namespace.run("__main__", function, (), ()).unwrap(), Value::Int(expected), "{function}");
    }
    for function in ["generator", "asynchronous"] {
        let object = namespace.run("__main__", function, (), ()).unwrap();
        assert!(object.as_object().is_some(), "{function} is returned as an object");
    }
    assert_eq!(wait(namespace.eval("coroutine()").unwrap()).unwrap(), Value::Int(2), "an expression too");
}

#[test]
fn a_coroutine_is_a_real_task_from_its_first_line_on() {
    let host = start();
    let namespace = with(
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
    assert_eq!(namespace.run("__main__", "at_once", (), ()).unwrap(), Value::Bool(true));
    assert_eq!(namespace.run("__main__", "groups", (), ()).unwrap(), Value::from(vec![0, 1, 2]));
    let error = namespace.run("__main__", "overruns", (), ()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "TimeoutError");
    assert_eq!(namespace.run("__main__", "after", (), ()).unwrap(), Value::Int(1), "no current task is left behind");
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

#[test]
fn a_result_can_stay_in_python() {
    let host = start();
    let list = wait(host.submit(Call::new("builtins", "list").arg(vec![1, 2]).as_object()).unwrap()).unwrap();
    let object = list.as_object().expect("an object, although it could be converted").clone();
    host.run("builtins", "list.append", (Value::Object(object.clone()), Value::from(3)), ()).unwrap();
    assert_eq!(host.run("builtins", "sum", (Value::Object(object.clone()),), ()).unwrap(), Value::Int(6));
    let count = wait(host.submit(Call::new("builtins", "len").arg(Value::Object(object))).unwrap()).unwrap();
    assert_eq!(count, Value::Int(3));
}

#[test]
fn arguments_are_dropped_after_the_call() {
    let host = start();
    let namespace = with(
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
        let thing = namespace.run("__main__", "make", (), ()).unwrap();
        let kept = namespace.submit(Call::new("__main__", function).arg(thing)).unwrap();
        let gone = || wait(namespace.eval("watch() is None").unwrap()).unwrap() == Value::Bool(true);
        until("the argument is freed although the reply is kept", gone);
        kept.cancel();
        drop(kept);
    }
}

#[test]
fn a_reply_converts_to_a_promise_on_a_reactor() {
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
