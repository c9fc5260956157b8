//! Handling the results of functions.
//!
//! | a function returns | handling |
//! |---|---|
//! | a coroutine | a task of asyncio, which starts at once and is done if it never waits |
//! | a future or a task | its outcome, when it is done; it still belongs to its creator |
//! | another awaitable | a task that awaits it |
//! | a generator, asynchronous or not, if a stream was requested | its items |
//! | anything else | it is the outcome |
//!
//! A coroutine always gets a real task. Driving it by hand would be four times as fast for one that never waits.
//! But while it runs, `asyncio.current_task()` must be a task: `asyncio.timeout()`, `TaskGroup` and anyio use it.

use std::ptr::null_mut;
use std::sync::Arc;

use pelton_os::clock;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::TaskError;
use super::callbacks::{Expired, Finished};
use super::completion::{CANCEL, Completion};
use super::execute::{Failure, executing};
use super::interpreter::{self, known};
use super::loops::{HostedLoop, Waiting};
use super::reply::Outcome;
use super::stream::Sink;
use crate::value::{self, Limits, Object, Value};
use pelton_asyncio::hosting;
use pelton_cpython::object::{Owned, Raised, Result};

/// A result, and how to handle it.
pub(crate) struct Returned {
    pub(crate) object: Py<PyAny>,
    pub(crate) options: ResultOptions,
    pub(crate) completion: Completion,
}

/// How to handle a result.
#[derive(Clone, Copy)]
pub(crate) struct ResultOptions {
    pub(crate) deadline: Option<pelton_os::Time>,
    pub(crate) keep_exception: bool,
    pub(crate) as_object: bool,
}

/// Settles a task with its function's result or, if that result must be awaited, waits for it.
///
/// # Safety
/// The lock is held, and `loop_` is the loop that runs on this thread, or null for a thread without one.
#[inline]
pub(crate) unsafe fn settle(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<HostedLoop>,
    object: Owned,
    options: ResultOptions,
    completion: Completion,
) {
    // SAFETY: the caller holds the lock, and `loop_` is the loop of this thread.
    unsafe {
        if loop_.is_null() {
            return settle_here(py, home, object, options, completion);
        }
        if let Some(stream) = completion.stream() {
            let stream = stream.clone();
            return start_stream(py, loop_, home, object, stream, options, completion);
        }
        match kind_of(object.as_ptr()) {
            Kind::Plain => {
                let outcome = convert(py, &object, options, &completion);
                completion.settle(outcome);
            }
            Kind::Coroutine => start_coroutine(py, loop_, home, object, options, completion),
            Kind::Future => wait_for_future(py, loop_, home, object, options, completion),
            Kind::Awaitable => {
                let wrapped = ffi::PyObject_CallOneArg(known().wait_for.as_ptr(), object.as_ptr());
                match Owned::returned(wrapped) {
                    Ok(coroutine) => start_coroutine(py, loop_, home, coroutine, options, completion),
                    Err(raised) => completion.settle(Err(Failure::from(raised).into_error(py, options.keep_exception))),
                }
            }
        }
    }
}

/// Settles a task on a thread without a loop: awaits what must be awaited before it returns.
///
/// # Safety
/// The lock is held.
unsafe fn settle_here(
    py: Python<'_>,
    home: &Arc<HostedLoop>,
    object: Owned,
    options: ResultOptions,
    completion: Completion,
) {
    // SAFETY: the caller holds the lock, and the references are owned.
    unsafe {
        let plain = kind_of(object.as_ptr()) == Kind::Plain && completion.stream().is_none();
        let finished = if plain {
            Ok(object)
        } else {
            let object = Bound::<PyAny>::from_owned_ptr(py, object.into_ptr());
            let finished = executing(py, &home.executor, completion.tag(), || match completion.stream() {
                Some(_) => Err(pyo3::exceptions::PyRuntimeError::new_err("a worker has no loop that could stream")),
                None => known().complete.bind(py).call1((object,)),
            });
            finished
                .map_err(|error| {
                    error.restore(py);
                    Raised
                })
                .and_then(|result| Owned::returned(result.into_ptr()))
        };
        let outcome = match finished {
            Ok(object) => convert(py, &object, options, &completion),
            Err(raised) => Err(Failure::from(raised).into_error(py, options.keep_exception)),
        };
        completion.settle(outcome);
    }
}

/// The kinds of results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Coroutine,
    Future,
    Awaitable,
}

