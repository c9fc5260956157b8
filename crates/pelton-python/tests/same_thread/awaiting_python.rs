//! Rust awaits Python.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pelton::task;
use pelton_python::same_thread::await_python;
use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCFunction;

use crate::{Fixture, with_loop};

type Outcome = Rc<RefCell<Option<PyResult<Py<PyAny>>>>>;

/// Awaits what a function returns in a task of the reactor, which stops the loop then.
fn awaits(fixture: &Fixture<'_>, function: &str) -> Outcome {
    let (function, its_loop) = (fixture.get(function).unbind(), fixture.its_loop.clone().unbind());
    let outcome = Outcome::default();
    let seen = outcome.clone();
    fixture.with_reactor(|reactor| {
        reactor
            .spawn(async move {
                let awaited = Python::attach(|py| await_python(&function.bind(py).call0()?));
                let found = match awaited {
                    Ok(awaited) => awaited.await,
                    Err(error) => Err(error),
                };
                *seen.borrow_mut() = Some(found);
                Python::attach(|py| its_loop.call_method0(py, "stop")).unwrap();
            })
            .detach();
    });
    outcome
}

#[test]
fn everything_that_can_be_awaited_has_its_value_or_its_exception() {
    let code = "
class Own(Exception):
    pass

class Awaitable:
    def __await__(self):
        yield from asyncio.sleep(0.001).__await__()
        return 'awaitable'

async def value():
    await asyncio.sleep(0.001)
    return 'value'

async def at_once():
    return 'at once'

def future():
    future = loop.create_future()
    loop.call_later(0.001, future.set_result, 'future')
    return future

def task():
    return loop.create_task(value())

async def fails():
    await asyncio.sleep(0)
    raise KeyError('a key')

async def fails_with_its_own():
    raise Own('mine')

async def is_cancelled():
    asyncio.current_task().cancel()
    await asyncio.sleep(1000)

def raises():
    raise ValueError('at once')

def nothing():
    pass

async def stops_iteration():
    raise StopIteration(3)
";
    with_loop(code, |fixture| {
        let py = fixture.its_loop.py();
        let outcome = |function: &str| {
            let outcome = awaits(fixture, function);
            fixture.run_forever().unwrap();
            outcome.take().unwrap_or_else(|| panic!("{function} has no outcome"))
        };
        for (function, value) in [
            ("value", "value"),
            ("at_once", "at once"),
            ("future", "future"),
            ("task", "value"),
            ("Awaitable", "awaitable"),
        ] {
            assert_eq!(outcome(function)?.extract::<String>(py)?, value);
        }
        let error = |function: &str| outcome(function).unwrap_err();
        assert!(error("fails").is_instance_of::<PyKeyError>(py));
        assert!(error("fails_with_its_own").is_instance(py, &fixture.get("Own")));
        assert!(error("is_cancelled").is_instance(py, &py.import("asyncio")?.getattr("CancelledError")?));
        assert!(error("raises").is_instance_of::<PyValueError>(py));
        assert!(error("nothing").is_instance_of::<PyTypeError>(py), "None cannot be awaited");
        assert!(error("stops_iteration").is_instance_of::<PyRuntimeError>(py), "as for any coroutine");
        Ok(())
    });
}

#[test]
fn a_coroutine_begins_in_the_batch_of_the_same_turn() {
    let code = "
log = []
async def coroutine():
    log.append('coroutine')
def before():
    log.append('queued before')
";
    with_loop(code, |fixture| {
        let outcome = awaits(fixture, "coroutine");
        fixture.its_loop.call_method1("call_soon", (fixture.get("before"),))?;
        fixture.run_forever()?;
        assert!(outcome.take().is_some());
        assert_eq!(fixture.get("log").extract::<Vec<String>>()?, ["queued before", "coroutine"]);
        Ok(())
    });
}

#[test]
fn dropping_it_cancels_the_coroutine_unless_it_was_detached() {
    let code = "
log = []
async def coroutine(name):
    try:
        await asyncio.sleep(0.02)
        log.append(f'{name} has finished')
    except asyncio.CancelledError:
        log.append(f'{name} was cancelled')
        raise
async def main():
    await asyncio.sleep(0.05)
";
    with_loop(code, |fixture| {
        let coroutine = fixture.get("coroutine").unbind();
        fixture.with_reactor(|reactor| {
            reactor
                .spawn(async move {
                    let begin =
                        |name: &str| Python::attach(|py| await_python(&coroutine.bind(py).call1((name,))?)).unwrap();
                    let (dropped, detached, awaited) = (begin("dropped"), begin("detached"), begin("awaited"));
                    let too_late = begin("too late");
                    let limited = task::timeout(Duration::from_millis(1), too_late);
                    detached.detach();
                    task::sleep(Duration::from_millis(2)).await;
                    drop(dropped);
                    assert!(limited.await.is_err());
                    awaited.await.unwrap();
                })
                .detach();
        });
        fixture.run("main")?;
        let mut log: Vec<String> = fixture.get("log").extract()?;
        log.sort();
        let expected =
            ["awaited has finished", "detached has finished", "dropped was cancelled", "too late was cancelled"];
        assert_eq!(log, expected);
        Ok(())
    });
}

#[test]
fn the_outcome_comes_when_a_stopped_loop_runs_again() {
    let code = "
async def coroutine():
    loop.stop()
    await asyncio.sleep(0.01)
    return 'later'
";
    with_loop(code, |fixture| {
        let outcome = awaits(fixture, "coroutine");
        fixture.its_loop.call_method0("run_forever")?;
        assert!(outcome.borrow().is_none());
        fixture.run_forever()?;
        assert_eq!(outcome.take().unwrap()?.extract::<String>(fixture.its_loop.py())?, "later");
        Ok(())
    });
}

#[test]
fn an_exit_ends_the_run_and_is_the_outcome() {
    with_loop("async def exits():\n    raise SystemExit(3)", |fixture| {
        let py = fixture.its_loop.py();
        let outcome = awaits(fixture, "exits");
        let raised = fixture.its_loop.call_method0("run_forever").unwrap_err();
        assert!(raised.is_instance_of::<pyo3::exceptions::PySystemExit>(py));
        fixture.run_forever()?;
        assert!(outcome.take().unwrap().unwrap_err().is_instance_of::<pyo3::exceptions::PySystemExit>(py));
        Ok(())
    });
}

#[test]
fn a_coroutine_has_the_context_of_the_code_that_awaits_it() {
    let code = "
variable = contextvars.ContextVar('variable', default='not set')
seen = []
async def coroutine():
    seen.append(variable.get())
    variable.set('set by the coroutine')
    await asyncio.sleep(0)
    seen.append(variable.get())
async def main(begin):
    variable.set('set by main')
    begin()
    await asyncio.sleep(0.02)
    seen.append(variable.get())
";
    with_loop(code, |fixture| {
        let coroutine = fixture.get("coroutine").unbind();
        let py = fixture.its_loop.py();
        let begin = PyCFunction::new_closure(py, None, None, move |arguments, _| {
            await_python(&coroutine.bind(arguments.py()).call0()?)?.detach();
            PyResult::Ok(())
        })?;
        fixture.run_awaitable(&fixture.get("main").call1((begin,))?)?;
        let seen: Vec<String> = fixture.get("seen").extract()?;
        assert_eq!(seen, ["set by main", "set by the coroutine", "set by main"]);
        Ok(())
    });
}
