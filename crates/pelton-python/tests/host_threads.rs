//! What other runtimes need of a host: threads chosen by number, callbacks, values of their own, workers without a loop,
//! and calls that are served while their thread waits.

#![cfg(feature = "embed")]

mod host_support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use host_support::{LONG, start, start_with, until, wait, with};
use pelton_python::host::{ArgumentList, Call, Config, Foreign, Host, Outcome, PythonThread, RefusedTask, TaskError};
use pelton_python::native::nesting::{self, Visitor};
use pelton_python::{Value, host::Worker};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

fn outcome(receiver: &Receiver<Outcome>) -> Outcome {
    receiver.recv_timeout(LONG).expect("the callback is called")
}

fn report() -> (impl FnOnce(Outcome) + Send + 'static, Receiver<Outcome>) {
    let (sender, receiver) = channel();
    (move |outcome| sender.send(outcome).unwrap(), receiver)
}

#[test]
fn calls_run_on_the_loop_with_the_number() {
    let host = start_with(Config::new().loops(3));
    let thread = |index| wait(host.submit_on(index, Call::new("threading", "get_ident")).unwrap()).unwrap();
    let (zero, one, two) = (thread(0), thread(1), thread(2));
    assert!(zero != one && one != two && zero != two);
    assert_eq!(thread(3), zero, "modulo the number of loops");
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(thread(1), one, "from any thread"));
    });
    let namespace = host.namespace_on(2);
    wait(namespace.exec("import threading\nhere = threading.get_ident()").unwrap()).unwrap();
    assert_eq!(wait(namespace.eval("here").unwrap()).unwrap(), two);
    assert!(namespace.thread().is(&host.thread(2)) && !namespace.thread().is(&host.thread(0)));
}

#[test]
fn callbacks_get_values_exceptions_and_results_of_coroutines() {
    let host = start();
    let namespace = with(&host, "import asyncio\nasync def later(x):\n    await asyncio.sleep(0.01)\n    return x * 2");
    let (then, receiver) = report();
    host.submit_with(Call::new("math", "sqrt").arg(4.0), then).unwrap();
    assert_eq!(outcome(&receiver).unwrap(), Value::Float(2.0));
    let (then, receiver) = report();
    host.submit_with(Call::new("math", "sqrt").arg(-1.0), then).unwrap();
    assert!(matches!(outcome(&receiver), Err(TaskError::Raised(error)) if error.type_name() == "ValueError"));
    let (then, receiver) = report();
    namespace.submit_with(Call::new("__main__", "later").arg(21), then).unwrap();
    assert_eq!(outcome(&receiver).unwrap(), Value::Int(42));
    let (then, receiver) = report();
    namespace.submit_with(Call::new("time", "sleep").arg(0.01).on_worker(), then).unwrap();
    assert_eq!(outcome(&receiver).unwrap(), Value::None);
    let (then, receiver) = report();
    let late = Call::new("__main__", "later").arg(1).timeout(Duration::from_millis(1));
    let slow = namespace.exec("import time; time.sleep(0.05)").unwrap();
    namespace.submit_with(late, then).unwrap();
    assert!(matches!(outcome(&receiver), Err(TaskError::TimedOut)));
    wait(slow).unwrap();
}

#[test]
fn callbacks_are_called_on_the_loops_thread_without_the_lock() {
    let host = start();
    let (sender, receiver) = channel();
    let inner = (*host).clone();
    let loop_thread = Arc::new(Mutex::new(None));
    let told = loop_thread.clone();
    host.submit_with(Call::new("math", "sqrt").arg(4.0), move |_| {
        *told.lock().unwrap() = Some(std::thread::current().id());
        // Another thread can take the lock while this one waits for it.
        let other = std::thread::spawn(|| Python::attach(|py| py.version_info().major));
        let length = other.join().unwrap();
        // Submitting from a callback is fine.
        inner
            .submit_with(Call::new("math", "sqrt").arg(9.0), move |outcome| sender.send((length, outcome)).unwrap())
            .unwrap();
    })
    .unwrap();
    let (length, outcome) = receiver.recv_timeout(LONG).unwrap();
    assert!(length > 0);
    assert_eq!(outcome.unwrap(), Value::Float(3.0));
    assert_ne!(loop_thread.lock().unwrap().unwrap(), std::thread::current().id());
}