/// Determines whether and how to await an object.
#[inline]
pub(crate) unsafe fn kind_of(object: *mut PyObject) -> Kind {
    // SAFETY: the caller holds the lock and keeps the object alive.
    unsafe {
        if ffi::PyCoro_CheckExact(object) != 0 {
            return Kind::Coroutine;
        }
        let its_type = ffi::Py_TYPE(object);
        let methods = (*its_type).tp_as_async;
        let awaitable = !methods.is_null() && (*methods).am_await.is_some();
        if !awaitable {
            return if is_old_coroutine(object) { Kind::Awaitable } else { Kind::Plain };
        }
        // asyncio makes the same check.
        let has = |name| ffi::PyObject_HasAttrString(its_type.cast(), name) != 0;
        if has(c"_asyncio_future_blocking".as_ptr()) {
            return Kind::Future;
        }
        Kind::Awaitable
    }
}

/// Returns whether it is a generator that `types.coroutine` made a coroutine.
unsafe fn is_old_coroutine(object: *mut PyObject) -> bool {
    const CO_ITERABLE_COROUTINE: i64 = 0x100;
    // SAFETY: the caller holds the lock and keeps the object alive.
    unsafe {
        if ffi::PyGen_CheckExact(object) == 0 {
            return false;
        }
        Python::attach(|py| {
            let generator = Bound::<PyAny>::from_borrowed_ptr(py, object);
            let flags = generator.getattr("gi_code").and_then(|code| code.getattr("co_flags")?.extract::<i64>());
            flags.is_ok_and(|flags| flags & CO_ITERABLE_COROUTINE != 0)
        })
    }
}

/// Converts a result.
#[inline]
pub(crate) unsafe fn convert(
    py: Python<'_>,
    object: &Owned,
    options: ResultOptions,
    completion: &Completion,
) -> Outcome {
    // SAFETY: `object` is an owned reference, and the lock is held.
    unsafe {
        if let Some(task) = completion.foreign() {
            let object = Bound::<PyAny>::from_borrowed_ptr(py, object.as_ptr());
            return match task.with(|foreign| foreign.returned(&object)) {
                Some(Err(error)) => {
                    let exception = interpreter::describe(py, &error, options.keep_exception);
                    Err(TaskError::Raised(Box::new(exception)))
                }
                // Without the task, its loop was given up, and nobody waits for the result.
                Some(Ok(())) | None => Ok(Value::None),
            };
        }
        if options.as_object {
            return Ok(Value::Object(Object::from_pointer(object.as_ptr())));
        }
        value::from_pointer(object.as_ptr(), &Limits::DEFAULT).map_err(|error| error.within("result").into())
    }
}

/// Starts a coroutine. If it waits, its outcome follows later.
unsafe fn start_coroutine(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<HostedLoop>,
    coroutine: Owned,
    options: ResultOptions,
    completion: Completion,
) {
    // SAFETY: the caller holds the lock and keeps the loop alive. The arrays are as long as the calls state.
    unsafe {
        let task = executing(py, &home.executor, completion.tag(), || {
            let has_factory = hosting::has_task_factory(&Bound::from_borrowed_ptr(py, loop_));
            if has_factory {
                let arguments = [loop_, coroutine.as_ptr()];
                let name = pyo3::intern!(py, "create_task").as_ptr();
                return Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut()));
            }
            new_task(py, home, &coroutine)
        });
        drop(coroutine);
        match task {
            Ok(task) => wait_for_future(py, loop_, home, task, options, completion),
            // `SystemExit` and `KeyboardInterrupt` propagate this way.
            Err(raised) => completion.settle(Err(Failure::from(raised).into_error(py, options.keep_exception))),
        }
    }
}

/// Creates a task that starts at once.
///
/// This takes two steps, so that the task is available if starting it raises `SystemExit` or `KeyboardInterrupt`.
/// Otherwise the task would log that its exception was never retrieved.
unsafe fn new_task(py: Python<'_>, home: &HostedLoop, coroutine: &Owned) -> Result<Owned> {
    // SAFETY: the lock is held, as `py` shows. `tp_new` and `tp_init` are those of the class. The keywords are
    // those of its constructor, which does not modify them.
    unsafe {
        let class = known().task.as_ptr().cast::<ffi::PyTypeObject>();
        let (Some(make), Some(initialise)) = ((*class).tp_new, (*class).tp_init) else { return Err(Raised) };
        let arguments = Owned::returned(ffi::PyTuple_Pack(1, coroutine.as_ptr()))?;
        let task = Owned::returned(make(class, arguments.as_ptr(), null_mut()))?;
        let keywords = home.task_keywords.get().map_or(null_mut(), |keywords| keywords.as_ptr());
        if initialise(task.as_ptr(), arguments.as_ptr(), keywords) < 0 {
            let raised = PyErr::take(py);
            let task = Bound::<PyAny>::from_owned_ptr(py, task.into_ptr());
            // Retrieve the exception, so that asyncio does not log it.
            let _ = task.call_method0("exception");
            if let Some(raised) = raised {
                raised.restore(py);
            }
            return Err(Raised);
        }
        Ok(task)
    }
}

