//! Python calls Rust: functions, async functions, and calls back into Python.

#![cfg(feature = "embed")]

mod host_support;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use host_support::{Fixture, LONG, start, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Namespace, Outcome, TaskError};
use pelton_python::native::{Module, Raise, call};

/// Returns the class and the message of the exception.
#[track_caller]
fn exception(outcome: Outcome) -> (String, String) {
    match outcome {
        Err(TaskError::Raised(exception)) => (exception.type_name().to_owned(), exception.message().to_owned()),
        other => panic!("expected an exception, got {other:?}"),
    }
}

fn eval(namespace: &Namespace, expression: &'static str) -> Outcome {
    wait(namespace.eval(expression).unwrap())
}

/// Installs Python code as an importable module.
fn module(host: &Fixture, name: &str, source: &str) {
    let code = format!(
        "import sys, types\nmodule = types.ModuleType({name:?})\nexec({source:?}, module.__dict__)\nsys.modules[{name:?}] = module"
    );
    wait(host.namespace().exec(code).unwrap()).unwrap();
}

#[test]
fn a_function_gets_arguments_and_returns_a_value() {
    let host = start();
    Module::new("calculator")
        .doc("Calculates.")
        .function("add", |args| {
            let (a, b): (i64, i64) = args.positional()?;
            Ok(a + b)
        })
        .doc("Return the sum.")
        .brief_function("count", |args| Ok((args.values.len() as i64, args.keywords.len() as i64)))
        .value("LIMIT", 7)
        .install()
        .unwrap();
    let namespace = with(&host, "import calculator");
    assert_eq!(eval(&namespace, "calculator.add(2, 3)").unwrap(), Value::from(5));
    assert_eq!(eval(&namespace, "calculator.count(1, 2, a=3)").unwrap(), Value::from((2, 1)));
    assert_eq!(eval(&namespace, "calculator.LIMIT").unwrap(), Value::from(7));
    let docs = "calculator.__doc__, calculator.add.__doc__, calculator.add.__name__, calculator.add.__module__";
    assert_eq!(eval(&namespace, docs).unwrap(), Value::from(("Calculates.", "Return the sum.", "add", "calculator")));
    let outcome = host.run("calculator", "add", (20, 22), ()).unwrap();
    assert_eq!(outcome, Value::from(42), "the host can call it too");
    assert_eq!(eval(&namespace, "sum(map(calculator.add, range(100), range(100)))").unwrap(), Value::from(9_900));
}

#[derive(serde::Deserialize)]
struct Fetch {
    url: String,
    timeout: Option<f64>,
}

#[test]
fn wrong_arguments_raise_type_errors_with_the_reason() {
    let host = start();
    Module::new("strict")
        .function("pair", |args| args.positional::<(i64, String)>().map(|(number, text)| format!("{number}{text}")))
        .function("nothing", |args| args.none())
        .function("fetch", |args| {
            let Fetch { url, timeout } = args.named(&["url", "timeout"])?;
            Ok(format!("{url} {timeout:?}"))
        })
        .install()
        .unwrap();
    let namespace = with(&host, "import strict");
    assert_eq!(eval(&namespace, "strict.pair(1, 'a')").unwrap(), Value::from("1a"));
    assert_eq!(eval(&namespace, "strict.fetch('u')").unwrap(), Value::from("u None"));
    assert_eq!(eval(&namespace, "strict.fetch(timeout=2, url='u')").unwrap(), Value::from("u Some(2.0)"));
    for (expression, message) in [
        ("strict.pair(1)", "args: expected a tuple of 2, found a tuple of 1"),
        ("strict.pair(1, 2)", "args[1]: expected str, found int"),
        ("strict.pair(1, 'a', x=1)", "unexpected keyword argument 'x'"),
        ("strict.nothing(1, 2)", "takes no arguments, but 2 were given"),
        ("strict.fetch()", "args: missing field `url`"),
        ("strict.fetch(1)", "args['url']: invalid type: integer `1`, expected a string"),
        ("strict.fetch('u', url='v')", "multiple values for argument 'url'"),
        ("strict.fetch('u', other=1)", "unexpected keyword argument 'other'"),
        ("strict.fetch('u', 1, 2)", "takes at most 2 positional arguments, but 3 were given"),
    ] {
        assert_eq!(
            exception(eval(&namespace, expression)),
            ("TypeError".to_owned(), message.to_owned()),
            "{expression}"
        );
    }
    let cyclic = exception(wait(namespace.eval("(lambda a: a.append(a) or strict.pair(a))([])").unwrap()));
    assert_eq!(cyclic.0, "RecursionError");
    assert!(cyclic.1.starts_with("args[0][0][0]"), "{}", cyclic.1);
    let surrogate = exception(eval(&namespace, "strict.fetch(url='\\ud800')"));
    assert_eq!(surrogate, ("ValueError".into(), "url: not valid Unicode: character 0 is a lone surrogate".into()));
}