#[test]
fn panicking_callback_ends_nothing_else() {
    let host = start();
    host.submit_with(Call::new("math", "sqrt").arg(4.0), |_| panic!("on purpose")).unwrap();
    let (then, receiver) = report();
    host.submit_with(Call::new("math", "sqrt").arg(4.0), then).unwrap();
    assert_eq!(outcome(&receiver).unwrap(), Value::Float(2.0));
}

#[test]
fn callbacks_are_called_once_each_when_the_host_ends() {
    let host = start();
    let namespace = with(&host, "import asyncio, time\nasync def stay():\n    await asyncio.sleep(3600)");
    let calls = Arc::new(AtomicUsize::new(0));
    let count = || {
        let calls = calls.clone();
        move |_: Outcome| {
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    for _ in 0..10 {
        namespace.submit_with(Call::new("__main__", "stay"), count()).unwrap();
    }
    namespace.submit_with(Call::new("time", "sleep").arg(0.05), count()).unwrap();
    for _ in 0..200 {
        namespace.submit_with(Call::new("math", "sqrt").arg(2.0), count()).unwrap();
    }
    host.shutdown(Duration::ZERO);
    until("all are called", || calls.load(Ordering::Relaxed) == 211);
    let refused = host.submit_with(Call::new("math", "sqrt").arg(2.0), count()).unwrap_err();
    assert_eq!(refused.call.name(), "math.sqrt");
    drop(refused);
    assert_eq!(calls.load(Ordering::Relaxed), 211, "a refused call has no callback");
}

#[test]
fn callbacks_are_called_when_a_loop_never_returns() {
    let host = start();
    // Native code that holds no lock but does not return, and cannot be interrupted.
    let (entered, enter) = channel::<()>();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    pelton_python::native::Module::new("stuck")
        .function("stay", move |_| {
            entered.send(()).unwrap();
            let _ = released.lock().unwrap().recv();
            Ok(())
        })
        .install()
        .unwrap();
    let (running, run) = report();
    let (queued, queue) = report();
    host.submit_with(Call::new("stuck", "stay"), running).unwrap();
    enter.recv_timeout(LONG).unwrap();
    host.submit_with(Call::new("math", "sqrt").arg(2.0), queued).unwrap();
    let remains = host.shutdown(Duration::ZERO);
    assert_eq!(remains.stuck, [0]);
    assert!(matches!(outcome(&run), Err(TaskError::LoopGone)));
    assert!(matches!(outcome(&queue), Err(TaskError::LoopGone)));
    drop(release);
}

/// Counts words of a text, as data of its own.
struct Words {
    text: String,
    lengths: Vec<usize>,
    sender: Sender<Result<Vec<usize>, TaskError>>,
    brief: bool,
}

impl Foreign for Words {
    fn arguments(&mut self, list: &mut ArgumentList<'_>) -> PyResult<()> {
        if self.text == "refuse" {
            return Err(pyo3::exceptions::PyTypeError::new_err("not convertible"));
        }
        let py = list.py();
        list.push(self.text.as_str().into_pyobject(py)?.into_any());
        if self.text.starts_with("by keyword") {
            list.keyword(pyo3::types::PyString::new(py, "maxsplit"), 1_i64.into_pyobject(py)?.into_any());
        }
        Ok(())
    }

    fn returned(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.lengths = object.try_iter()?.map(|word| word?.len()).collect::<PyResult<_>>()?;
        Ok(())
    }

    fn done(self: Box<Self>, outcome: Result<(), TaskError>) {
        let Words { lengths, sender, .. } = *self;
        sender.send(outcome.map(|()| lengths)).unwrap();
    }

    fn is_brief(&self) -> bool {
        self.brief
    }
}

#[test]
fn foreign_tasks_convert_their_own_values() {
    let host = start();
    let namespace = with(&host, "def words(text, maxsplit=-1):\n    return text.split(' ', maxsplit)");
    for (brief, on_worker) in [(false, false), (true, false), (false, true), (true, true)] {
        let words = |text: &str| {
            let (sender, receiver) = channel();
            let task = Box::new(Words { text: text.to_owned(), lengths: Vec::new(), sender, brief });
            let call = Call::new("__main__", "words");
            let call = if on_worker { call.on_worker() } else { call };
            namespace.submit_foreign(call, task).unwrap();
            receiver.recv_timeout(LONG).unwrap()
        };
        assert_eq!(words("two words").unwrap(), [3, 5]);
        assert_eq!(words("by keyword only").unwrap(), [2, 12]);
        let error = words("refuse").unwrap_err();
        assert_eq!(error.exception().unwrap().message(), "not convertible");
    }
    let (sender, receiver) = channel();
    let task = Box::new(Words { text: "4".into(), lengths: Vec::new(), sender, brief: true });
    host.thread(0).submit_foreign(Call::new("builtins", "int"), task).unwrap();
    let error = receiver.recv_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "TypeError", "its result is not a list of words: {error}");
}

#[test]
fn refused_foreign_tasks_are_given_back() {
    let host = start_with(Config::new().queue_bound(1));
    let namespace = with(&host, "import time");
    let (sender, _receiver) = channel();
    let mut refusals = 0;
    let busy = namespace.exec("time.sleep(0.2)").unwrap();
    for _ in 0..100 {
        let task = Box::new(Words { text: "a b".into(), lengths: Vec::new(), sender: sender.clone(), brief: false });
        if let Err(RefusedTask { refused, task }) = namespace.submit_foreign(Call::new("shlex", "split"), task) {
            assert_eq!(refused.call.name(), "shlex.split");
            drop(task);
            refusals += 1;
        }
    }
    assert!(refusals >= 90, "{refusals}");
    wait(busy).unwrap();
}

fn worker(host: &Host) -> Worker {
    host.worker().unwrap()
}

#[test]
fn worker_keeps_its_thread_its_namespaces_and_its_order() {
    let host = start();
    let (one, other) = (worker(&host), worker(&host));
    let ident = |worker: &Worker| wait(worker.submit(Call::new("threading", "get_ident")).unwrap()).unwrap();
    assert_eq!(ident(&one), ident(&one));
    assert_ne!(ident(&one), ident(&other));
    let (here, there) = (one.namespace(), one.namespace());
    wait(here.exec("x = 1").unwrap()).unwrap();
    wait(there.exec("x = 2").unwrap()).unwrap();
    let replies: Vec<_> = (0..100).map(|n| here.exec(format!("x = x * 3 % 1000003 + {n}")).unwrap()).collect();
    replies.into_iter().for_each(|reply| drop(wait(reply).unwrap()));
    let expected = (0..100).fold(1_i64, |x, n| x * 3 % 1_000_003 + n);
    assert_eq!(wait(here.eval("x").unwrap()).unwrap(), Value::Int(expected));
    assert_eq!(wait(there.eval("x").unwrap()).unwrap(), Value::Int(2));
    assert_eq!(one.stats().namespaces, 2);
    drop(there);
    until("the namespace is gone", || {
        ident(&one);
        one.stats().namespaces == 1
    });
}

#[test]
fn worker_has_no_running_loop() {
    let host = start();
    let worker = worker(&host);
    let namespace = worker.namespace();
    wait(namespace.exec("import asyncio\nasync def add(a, b):\n    await asyncio.sleep(0)\n    return a + b").unwrap())
        .unwrap();
    assert_eq!(wait(namespace.eval("asyncio.run(add(1, 2))").unwrap()).unwrap(), Value::Int(3));
    // Awaitables are run to their end.
    assert_eq!(wait(namespace.create_task("__main__", "add", (3, 4), ()).unwrap()).unwrap(), Value::Int(7));
    let failing = wait(namespace.eval("add(1, None)").unwrap()).unwrap_err();
    assert_eq!(failing.exception().unwrap().type_name(), "TypeError");
}

#[test]
fn blocked_worker_blocks_nothing_else_and_can_be_interrupted() {
    let host = start();
    let (one, other) = (worker(&host), worker(&host));
    let stuck = one.namespace().exec("while True: pass").unwrap();
    until("it runs", || one.stats().queued == 0);
    assert_eq!(wait(other.submit(Call::new("math", "sqrt").arg(4.0)).unwrap()).unwrap(), Value::Float(2.0));
    assert_eq!(wait(host.submit(Call::new("math", "sqrt").arg(4.0)).unwrap()).unwrap(), Value::Float(2.0));
    until("it is interrupted", || one.interrupt());
    let error = wait(stuck).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "pelton._host.Interrupted");
    assert_eq!(wait(one.submit(Call::new("math", "sqrt").arg(9.0)).unwrap()).unwrap(), Value::Float(3.0));
    assert!(!one.interrupt(), "nothing runs");
}

