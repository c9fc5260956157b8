//! Rust futures that Python can await.
//!
//! To asyncio this is a coroutine: a task drives it with `send`, which polls the future. If the future is pending,
//! the coroutine yields an asyncio future, and the waker sets the result of that future on its loop. Wakers may be
//! called by any thread while it holds any lock, so they never touch Python themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::function::{CallFuture, panicked};
use super::outside::{self, Outside};
use crate::value::Object;

/// The awaitable that an async Rust function returns.
#[pyclass(frozen, module = "pelton")]
pub(crate) struct Coroutine {
    name: Arc<str>,
    state: Mutex<State>,
}

enum State {
    /// It can be polled.
    Ready(CallFuture),
    Running,
    Done,
}

/// Wakes the coroutine once. Only wakers refer to it. It refers to an asyncio future, which refers to a task, which
/// refers to the coroutine. If the coroutine referred to this, there would be a cycle that Python's garbage
/// collector cannot see.
struct CoroutineWaker {
    state: Mutex<WakeState>,
    /// Set before the first wait.
    outside: OnceLock<Arc<dyn Outside>>,
}

enum WakeState {
    /// The future is being polled.
    Idle,
    /// It was woken while it was being polled.
    Woken,
    /// It is pending, and this asyncio future will resume it.
    Waiting(Object),
}

/// Locks. Code under these locks neither panics nor touches Python.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for CoroutineWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut *state, WakeState::Woken);
        drop(state);
        if let WakeState::Waiting(future) = before
            && let Some(outside) = self.outside.get()
        {
            outside.run(Box::new(move |py| finish(future.bind(py))));
        }
    }
}

/// Resumes the task that awaits an asyncio future, unless the future is already done.
fn finish(future: Bound<'_, PyAny>) {
    let done = future.call_method0("done").and_then(|done| done.is_truthy());
    if let Ok(false) = done
        && let Err(error) = future.call_method1("set_result", (future.py().None(),))
    {
        error.write_unraisable(future.py(), Some(&future));
    }
}

impl Coroutine {
    pub(crate) fn new(name: impl Into<Arc<str>>, future: CallFuture) -> Coroutine {
        Coroutine { name: name.into(), state: Mutex::new(State::Ready(future)) }
    }

    /// Polls the future. A coroutine ends with an error: `StopIteration` with its value, or an exception.
    fn step<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let before = std::mem::replace(&mut *lock(&self.state), State::Running);
        let mut future = match before {
            State::Ready(future) => future,
            State::Running => return Err(PyValueError::new_err("coroutine already executing")),
            State::Done => {
                *lock(&self.state) = State::Done;
                return Err(PyRuntimeError::new_err("cannot reuse already awaited coroutine"));
            }
        };
        let running = Running(self);
        let waker = Arc::new(CoroutineWaker { state: Mutex::new(WakeState::Idle), outside: OnceLock::new() });
        let as_waker = Waker::from(waker.clone());
        let polled =
            py.detach(|| catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&as_waker)))));
        match polled {
            Ok(Poll::Pending) => {
                let asyncio_future = wait(py, &waker)?;
                std::mem::forget(running);
                *lock(&self.state) = State::Ready(future);
                Ok(asyncio_future)
            }
            Ok(Poll::Ready(answer)) => {
                py.detach(|| drop_quietly(future));
                let answer = answer.map_err(|raise| raise.into_error(py))?;
                let value = answer.to_python(py).map_err(|error| error.within(format!("{}()", self.name)))?;
                Err(PyStopIteration::new_err((value.unbind(),)))
            }
            Err(payload) => {
                py.detach(|| drop_quietly(future));
                Err(panicked(&self.name, &*payload))
            }
        }
    }

    /// Drops the future if it is not being polled.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let before = std::mem::replace(&mut *lock(&self.state), State::Done);
        match before {
            State::Ready(future) => {
                py.detach(|| drop_quietly(future));
                Ok(())
            }
            State::Running => {
                *lock(&self.state) = State::Running;
                Err(PyValueError::new_err("coroutine already executing"))
            }
            State::Done => Ok(()),
        }
    }
}

/// Drops the program's code, whose panics must not reach the interpreter.
fn drop_quietly(future: CallFuture) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
}

/// Marks the coroutine as done when it is dropped, even by a panic.
struct Running<'a>(&'a Coroutine);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *lock(&self.0.state) = State::Done;
    }
}

/// Returns an asyncio future that is done when the waker is called, or now if it has been called already.
fn wait<'py>(py: Python<'py>, waker: &CoroutineWaker) -> PyResult<Bound<'py, PyAny>> {
    let running_loop = py.import("asyncio.events")?.call_method0("get_running_loop")?;
    let _ = waker.outside.get_or_init(|| outside::of(&running_loop));
    let future = running_loop.call_method0("create_future")?;
    // asyncio's tasks use this flag to tell an awaited future from one that was yielded by mistake.
    future.setattr("_asyncio_future_blocking", true)?;
    let object = Object::new(&future);
    let mut state = lock(&waker.state);
    let is_woken = matches!(*state, WakeState::Woken);
    if !is_woken {
        *state = WakeState::Waiting(object);
    }
    drop(state);
    if is_woken {
        finish(future.clone());
    }
    Ok(future)
}

#[pymethods]
impl Coroutine {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.step(py)
    }

    fn send<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.step(value.py())
    }

    #[pyo3(signature = (exception, value = None, traceback = None))]
    fn throw(
        &self,
        exception: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = traceback;
        self.end(exception.py())?;
        Err(match (exception.cast::<PyType>(), value) {
            (Ok(_), Some(value)) => PyErr::from_value(value),
            (Ok(class), None) => PyErr::from_value(class.call0()?),
            (Err(_), _) => PyErr::from_value(exception),
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
    }

    #[getter]
    fn __name__(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    #[getter]
    fn __qualname__(&self) -> &str {
        self.__name__()
    }

    fn __repr__(&self) -> String {
        format!("<Rust coroutine {}>", self.name)
    }
}
