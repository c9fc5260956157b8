//! Rust and Python on one thread.
//!
//! A `pelton.Loop` owns a [`Reactor`] and turns it. Rust code in the same program can use that reactor: its timers, tasks, servers
//! and connections share the thread and the turn with asyncio's tasks, without another thread or a queue between them.
//!
//! | from | to | with |
//! |---|---|---|
//! | a loop | its reactor | [`with_reactor`] |
//! | Rust, in a callback or a task of the reactor | a coroutine, or anything else that Python can await | [`await_python`] |
//! | Python | a Rust future, or a [`Promise`](pelton::Promise), which is one | [`await_rust`] |
//!
//! Everything here needs the interpreter lock, as the arguments show. A callback of the reactor has it, so
//! [`Python::attach`] costs little there. Code that only the program's own Rust code calls should not call into Python at length in
//! dispatch, timers and ticks: asyncio's callbacks expect to run in the guest's batch. Creating a coroutine and awaiting it runs it
//! there.
//!
//! A loop whose reactor was used stays on its thread: closures registered with the reactor need not be [`Send`].
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use pelton_python::same_thread::{await_python, prepare, with_reactor};
//! use pyo3::prelude::*;
//!
//! prepare(&Default::default())?;
//! Python::attach(|py| -> PyResult<()> {
//!     let its_loop = py.import("pelton")?.call_method0("new_event_loop")?;
//!     let sleep = py.import("asyncio")?.getattr("sleep")?.unbind();
//!     with_reactor(&its_loop, |reactor| {
//!         reactor.spawn(async move {
//!             let slept = Python::attach(|py| await_python(&sleep.bind(py).call1((0.1, "rested"))?));
//!             println!("{:?}", slept?.await?);
//!             Ok::<(), PyErr>(())
//!         });
//!     })?;
//!     its_loop.call_method1("call_later", (1, its_loop.getattr("stop")?))?;
//!     its_loop.call_method0("run_forever")?;
//!     Ok(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pelton::Reactor;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::IntoPyDict;

use crate::event_loop::state::{self, Taken};

/// Calls `f` with the reactor of a `pelton.Loop`, whether it is running or not. From now on, the loop can be used on this thread
/// only.
///
/// Raises a `TypeError` if it is another kind of loop, and a `RuntimeError` if it is closed, if it belongs to another thread, or if
/// the reactor is in use further up the stack: `f` must not call this again.
pub fn with_reactor<T>(its_loop: &Bound<'_, PyAny>, f: impl FnOnce(&mut Reactor) -> T) -> PyResult<T> {
    let py = its_loop.py();
    let in_use = || PyRuntimeError::new_err("the loop runs on another thread, or its reactor is in use");
    // While `f` runs, it has the only way to the reactor: the reactor is out of the state, or was taken out of the place where it was
    // lent.
    let state = state::of(its_loop)?;
    state.check_open(py)?;
    state.bind_to_thread(py)?;
    match Taken::out_of(its_loop, state)? {
        Some(mut taken) => taken.with_reactor(f).ok_or_else(in_use),
        None => {
            let called = state.handle.with_reactor(|reactor| state.follow_fork(py, reactor).map(|()| f(reactor)));
            Ok(called.ok_or_else(in_use)??)
        }
    }
}

/// The running loop of this thread, as asyncio knows it.
fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.import(py, "asyncio", "get_running_loop")?.call0()
}

/// Awaits a coroutine, an asyncio future or task, or another awaitable object, on the loop that runs on this thread. Raises a
/// `RuntimeError` if none does, and a `TypeError` if the object cannot be awaited.
///
/// A coroutine becomes a task of the loop, in a copy of the current context, as `asyncio.ensure_future` does it. It begins in the
/// next batch of callbacks, usually that of the current turn, whether or not the result is polled.
pub fn await_python(awaitable: &Bound<'_, PyAny>) -> PyResult<Awaited> {
    let py = awaitable.py();
    let future = start(&running_loop(py)?, awaitable)?;
    let outcome = Arc::new(Mutex::new(State::Waiting(None)));
    let done = Bound::new(py, Done(outcome.clone()))?;
    future.call_method1(pyo3::intern!(py, "add_done_callback"), (done,))?;
    Ok(Awaited { future: future.unbind(), state: outcome, on_this_thread: PhantomData })
}

/// Returns the asyncio future of an awaitable object.
fn start<'py>(its_loop: &Bound<'py, PyAny>, awaitable: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static COROUTINE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static ENSURE_FUTURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = awaitable.py();
    // What `ensure_future` does for a coroutine. It is written in Python, and costs more than the task.
    if awaitable.get_type().is(COROUTINE.import(py, "types", "CoroutineType")?) {
        return its_loop.call_method1(pyo3::intern!(py, "create_task"), (awaitable,));
    }
    // With the loop: otherwise asyncio would take the one that is set for the thread.
    let keywords = [("loop", its_loop)].into_py_dict(py)?;
    ENSURE_FUTURE.import(py, "asyncio", "ensure_future")?.call((awaitable,), Some(&keywords))
}

/// The outcome of something that Python awaits. Dropping it cancels the task or future, unless that is done.
///
/// If the loop is stopped meanwhile, the outcome comes when it runs again. If it is closed, this is dropped with everything else on
/// its reactor.
#[must_use = "dropping it cancels the task"]
pub struct Awaited {
    future: Py<PyAny>,
    state: Arc<Mutex<State>>,
    /// asyncio's futures may be used on the loop's thread only.
    on_this_thread: PhantomData<Rc<()>>,
}