#[test]
fn dropped_worker_finishes_its_calls_and_refuses_others() {
    let host = start();
    let worker = worker(&host);
    let thread = (*worker).clone();
    let replies: Vec<_> = (0..50).map(|n| thread.submit(Call::new("math", "sqrt").arg(n as f64)).unwrap()).collect();
    drop(worker);
    assert!(replies.into_iter().all(|reply| wait(reply).is_ok()));
    until("it refuses", || thread.submit(Call::new("math", "sqrt").arg(1.0)).is_err());
    drop(host);
}

#[test]
fn shutdown_ends_workers_too() {
    let host = start();
    let worker = worker(&host);
    let calls = Arc::new(AtomicUsize::new(0));
    worker.submit(Call::new("time", "sleep").arg(0.1)).map(drop).unwrap();
    for _ in 0..100 {
        let calls = calls.clone();
        let count = move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        worker.submit_with(Call::new("math", "sqrt").arg(2.0), count).unwrap();
    }
    let remains = host.shutdown(LONG);
    assert!(remains.is_clean(), "{remains:?}");
    until("all are called", || calls.load(Ordering::Relaxed) == 100);
    assert!(host.worker().is_err());
}

/// Asks a thread of the test, which may call Python before it answers.
fn install_ask(host: &Host, questions: Sender<(i64, Visitor<i64>)>) {
    let questions = Mutex::new(questions);
    let _ = host;
    Python::attach(|py| {
        let ask = PyCFunction::new_closure(
            py,
            None,
            None,
            move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
                let number: i64 = args.get_item(0)?.extract()?;
                let (wait, visitor) = nesting::wait_and_serve()?;
                questions.lock().unwrap().send((number, visitor)).unwrap();
                wait.wait(args.py(), None).map(|answer| answer.unwrap_or(-1))
            },
        )
        .unwrap();
        let module = PyModule::new(py, "asking").unwrap();
        module.setattr("ask", ask).unwrap();
        py.import("sys").unwrap().getattr("modules").unwrap().set_item("asking", module).unwrap();
    });
}