/// Takes the outcome of a future, now or when it is done.
unsafe fn wait_for_future(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<HostedLoop>,
    future: Owned,
    options: ResultOptions,
    completion: Completion,
) {
    // SAFETY: the caller holds the lock and keeps the loop alive; the future is an owned reference.
    unsafe {
        let done = Owned::returned(ffi::PyObject_CallMethodNoArgs(future.as_ptr(), pyo3::intern!(py, "done").as_ptr()));
        match done {
            Ok(done) if done.as_ptr() == ffi::Py_True() => {
                let outcome = outcome_of(py, future.as_ptr(), options, &completion);
                completion.settle(outcome);
            }
            Ok(_) => {
                let future = Bound::<PyAny>::from_owned_ptr(py, future.into_ptr());
                let loop_ = Bound::<PyAny>::from_borrowed_ptr(py, loop_);
                wait(py, &loop_, home, &future, options, completion);
            }
            Err(raised) => completion.settle(Err(Failure::from(raised).into_error(py, options.keep_exception))),
        }
    }
}

/// Returns the outcome of a future that is done.
pub(crate) unsafe fn outcome_of(
    py: Python<'_>,
    future: *mut PyObject,
    options: ResultOptions,
    completion: &Completion,
) -> Outcome {
    // SAFETY: the caller holds the lock and keeps the future alive.
    unsafe {
        let result = Owned::returned(ffi::PyObject_CallMethodNoArgs(future, pyo3::intern!(py, "result").as_ptr()));
        match result {
            Ok(result) => convert(py, &result, options, completion),
            Err(Raised) => {
                let error = PyErr::fetch(py);
                let future = Bound::<PyAny>::from_borrowed_ptr(py, future);
                let cancelled = future.call_method0("cancelled").and_then(|cancelled| cancelled.is_truthy());
                if cancelled.is_ok_and(|cancelled| cancelled) {
                    return Err(TaskError::Cancelled);
                }
                Err(TaskError::Raised(Box::new(interpreter::describe(py, &error, options.keep_exception))))
            }
        }
    }
}

/// Registers callbacks for when a future is done and when its timeout expires.
fn wait(
    py: Python<'_>,
    loop_: &Bound<'_, PyAny>,
    home: &Arc<HostedLoop>,
    future: &Bound<'_, PyAny>,
    options: ResultOptions,
    completion: Completion,
) {
    let number = home.next_number();
    let keep_exception = options.keep_exception;
    let arranged = (|| {
        let its_loop = future.call_method0(pyo3::intern!(py, "get_loop"))?;
        if !its_loop.is(loop_) {
            return Err(pyo3::exceptions::PyRuntimeError::new_err(format!(
                "the function returned a future of another loop: {}",
                future.repr()?
            )));
        }
        let timer = match options.deadline {
            None => None,
            Some(deadline) => {
                let left = (deadline - clock::now()).as_secs_f64();
                let expired = Bound::new(py, Expired { home: home.clone(), number })?;
                Some(loop_.call_method1(pyo3::intern!(py, "call_later"), (left, expired))?.unbind())
            }
        };
        let finished = Bound::new(py, Finished { home: home.clone(), number })?;
        future.call_method1(pyo3::intern!(py, "add_done_callback"), (finished,))?;
        Ok(timer)
    })();
    match arranged {
        Ok(timer) => {
            completion.tag().set_number(number);
            let cancel = completion.tag().is_wanted(CANCEL);
            let future = future.clone().unbind();
            let waiting = Waiting { completion, future, timer, options };
            home.waiting.lock().insert(number, waiting);
            if cancel {
                super::callbacks::cancel(py, home, number);
            }
        }
        Err(error) => {
            completion.settle(Err(TaskError::Raised(Box::new(interpreter::describe(py, &error, keep_exception)))));
        }
    }
}

/// Streams the items of a generator.
unsafe fn start_stream(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<HostedLoop>,
    source: Owned,
    stream: Arc<super::stream::StreamState>,
    options: ResultOptions,
    completion: Completion,
) {
    // SAFETY: the caller holds the lock and keeps the loop alive; the generator is an owned reference.
    unsafe {
        let source = Bound::<PyAny>::from_owned_ptr(py, source.into_ptr());
        let made = Bound::new(py, Sink { stream }).and_then(|sink| known().stream.bind(py).call1((source, sink)));
        match made {
            Ok(coroutine) => {
                let coroutine = Owned::new_reference(coroutine.as_ptr());
                start_coroutine(py, loop_, home, coroutine, options, completion);
            }
            Err(error) => {
                let exception = interpreter::describe(py, &error, options.keep_exception);
                completion.settle(Err(TaskError::Raised(Box::new(exception))));
            }
        }
    }
}
