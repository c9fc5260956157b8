//! A Rust future that Python awaits.
//!
//! To asyncio it is a coroutine: a task drives it with `send`, which polls the future. If that waits for something, the
//! coroutine yields an asyncio future, and the waker sees to it that this gets a result, on its loop. Wakers are called by any
//! thread, under whatever locks it has, so they never touch Python themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::function::{AnswerLater, panicked};
use super::outside::{self, Outside};
use crate::value::Object;

/// What a Rust function returns that is to be awaited.
#[pyclass(frozen, module = "pelton")]
pub(crate) struct Coroutine {
    name: Arc<str>,
    state: Mutex<State>,
}

enum State {
    /// It waits to be driven.
    Ready(AnswerLater),
    Running,
    Done,
}

/// Wakes the coroutine, once. Only wakers refer to it: it refers to an asyncio future, that to a task, and that to the coroutine,
/// so if this referred to it the four would keep each other alive, and Python's garbage collector would not see it.
struct Alarm {
    state: Mutex<AlarmState>,
    /// Set before it first waits.
    outside: OnceLock<Arc<dyn Outside>>,
}

enum AlarmState {
    /// The future is being polled.
    Idle,
    /// It was woken meanwhile.
    Woken,
    /// It waits, and so does this asyncio future.
    Waiting(Object),
}

/// Nothing panics under these locks, and nothing of Python's is touched.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut *state, AlarmState::Woken);
        drop(state);
        if let AlarmState::Waiting(future) = before
            && let Some(outside) = self.outside.get()
        {
            outside.run(Box::new(move |py| finish(future.bind(py))));
        }
    }
}

/// Has whoever awaits an asyncio future go on, unless it is over with.
fn finish(future: Bound<'_, PyAny>) {
    let done = future.call_method0("done").and_then(|done| done.is_truthy());
    if let Ok(false) = done
        && let Err(error) = future.call_method1("set_result", (future.py().None(),))
    {
        error.write_unraisable(future.py(), Some(&future));
    }
}

impl Coroutine {
    pub(crate) fn new(name: impl Into<Arc<str>>, future: AnswerLater) -> Coroutine {
        Coroutine { name: name.into(), state: Mutex::new(State::Ready(future)) }
    }

    /// Polls the future. An error is what ends a coroutine: `StopIteration` with its value, or an exception.
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
        let alarm = Arc::new(Alarm { state: Mutex::new(AlarmState::Idle), outside: OnceLock::new() });
        let waker = Waker::from(alarm.clone());
        let polled =
            py.detach(|| catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker)))));
        match polled {
            Ok(Poll::Pending) => {
                let asyncio_future = wait(py, &alarm)?;
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

    /// Drops the future, if it is not being polled.
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

/// It is the program's code that is dropped, and that must not take the interpreter down.
fn drop_quietly(future: AnswerLater) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
}

/// Whatever happens while a coroutine runs, it is done then.
struct Running<'a>(&'a Coroutine);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *lock(&self.0.state) = State::Done;
    }
}

/// An asyncio future that gets a result when the alarm goes off, or at once if it has already.
fn wait<'py>(py: Python<'py>, alarm: &Alarm) -> PyResult<Bound<'py, PyAny>> {
    let running_loop = py.import("asyncio.events")?.call_method0("get_running_loop")?;
    let _ = alarm.outside.get_or_init(|| outside::of(&running_loop));
    let future = running_loop.call_method0("create_future")?;
    // What asyncio's tasks go by, to tell a future that is awaited from one that is yielded by mistake.
    future.setattr("_asyncio_future_blocking", true)?;
    let object = Object::new(&future);
    let mut state = lock(&alarm.state);
    let is_woken = matches!(*state, AlarmState::Woken);
    if !is_woken {
        *state = AlarmState::Waiting(object);
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
        format!("<coroutine {} of Rust>", self.name)
    }
}