struct Number(Option<i64>, Sender<Result<i64, TaskError>>, i64);

impl Foreign for Number {
    fn arguments(&mut self, list: &mut ArgumentList<'_>) -> PyResult<()> {
        let number = self.2.into_pyobject(list.py())?.into_any();
        list.push(number);
        Ok(())
    }

    fn returned(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0 = Some(object.extract()?);
        Ok(())
    }

    fn done(self: Box<Self>, outcome: Result<(), TaskError>) {
        self.1.send(outcome.map(|()| self.0.unwrap())).unwrap();
    }
}

const DOWN: &str = "
import asking
runs = []
def down(n):
    runs.append(n)
    return 0 if n == 0 else asking.ask(n) + 1
";

/// Answers each question by calling `down` on the thread that waits, to some depth.
fn answer_questions(questions: Receiver<(i64, Visitor<i64>)>, namespace: pelton_python::host::Namespace) {
    std::thread::spawn(move || {
        while let Ok((number, visitor)) = questions.recv() {
            let namespace = namespace.clone();
            std::thread::spawn(move || {
                let (sender, receiver) = channel();
                let call = Call::new("__main__", "down");
                let task = Box::new(Number(None, sender, number - 1));
                visitor.submit_foreign(Some(&namespace), call, task).unwrap();
                match receiver.recv_timeout(LONG).unwrap() {
                    Ok(answer) => visitor.answer(answer),
                    Err(_) => visitor.answer(-1_000),
                };
            });
        }
    });
}

#[test]
fn calls_are_served_while_their_thread_waits() {
    let host = start();
    let worker = worker(&host);
    for namespace in [host.namespace(), worker.namespace()] {
        let (sender, receiver) = channel();
        install_ask(&host, sender);
        wait(namespace.exec(DOWN).unwrap()).unwrap();
        answer_questions(receiver, namespace.clone());
        assert_eq!(wait(namespace.create_task("__main__", "down", (40,), ()).unwrap()).unwrap(), Value::Int(40));
        let runs = wait(namespace.eval("runs").unwrap()).unwrap();
        let each = (0..=40).rev().map(Value::from).collect::<Vec<_>>();
        assert_eq!(runs, Value::List(each), "each ran once");
        // Beyond 64 levels it is an error at the deepest one, and the levels above go on.
        let deep = wait(namespace.create_task("__main__", "down", (80,), ()).unwrap()).unwrap();
        assert!(matches!(deep, Value::Int(number) if number < 0), "{deep:?}");
        assert_eq!(wait(namespace.create_task("__main__", "down", (3,), ()).unwrap()).unwrap(), Value::Int(3));
    }
}