#[test]
fn errors_become_the_chosen_exceptions() {
    let host = start();
    Module::new("failing")
        .exception("SoldOut", "LookupError")
        .function("fail", |args| -> Result<(), Raise> {
            let kind: String = args.one()?;
            Err(match kind.as_str() {
                "value" => Raise::new("ValueError", "not that"),
                "own" => Raise::new("failing.SoldOut", "gone"),
                "dotted" => Raise::new("json.decoder.NoSuchError", "what"),
                "no class" => Raise::new("len", "what"),
                "io" => std::io::Error::from_raw_os_error(2).into(),
                "text" => "just text".into(),
                _ => "unknown".to_owned().into(),
            })
        })
        .function("unhashable", |args| {
            args.none()?;
            Ok(Value::Set(vec![Value::List(vec![])]))
        })
        .install()
        .unwrap();
    let namespace = with(&host, "import failing");
    let fail = |kind: &str| exception(wait(namespace.submit(Call::new("failing", "fail").arg(kind)).unwrap()));
    assert_eq!(fail("value"), ("ValueError".into(), "not that".into()));
    assert_eq!(fail("own"), ("failing.SoldOut".into(), "gone".into()));
    let (class, message) = fail("dotted");
    assert_eq!(class, "RuntimeError");
    assert!(message.contains("json.decoder.NoSuchError") && message.contains("no such exception class"), "{message}");
    assert_eq!(fail("no class").0, "RuntimeError");
    assert_eq!(fail("io").0, "FileNotFoundError");
    assert_eq!(fail("text"), ("RuntimeError".into(), "just text".into()));
    assert_eq!(eval(&namespace, "issubclass(failing.SoldOut, LookupError)").unwrap(), Value::from(true));
    let (class, message) = exception(eval(&namespace, "failing.unhashable()"));
    assert_eq!(class, "TypeError");
    assert!(message.starts_with("failing.unhashable(){0}: unhashable"), "{message}");
    assert!(Module::new("").install().is_err());
    assert!(Module::new("no.such.package").install().unwrap_err().message().contains("no.such.package"));
    assert!(Module::new("odd").exception("Odd", "int").install().is_err());
}

#[test]
fn a_panic_becomes_a_runtime_error_and_the_loop_survives() {
    let host = start();
    Module::new("panicking")
        .function("now", |_| -> Result<(), Raise> { panic!("on purpose {}", 1) })
        .brief_function("briefly", |_| -> Result<(), Raise> { panic!("on purpose") })
        .async_function("later", |_| async { if true { panic!("on purpose") } else { Ok(()) } })
        .install()
        .unwrap();
    let namespace = with(&host, "import panicking");
    let message = |expression| exception(eval(&namespace, expression));
    let expected = "the Rust function panicking.now panicked: on purpose 1";
    assert_eq!(message("panicking.now()"), ("RuntimeError".into(), expected.into()));
    assert_eq!(message("panicking.briefly()").0, "RuntimeError");
    let expected = "the Rust function panicking.later panicked: on purpose";
    assert_eq!(message("panicking.later()"), ("RuntimeError".into(), expected.into()));
    assert_eq!(eval(&namespace, "1 + 1").unwrap(), Value::from(2));
}

