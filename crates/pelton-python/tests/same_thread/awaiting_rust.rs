//! Python awaits Rust.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pelton::{Promise, Reactor, task};
use pelton_python::same_thread::await_rust;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyCFunction;

use crate::{Fixture, with_loop};

/// Makes a function that returns an awaitable visible to Python under this name.
fn define(
    fixture: &Fixture<'_>,
    name: &str,
    function: impl for<'py> Fn(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send + Sync + 'static,
) {
    let function = PyCFunction::new_closure(fixture.its_loop.py(), None, None, move |arguments, _| {
        function(arguments.py()).map(Bound::unbind)
    });
    fixture.names.set_item(name, function.unwrap()).unwrap();
}

#[test]
fn a_future_and_a_promise_have_values_and_exceptions() {
    let code = "
async def main():
    seen = [await sleeps(), await settles(), await at_once()]
    for failing in fails, stops, rejected:
        try:
            seen.append(await failing())
        except Exception as error:
            seen.append(type(error).__name__)
    return seen
";
    with_loop(code, |fixture| {
        define(fixture, "sleeps", |py| {
            await_rust(py, async {
                task::sleep(Duration::from_millis(1)).await;
                Ok("slept")
            })
        });
        define(fixture, "at_once", |py| await_rust(py, async { Ok("at once") }));
        define(fixture, "settles", |py| {
            let promise: Promise<u64, ()> = Reactor::with_current(|reactor| {
                let (deferred, promise) = reactor.promise();
                reactor.after(Duration::from_millis(1), move |_| deferred.resolve(7).unwrap());
                promise
            })
            .unwrap();
            await_rust(py, async { promise.await.map_err(|_| PyRuntimeError::new_err("rejected")) })
        });
        define(fixture, "fails", |py| await_rust(py, async { Err::<(), _>(PyOSError::new_err("broken")) }));
        define(fixture, "stops", |py| await_rust(py, async { Err::<(), _>(PyStopIteration::new_err("broken")) }));
        define(fixture, "rejected", |py| {
            let promise: Promise<u64, &str> =
                Reactor::with_current(|reactor| Promise::rejected(reactor, "no")).unwrap();
            await_rust(py, async { promise.await.map_err(|rejected| PyRuntimeError::new_err(format!("{rejected:?}"))) })
        });
        let seen: Vec<String> = fixture.run("main")?.try_iter()?.map(|item| item.unwrap().to_string()).collect();
        assert_eq!(seen, ["slept", "7", "at once", "OSError", "TypeError", "RuntimeError"]);
        Ok(())
    });
}

/// Sets a flag when it is dropped.
struct Told(Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_cancelled_future_is_dropped_and_a_forgotten_one_continues() {
    let code = "
async def main():
    try:
        await asyncio.wait_for(forever(), 0.005)
    except asyncio.TimeoutError:
        pass
    else:
        raise AssertionError('it has an end')
    finishes()
    await asyncio.sleep(0.05)
";
    with_loop(code, |fixture| {
        let (dropped, finished) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (told, end) = (dropped.clone(), finished.clone());
        define(fixture, "forever", move |py| {
            let told = Told(told.clone());
            await_rust(py, async move {
                let _told = told;
                std::future::pending::<()>().await;
                Ok(())
            })
        });
        define(fixture, "finishes", move |py| {
            let (end, not_send) = (end.clone(), Rc::new(()));
            await_rust(py, async move {
                task::sleep(Duration::from_millis(2)).await;
                end.store(true, Relaxed);
                drop(not_send);
                Ok(())
            })
        });
        fixture.run("main")?;
        assert!(dropped.load(Relaxed) && finished.load(Relaxed));
        Ok(())
    });
}

#[test]
fn it_needs_a_running_loop_of_ours() {
    with_loop("import asyncio\nasync def calls(function): function()", |fixture| {
        let py = fixture.its_loop.py();
        let refused = await_rust(py, async { Ok(()) }).unwrap_err();
        assert!(refused.is_instance_of::<PyRuntimeError>(py), "no loop runs: {refused}");
        define(fixture, "ask", |py| await_rust(py, async { Ok(()) }));
        let coroutine = fixture.get("calls").call1((fixture.get("ask"),))?;
        let theirs = py.import("asyncio")?.getattr("SelectorEventLoop")?.call0()?;
        let refused = theirs.call_method1("run_until_complete", (coroutine,)).unwrap_err();
        theirs.call_method0("close")?;
        assert!(refused.is_instance_of::<pyo3::exceptions::PyTypeError>(py), "{refused}");
        Ok(())
    });
}

#[test]
fn a_context_is_kept_while_rust_is_awaited() {
    let code = "
variable = contextvars.ContextVar('variable')
async def one(value):
    variable.set(value)
    await sleeps()
    return variable.get()
async def main():
    return await asyncio.gather(*[one(value) for value in 'abc'])
";
    with_loop(code, |fixture| {
        define(fixture, "sleeps", |py| {
            await_rust(py, async {
                task::sleep(Duration::from_millis(1)).await;
                Ok(())
            })
        });
        assert_eq!(fixture.run("main")?.extract::<Vec<String>>()?, ["a", "b", "c"]);
        Ok(())
    });
}