#[test]
fn wait_that_is_over_serves_nothing() {
    let host = start();
    let (sender, receiver) = channel();
    install_ask(&host, sender);
    let namespace = with(&host, DOWN);
    let reply = namespace.create_task("__main__", "down", (1,), ()).unwrap();
    let (_, visitor) = receiver.recv_timeout(LONG).unwrap();
    assert!(visitor.answer(5));
    assert!(!visitor.answer(6), "the first answer counts");
    assert_eq!(wait(reply).unwrap(), Value::Int(6));
    // The thread makes the call anyway, from its queue.
    let (sender, receiver) = channel();
    let task = Box::new(Number(None, sender, 0));
    visitor.submit_foreign(Some(&namespace), Call::new("__main__", "down"), task).unwrap();
    assert_eq!(receiver.recv_timeout(LONG).unwrap().unwrap(), 0);
}

#[test]
fn waiting_for_an_answer_can_be_interrupted() {
    let host = start();
    let worker = worker(&host);
    let (sender, receiver) = channel();
    install_ask(&host, sender);
    let reply = worker.submit(Call::new("asking", "ask").arg(1)).unwrap();
    let (_, visitor) = receiver.recv_timeout(LONG).unwrap();
    until("it is interrupted", || worker.interrupt());
    let error = wait(reply).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "pelton._host.Interrupted");
    until("the wait is over", || !visitor.answer(1));
}

/// Source code with a local variable `x`.
struct Located(i64, Option<i64>, Sender<Result<i64, TaskError>>);

impl Foreign for Located {
    fn locals<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let locals = PyDict::new(py);
        locals.set_item("x", self.0)?;
        Ok(Some(locals))
    }

    fn returned(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.1 = object.extract().ok();
        Ok(())
    }

    fn done(self: Box<Self>, outcome: Result<(), TaskError>) {
        let Located(_, result, sender) = *self;
        sender.send(outcome.map(|()| result.unwrap_or(0))).unwrap();
    }
}

#[test]
fn other_threads_can_use_a_namespace() {
    let host = start_with(Config::new().loops(2));
    let worker = worker(&host);
    let namespace = host.namespace_on(0);
    wait(namespace.exec("base = 10").unwrap()).unwrap();
    for thread in [&host.thread(0), &host.thread(1), &*worker] {
        for call in [Call::eval("base + x"), Call::eval("base + x").on_worker()] {
            let (sender, receiver) = channel();
            namespace.submit_foreign_on(thread, call, Box::new(Located(5, None, sender))).unwrap();
            assert_eq!(receiver.recv_timeout(LONG).unwrap().unwrap(), 15);
        }
        let (sender, receiver) = channel();
        let call = Call::exec("global base\nbase = base");
        namespace.submit_foreign_on(thread, call, Box::new(Located(5, None, sender))).unwrap();
        receiver.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(wait(namespace.eval("base").unwrap()).unwrap(), Value::Int(10));
    assert_eq!(wait(namespace.eval("'x' in globals()").unwrap()).unwrap(), Value::Bool(false), "locals stay local");
}

#[test]
fn code_on_a_thread_of_the_host_can_find_it() {
    let host = start();
    assert!(PythonThread::current().is_none());
    let (sender, receiver) = channel();
    pelton_python::native::Module::new("finding")
        .function("find", move |_| {
            sender.send(PythonThread::current()).unwrap();
            Ok(())
        })
        .install()
        .unwrap();
    wait(host.submit(Call::new("finding", "find")).unwrap()).unwrap();
    assert!(receiver.recv_timeout(LONG).unwrap().is_some_and(|thread| thread.is(&host.thread(0))));
    let worker = worker(&host);
    wait(worker.submit(Call::new("finding", "find")).unwrap()).unwrap();
    assert!(receiver.recv_timeout(LONG).unwrap().is_some_and(|thread| thread.is(&worker)));
}