#[test]
fn rust_and_python_call_each_other_many_levels_deep() {
    let host = start();
    Module::new("ladder")
        .function("down", |args| {
            let (levels,): (i64,) = args.positional()?;
            Ok(call("ladder_python", "down", (levels,), ())?)
        })
        .brief_function("briefly", |args| Ok(call("ladder_python", "briefly", args.values, ())?))
        .install()
        .unwrap();
    let source = "
import ladder
def down(n): return 0 if n == 0 else ladder.down(n - 1) + 1
def briefly(): return ladder.briefly()
";
    module(&host, "ladder_python", source);
    assert_eq!(host.run("ladder_python", "down", (50,), ()).unwrap(), Value::from(50));
    let (class, message) = exception(host.run("ladder_python", "down", (1_000_000,), ()));
    assert_eq!(class, "RecursionError");
    assert!(message.contains("ladder.down"), "{message}");
    assert_eq!(host.run("ladder_python", "down", (50,), ()).unwrap(), Value::from(50), "the nesting depth is restored");
    assert_eq!(exception(host.run("ladder_python", "briefly", (), ())).0, "RecursionError");
    let on_worker = Call::new("ladder_python", "down").arg(50).on_worker();
    assert_eq!(wait(host.submit(on_worker).unwrap()).unwrap(), Value::from(50));
}

#[test]
fn an_exception_passes_through_rust_unchanged() {
    let host = start();
    Module::new("through")
        .function("call", |args| {
            let (name,): (String,) = args.positional()?;
            Ok(call("through_python", &name, (), [("flag", true)])?)
        })
        .install()
        .unwrap();
    let source = "
import through
class Odd(Exception):
    def __init__(self, a, b): self.pair = a, b
error = Odd(1, 2)
def fail(flag): raise error
def exit(flag): raise SystemExit(3)
def check():
    try: through.call('fail')
    except Odd as caught: return caught is error and caught.pair == (1, 2)
";
    module(&host, "through_python", source);
    assert_eq!(host.run("through_python", "check", (), ()).unwrap(), Value::from(true));
    assert_eq!(exception(host.run("through", "call", ("exit",), ())).0, "SystemExit");
    let (class, message) = exception(host.run("through", "call", ("missing",), ()));
    assert_eq!(class, "AttributeError");
    assert!(message.contains("missing"), "{message}");
}

#[test]
fn a_rust_lock_and_the_interpreter_lock_do_not_deadlock() {
    let host = start();
    let locked = Arc::new(Mutex::new(0));
    let counter = locked.clone();
    Module::new("locking")
        .function("locked", move |args| {
            args.none()?;
            let mut counter = counter.lock().unwrap();
            // The call acquires the interpreter lock under this lock, and other threads may hold it meanwhile.
            call("locking_python", "spin", (), ())?;
            *counter += 1;
            Ok(*counter)
        })
        .install()
        .unwrap();
    let source = "
import locking
def spin():
    for _ in range(50): pass
def many(count):
    for _ in range(count): locking.locked()
";
    module(&host, "locking_python", source);
    let many = |call: Call| host.submit(call.arg(200)).unwrap();
    let mut replies: Vec<_> = (0..6).map(|_| many(Call::new("locking_python", "many").on_worker())).collect();
    replies.push(many(Call::new("locking_python", "many")));
    for _ in 0..200 {
        let _held = locked.lock().unwrap();
        call("locking_python", "spin", (), ()).unwrap();
    }
    for reply in replies {
        wait(reply).unwrap();
    }
    assert_eq!(*locked.lock().unwrap(), 7 * 200);
}

/// A future that another thread completes.
struct Later {
    done: Arc<AtomicBool>,
    woken: mpsc::Sender<Waker>,
}

impl Future for Later {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.done.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.woken.send(context.waker().clone()).unwrap();
        Poll::Pending
    }
}

