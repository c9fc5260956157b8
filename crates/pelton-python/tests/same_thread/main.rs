//! Rust and Python on one thread: a loop's reactor, used by Rust, and each side awaiting the other.

#![cfg(feature = "embed")]

mod awaiting_python;
mod awaiting_rust;
mod http;
mod observing;
mod reactor;

use std::ffi::CString;
use std::time::Duration;

use pelton_python::same_thread::{prepare, with_reactor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyDictMethods};

/// Deadline for everything that must finish.
const LONG: Duration = Duration::from_secs(60);

/// A loop, and a namespace with functions.
struct Fixture<'py> {
    its_loop: Bound<'py, PyAny>,
    names: Bound<'py, PyDict>,
}

/// Calls `test` with a loop, and code that it needs. The loop is closed afterwards.
fn with_loop<T>(code: &str, test: impl FnOnce(&Fixture<'_>) -> PyResult<T>) -> T {
    prepare(&Default::default()).unwrap();
    Python::attach(|py| {
        let fixture = Fixture::new(py, code).unwrap();
        let tested = test(&fixture);
        fixture.its_loop.call_method0("close").unwrap();
        tested.unwrap_or_else(|error| {
            error.display(py);
            panic!("{error}")
        })
    })
}

impl<'py> Fixture<'py> {
    fn new(py: Python<'py>, code: &str) -> PyResult<Fixture<'py>> {
        let names = PyDict::new(py);
        let its_loop = py.import("pelton")?.call_method0("new_event_loop")?;
        names.set_item("loop", &its_loop)?;
        py.run(&CString::new(format!("import asyncio, contextvars, time\n{code}")).unwrap(), Some(&names), None)?;
        Ok(Fixture { its_loop, names })
    }

    fn get(&self, name: &str) -> Bound<'py, PyAny> {
        self.names.get_item(name).unwrap().unwrap_or_else(|| panic!("{name} is not defined"))
    }

    fn with_reactor<T>(&self, f: impl FnOnce(&mut pelton::Reactor) -> T) -> T {
        with_reactor(&self.its_loop, f).unwrap()
    }

    /// Runs the coroutine that a function returns.
    fn run(&self, function: &str) -> PyResult<Bound<'py, PyAny>> {
        self.run_awaitable(&self.get(function).call0()?)
    }

    fn run_awaitable(&self, awaitable: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let wait_for = self.its_loop.py().import("asyncio")?.getattr("wait_for")?;
        self.its_loop.call_method1("run_until_complete", (wait_for.call1((awaitable, LONG.as_secs()))?,))
    }

    /// Runs the loop until a callback stops it.
    fn run_forever(&self) -> PyResult<()> {
        let stop = self.its_loop.call_method1("call_later", (LONG.as_secs(), self.its_loop.getattr("stop")?))?;
        self.its_loop.call_method0("run_forever")?;
        stop.call_method0("cancel").map(drop)
    }
}