enum State {
    /// With the waker of the Rust task that has polled last.
    Waiting(Option<Waker>),
    Done(PyResult<Py<PyAny>>),
    /// Nobody is interested any more.
    Taken,
}

/// Locks. Code under this lock does not touch Python.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Awaited {
    /// Makes the task continue when this is dropped.
    pub fn detach(self) {
        *lock(&self.state) = State::Taken;
    }

    /// Returns the asyncio future or task.
    pub fn future(&self) -> &Py<PyAny> {
        &self.future
    }
}

impl Future for Awaited {
    type Output = PyResult<Py<PyAny>>;

    /// # Panics
    ///
    /// Panics if it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(outcome) => Poll::Ready(outcome),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Taken => panic!("polled after it was ready"),
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Taken);
        if let State::Waiting(_) = before {
            Python::attach(|py| {
                let future = self.future.bind(py);
                // A closed loop has nothing to cancel, and fails to schedule it.
                if let Err(error) = future.call_method0(pyo3::intern!(py, "cancel"))
                    && !error.is_instance_of::<PyRuntimeError>(py)
                {
                    error.write_unraisable(py, Some(future));
                }
            });
        }
    }
}

impl std::fmt::Debug for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaited").finish_non_exhaustive()
    }
}

/// Called by asyncio when the future is done.
#[pyclass(frozen, module = "pelton")]
struct Done(Arc<Mutex<State>>);

#[pymethods]
impl Done {
    fn __call__(&self, future: &Bound<'_, PyAny>) {
        if matches!(*lock(&self.0), State::Taken) {
            // If it has failed, asyncio logs that nobody has retrieved the exception.
            return;
        }
        let outcome = future.call_method0(pyo3::intern!(future.py(), "result")).map(Bound::unbind);
        let mut state = lock(&self.0);
        let before = std::mem::replace(&mut *state, State::Done(outcome));
        drop(state);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Returns an asyncio future with the outcome of a Rust future, which becomes a task on the reactor of the running loop. So the
/// Rust future may use everything that needs a reactor, such as `pelton::task::sleep` and `pelton::net`, and need not be [`Send`].
///
/// If the asyncio future is cancelled, the Rust future is dropped in the next tick phase. Raises a `RuntimeError` if no `pelton.Loop`
/// runs on this thread.
///
/// ```no_run
/// use pelton_python::same_thread::await_rust;
/// use pyo3::prelude::*;
///
/// /// A function that Python can call: `await later(7)`.
/// #[pyfunction]
/// fn later(py: Python<'_>, number: u64) -> PyResult<Bound<'_, PyAny>> {
///     await_rust(py, async move {
///         pelton::task::sleep(std::time::Duration::from_millis(10)).await;
///         Ok(number)
///     })
/// }
/// ```
#[track_caller]
pub fn await_rust<'py, T>(
    py: Python<'py>,
    rust: impl Future<Output = PyResult<T>> + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'any> IntoPyObject<'any> + 'static,
{
    let its_loop = running_loop(py)?;
    let future = its_loop.call_method0(pyo3::intern!(py, "create_future"))?;
    let settled = future.clone().unbind();
    let task = with_reactor(&its_loop, |reactor| {
        reactor.spawn(async move {
            let outcome = rust.await;
            Python::attach(|py| settle(settled.bind(py), outcome));
        })
    })?;
    let cancel = Bound::new(py, Cancel(Mutex::new(Some(task.cancel_on_drop()))))?;
    future.call_method1(pyo3::intern!(py, "add_done_callback"), (cancel,))?;
    Ok(future)
}

/// Sets the outcome of an asyncio future, unless it was cancelled.
fn settle<'py, T: IntoPyObject<'py>>(future: &Bound<'py, PyAny>, outcome: PyResult<T>) {
    let py = future.py();
    let settled = future.call_method0(pyo3::intern!(py, "done")).and_then(|done| {
        if done.is_truthy()? {
            return Ok(());
        }
        match outcome.and_then(|value| value.into_bound_py_any(py)) {
            Ok(value) => future.call_method1(pyo3::intern!(py, "set_result"), (value,)).map(drop),
            Err(error) => set_exception(future, error),
        }
    });
    if let Err(error) = settled {
        error.write_unraisable(py, Some(future));
    }
}

fn set_exception(future: &Bound<'_, PyAny>, error: PyErr) -> PyResult<()> {
    let py = future.py();
    let (set, error) = (pyo3::intern!(py, "set_exception"), error.into_value(py));
    // asyncio refuses a StopIteration, which would end the coroutine that awaits it.
    let refused = match future.call_method1(set, (&error,)) {
        Ok(_) => return Ok(()),
        Err(refused) => refused,
    };
    refused.set_cause(py, Some(PyErr::from_value(error.into_bound(py).into_any())));
    future.call_method1(set, (refused.into_value(py),)).map(drop)
}

/// Called by asyncio when the future is done. Drops the Rust future if it is not.
#[pyclass(frozen, module = "pelton")]
struct Cancel(Mutex<Option<pelton::task::JoinHandle<()>>>);

#[pymethods]
impl Cancel {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        let task = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(task);
    }
}

impl Drop for Cancel {
    /// Without the callback, the asyncio future was dropped and nobody awaits it. The Rust future continues, as an asyncio task does.
    fn drop(&mut self) {
        if let Some(task) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            task.detach();
        }
    }
}