#[test]
fn an_async_function_is_awaited_like_a_coroutine() {
    let host = start();
    let (woken, wakers) = mpsc::channel::<Waker>();
    let done = Arc::new(AtomicBool::new(false));
    let later_done = done.clone();
    let woken = Mutex::new(woken);
    Module::new("eventually")
        .async_function("at_once", |args| async move { args.one::<i64>() })
        .async_function("later", move |args| {
            let later = Later { done: later_done.clone(), woken: woken.lock().unwrap().clone() };
            async move {
                later.await;
                args.one::<i64>()
            }
        })
        .install()
        .unwrap();
    let namespace = with(
        &host,
        "
import asyncio, eventually, inspect, collections.abc

async def at_once():
    coroutine = eventually.at_once(1)
    assert asyncio.iscoroutine(coroutine) and isinstance(coroutine, collections.abc.Awaitable)
    assert inspect.isawaitable(coroutine)
    result = await coroutine
    try:
        await coroutine
    except RuntimeError as error:
        assert 'already awaited' in str(error)
    else:
        assert False
    return result

async def many():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(eventually.at_once(n)) for n in range(100)]
    gathered = await asyncio.gather(*(eventually.at_once(n) for n in range(100)))
    return sum(task.result() for task in tasks) + sum(gathered)

async def later():
    return await eventually.later(5)
",
    );
    assert_eq!(eval(&namespace, "at_once()").unwrap(), Value::from(1));
    assert_eq!(eval(&namespace, "many()").unwrap(), Value::from(9_900));
    assert_eq!(eval(&namespace, "eventually.at_once(3)").unwrap(), Value::from(3), "a task can consist of it alone");
    let (class, _) = exception(eval(&namespace, "eventually.at_once('x')"));
    assert_eq!(class, "TypeError");

    let reply = namespace.eval("later()").unwrap();
    let waker = wakers.recv_timeout(LONG).unwrap();
    // After a spurious wake-up it keeps waiting.
    waker.wake();
    let waker = wakers.recv_timeout(LONG).unwrap();
    assert_eq!(eval(&namespace, "1").unwrap(), Value::from(1), "the loop is free while it waits");
    done.store(true, Ordering::Release);
    std::thread::spawn(move || waker.wake()).join().unwrap();
    assert_eq!(wait(reply).unwrap(), Value::from(5));
}

#[test]
fn no_wake_up_is_lost_in_races_between_threads() {
    let host = start();
    let (jobs, todo) = mpsc::channel::<futures::channel::oneshot::Sender<i64>>();
    let jobs = Mutex::new(jobs);
    let thread = std::thread::spawn(move || {
        for (number, job) in todo.iter().enumerate() {
            // Some complete before the first poll, some during it, some after.
            if number % 3 == 0 {
                std::thread::yield_now();
            }
            let _ = job.send(1);
        }
    });
    Module::new("racing")
        .async_function("one", move |_| {
            let (sender, receiver) = futures::channel::oneshot::channel();
            jobs.lock().unwrap().send(sender).unwrap();
            async move { receiver.await.map_err(|_| Raise::from("lost")) }
        })
        .install()
        .unwrap();
    let namespace = with(
        &host,
        "
import asyncio, racing

async def sequentially(count):
    return sum([await racing.one() for _ in range(count)])

async def at_once(count):
    return sum(await asyncio.gather(*(racing.one() for _ in range(count))))

def elsewhere(count):
    return asyncio.run(sequentially(count)) + asyncio.run(at_once(count))
",
    );
    let submit = |function: &'static str| namespace.submit(Call::new("__main__", function).arg(5_000)).unwrap();
    let (one, other) = (submit("sequentially"), submit("at_once"));
    assert_eq!(wait(one).unwrap(), Value::from(5_000));
    assert_eq!(wait(other).unwrap(), Value::from(5_000));
    // On asyncio's own loop in another thread.
    let elsewhere = namespace.submit(Call::new("__main__", "elsewhere").arg(1_000).on_worker()).unwrap();
    assert_eq!(wait(elsewhere).unwrap(), Value::from(2_000));
    Module::new("racing").install().unwrap();
    drop((namespace, host));
    let end = Instant::now() + LONG;
    while !thread.is_finished() && Instant::now() < end {
        std::thread::yield_now();
    }
}

#[test]
fn an_async_function_awaits_tasks_of_its_own_loop() {
    let host = start();
    let handle = (*host).clone();
    Module::new("reentrant")
        .async_function("down", move |args| {
            let host = handle.clone();
            async move {
                let (levels,): (i64,) = args.positional()?;
                let reply = host.create_task("reentrant_python", "down", (levels,), ()).map_err(TaskError::from)?;
                Ok(reply.await?)
            }
        })
        .install()
        .unwrap();
    let source = "
import asyncio, reentrant
async def down(n):
    await asyncio.sleep(0)
    return 0 if n == 0 else await reentrant.down(n - 1) + 1
";
    module(&host, "reentrant_python", source);
    assert_eq!(host.run("reentrant_python", "down", (500,), ()).unwrap(), Value::from(500));
    // The module refers to the host, which could not end before it.
    Module::new("reentrant").install().unwrap();
    assert!(host.shutdown(LONG).is_clean());
}

