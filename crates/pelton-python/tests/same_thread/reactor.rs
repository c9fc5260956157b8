//! The reactor of a loop.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pelton_python::same_thread::{await_python, with_reactor};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;

use crate::{Fixture, with_loop};

#[test]
fn callbacks_in_rust_and_tasks_in_python_share_the_loop() {
    let code = "
log = []
async def main():
    for number in range(3):
        log.append(number)
        await asyncio.sleep(0.01)
";
    with_loop(code, |fixture| {
        let (ticks, log) = (Rc::new(RefCell::new(0)), fixture.get("log").unbind());
        let count = ticks.clone();
        fixture.with_reactor(|reactor| {
            reactor.every(Duration::from_millis(1), move |_, _| *count.borrow_mut() += 1);
            reactor
                .next_tick(move |_| Python::attach(|py| log.call_method1(py, "append", ("rust",)).map(drop)).unwrap());
        });
        fixture.run("main")?;
        assert!(*ticks.borrow() >= 3, "{} beats of the timer", ticks.borrow());
        let log: Vec<String> = fixture.get("log").try_iter()?.map(|item| item.unwrap().to_string()).collect();
        assert!(log.iter().filter(|item| *item == "rust").count() == 1 && log.len() == 4, "{log:?}");
        Ok(())
    });
}

#[test]
fn other_loops_and_closed_ones_have_no_reactor() {
    with_loop("other = asyncio.SelectorEventLoop()", |fixture| {
        let py = fixture.its_loop.py();
        for other in [fixture.get("other"), py.None().into_bound(py)] {
            assert!(with_reactor(&other, |_| ()).unwrap_err().is_instance_of::<PyTypeError>(py));
        }
        fixture.get("other").call_method0("close")?;
        let closed = Fixture::new(py, "")?;
        closed.its_loop.call_method0("close")?;
        let error = with_reactor(&closed.its_loop, |_| ()).unwrap_err();
        assert!(error.is_instance_of::<PyRuntimeError>(py) && error.to_string().contains("closed"), "{error}");
        Ok(())
    });
}

#[test]
fn a_reactor_in_use_is_not_lent_again() {
    with_loop("import socket\none, other = socket.socketpair()\nlog = []", |fixture| {
        let its_loop = &fixture.its_loop;
        let py = its_loop.py();
        fixture.with_reactor(|_| {
            let again = with_reactor(its_loop, |_| ()).unwrap_err();
            assert!(again.is_instance_of::<PyRuntimeError>(py), "{again}");
            // Python code reaches the loop nonetheless. What it asks of the reactor is done later.
            let append = fixture.get("log").getattr("append").unwrap();
            its_loop.call_method1("add_reader", (fixture.get("one"), &append, "ready")).unwrap();
            its_loop.call_method1("call_soon", (append, "soon")).unwrap();
            let error = its_loop.call_method0("run_forever").unwrap_err();
            assert!(error.to_string().contains("already running"), "{error}");
        });
        fixture.get("other").call_method1("send", (b"x".as_slice(),))?;
        let sleep = py.import("asyncio")?.getattr("sleep")?;
        fixture.run_awaitable(&sleep.call1((0.01,))?)?;
        let log: Vec<String> = fixture.get("log").extract()?;
        assert!(log.contains(&"soon".to_owned()) && log.contains(&"ready".to_owned()), "{log:?}");
        its_loop.call_method1("remove_reader", (fixture.get("one"),)).map(drop)
    });
}

#[test]
fn a_used_loop_stays_on_its_thread() {
    with_loop("async def nothing(): pass", |fixture| {
        fixture.with_reactor(|_| ());
        let its_loop = fixture.its_loop.clone().unbind();
        let nothing = fixture.get("nothing").unbind();
        fixture.its_loop.py().detach(|| {
            std::thread::spawn(move || {
                Python::attach(|py| {
                    let its_loop = its_loop.bind(py);
                    let refused = with_reactor(its_loop, |_| ()).unwrap_err();
                    assert!(refused.is_instance_of::<PyRuntimeError>(py), "{refused}");
                    let coroutine = nothing.bind(py).call0().unwrap();
                    let refused = its_loop.call_method1("run_until_complete", (coroutine,)).unwrap_err();
                    assert!(refused.to_string().contains("another thread"), "{refused}");
                });
            })
            .join()
            .unwrap();
        });
        fixture.run("nothing").map(drop)
    });
}

#[test]
fn another_thread_does_not_get_the_reactor_of_a_running_loop() {
    let code = "
async def main(ask):
    await loop.run_in_executor(None, ask)
    await loop.shutdown_default_executor()
";
    with_loop(code, |fixture| {
        let py = fixture.its_loop.py();
        let its_loop = fixture.its_loop.clone().unbind();
        let ask = pyo3::types::PyCFunction::new_closure(py, None, None, move |arguments, _| {
            let py = arguments.py();
            assert!(with_reactor(its_loop.bind(py), |_| ()).unwrap_err().is_instance_of::<PyRuntimeError>(py));
            // Nor does a loop run here to await something on.
            let sleep = py.import("asyncio")?.getattr("sleep")?.call1((0,))?;
            let refused = await_python(&sleep).unwrap_err();
            sleep.call_method0("close")?;
            assert!(refused.is_instance_of::<PyRuntimeError>(py), "{refused}");
            PyResult::Ok(())
        })?;
        fixture.run_awaitable(&fixture.get("main").call1((ask,))?).map(drop)
    });
}

#[test]
fn a_callback_that_panics_ends_the_run_with_an_exception() {
    with_loop("async def nothing(): pass", |fixture| {
        fixture.with_reactor(|reactor| reactor.next_tick(|_| panic!("on purpose")));
        let error = fixture.run_forever().unwrap_err();
        assert!(error.to_string().contains("on purpose"), "{error}");
        fixture.run("nothing").map(drop)
    });
}

/// Tells when it is dropped.
struct Told(Rc<RefCell<bool>>);

impl Drop for Told {
    fn drop(&mut self) {
        *self.0.borrow_mut() = true;
    }
}

#[test]
fn closing_and_collecting_a_loop_drops_what_rust_has_registered() {
    for closes in [true, false] {
        with_loop("async def forever(): await asyncio.sleep(1000)", |fixture| {
            let py = fixture.its_loop.py();
            let other = Fixture::new(py, "async def forever(): await asyncio.sleep(1000)")?;
            let dropped = Rc::new(RefCell::new(false));
            let told = Told(dropped.clone());
            let forever = other.get("forever").unbind();
            other.with_reactor(|reactor| {
                reactor
                    .spawn(async move {
                        let _told = told;
                        let forever = Python::attach(|py| await_python(&forever.bind(py).call0()?)).unwrap();
                        drop(forever.await);
                    })
                    .detach();
            });
            other.run_awaitable(&py.import("asyncio")?.getattr("sleep")?.call1((0.01,))?)?;
            assert!(!*dropped.borrow());
            if closes {
                other.its_loop.call_method0("close")?;
                assert!(*dropped.borrow());
            }
            drop(other);
            py.import("gc")?.call_method0("collect")?;
            Ok(())
        });
    }
}