#[test]
fn a_function_that_waits_for_its_own_loop_raises_instead_of_deadlocking() {
    let host = start();
    let handle = (*host).clone();
    Module::new("stuck")
        .function("wait", move |args| {
            args.none()?;
            Ok(handle.run("builtins", "len", ("abc",), ())?)
        })
        .install()
        .unwrap();
    let (class, message) = exception(host.run("stuck", "wait", (), ()));
    assert_eq!(class, "RuntimeError");
    assert!(message.contains("own loop"), "{message}");
    // On another thread it works.
    let reply = host.submit(Call::new("stuck", "wait").on_worker()).unwrap();
    assert_eq!(wait(reply).unwrap(), Value::from(3));
    Module::new("stuck").install().unwrap();
}

struct CountDrops(Arc<AtomicUsize>);

impl Drop for CountDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_future_is_dropped_when_its_task_is_cancelled() {
    let host = start();
    let (begun, drops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, dropped) = (begun.clone(), drops.clone());
    Module::new("endless")
        .async_function("wait", move |_| {
            let (begun, drops) = (counted.clone(), CountDrops(dropped.clone()));
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                std::future::pending::<()>().await;
                drop(drops);
                Ok(())
            }
        })
        .install()
        .unwrap();
    let namespace = with(
        &host,
        "
import asyncio, endless

async def cleans_up():
    try:
        await endless.wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        return 'clean'

async def times_out():
    try:
        await asyncio.wait_for(endless.wait(), 0.01)
    except TimeoutError:
        return 'timed out'

async def never_awaited():
    endless.wait()
    endless.wait().close()
",
    );
    let reply = namespace.eval("endless.wait()").unwrap();
    until("it has started", || begun.load(Ordering::Relaxed) == 1);
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    reply.cancel();
    assert!(matches!(wait(reply), Err(TaskError::Cancelled)));
    assert_eq!(drops.load(Ordering::Relaxed), 1);

    let reply = namespace.eval("cleans_up()").unwrap();
    until("it has started", || begun.load(Ordering::Relaxed) == 2);
    reply.cancel();
    assert_eq!(wait(reply).unwrap(), Value::from("clean"));
    assert_eq!(eval(&namespace, "times_out()").unwrap(), Value::from("timed out"));
    assert_eq!(drops.load(Ordering::Relaxed), 3);
    eval(&namespace, "never_awaited()").unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 5);
    let reply = namespace.submit(Call::new("endless", "wait").timeout(Duration::from_millis(5))).unwrap();
    assert!(matches!(wait(reply), Err(TaskError::TimedOut)));
    until("the future is dropped", || drops.load(Ordering::Relaxed) == 6);
}

#[test]
fn functions_outlive_their_module_and_are_freed_after_it() {
    let host = start();
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = CountDrops(drops.clone());
    Module::new("passing")
        .function("keep", move |args| {
            let _ = &counted;
            args.none()
        })
        .install()
        .unwrap();
    let namespace = with(&host, "from passing import keep");
    Module::new("passing").function("other", |args| args.none()).install().unwrap();
    eval(&namespace, "keep()").unwrap();
    assert_eq!(exception(eval(&namespace, "__import__('passing').keep")).0, "AttributeError");
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    wait(namespace.exec("del keep").unwrap()).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn an_abandoned_task_is_freed_with_its_future() {
    let host = start();
    let drops = Arc::new(AtomicUsize::new(0));
    let dropped = drops.clone();
    Module::new("abandoned")
        .async_function("wait", move |_| {
            let drops = CountDrops(dropped.clone());
            async move {
                std::future::pending::<()>().await;
                drop(drops);
                Ok(())
            }
        })
        .install()
        .unwrap();
    let namespace = with(
        &host,
        "
import asyncio, abandoned, gc, logging

async def wait():
    await abandoned.wait()

def abandon():
    # A loop that is closed with a task that was not cancelled.
    logging.disable()
    loop = asyncio.new_event_loop()
    task = loop.create_task(wait())
    loop.call_later(0.001, loop.stop)
    loop.run_forever()
    loop.close()
    del task, loop
    gc.collect()
    logging.disable(logging.NOTSET)
",
    );
    wait(namespace.submit(Call::new("__main__", "abandon").on_worker()).unwrap()).unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}
