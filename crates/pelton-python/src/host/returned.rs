//! What a function has returned, and what becomes of it.
//!
//! | what a function returns | what becomes of it |
//! |---|---|
//! | a coroutine | a task of asyncio, which begins at once; if it never waits, that was all |
//! | a future or a task | its outcome, when it has one; it goes on belonging to whoever made it |
//! | anything else that can be awaited | a task that awaits it |
//! | a generator, asynchronous or not, if a stream was asked for | what it yields |
//! | anything else | is the outcome |
//!
//! A coroutine always gets a real task. Driving it by hand would be four times as fast for one that never waits, but while it
//! runs, `asyncio.current_task()` has to be a task: `asyncio.timeout()`, `TaskGroup` and anyio ask for it.

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
use super::loops::{LoopShared, Waiting};
use super::reply::Outcome;
use super::stream::Sink;
use crate::core;
use crate::object::{Owned, Raised, Result};
use crate::value::{self, Limits, Object, Value};

/// What has been returned, and what is wanted of it.
pub(crate) struct Returned {
    pub(crate) object: Py<PyAny>,
    pub(crate) wishes: Wishes,
    pub(crate) completion: Completion,
}

/// What is wanted of a result.
#[derive(Clone, Copy)]
pub(crate) struct Wishes {
    pub(crate) deadline: Option<pelton_os::Time>,
    pub(crate) keep_exception: bool,
    pub(crate) as_object: bool,
}

/// Makes an outcome of what a function returned, or waits for one.
///
/// # Safety
/// The lock is held, and `loop_` is the loop that runs on this thread.
#[inline]
pub(crate) unsafe fn settle(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<LoopShared>,
    object: Owned,
    wishes: Wishes,
    completion: Completion,
) {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(stream) = completion.stream() {
            let stream = stream.clone();
            return start_stream(py, loop_, home, object, stream, wishes, completion);
        }
        match kind_of(object.as_ptr()) {
            Kind::Plain => completion.settle(convert(py, &object, wishes)),
            Kind::Coroutine => start_coroutine(py, loop_, home, object, wishes, completion),
            Kind::Future => wait_for_future(py, loop_, home, object, wishes, completion),
            Kind::Awaitable => {
                let wrapped = ffi::PyObject_CallOneArg(known().wait_for.as_ptr(), object.as_ptr());
                match Owned::returned(wrapped) {
                    Ok(coroutine) => start_coroutine(py, loop_, home, coroutine, wishes, completion),
                    Err(raised) => completion.settle(Err(Failure::from(raised).into_error(py, wishes.keep_exception))),
                }
            }
        }
    }
}

/// What a function has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Coroutine,
    Future,
    Awaitable,
}

/// Tells what is to be awaited, and how, from what is not.
#[inline]
pub(crate) unsafe fn kind_of(object: *mut PyObject) -> Kind {
    // SAFETY: it is alive.
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
        // What asyncio goes by.
        let has = |name| ffi::PyObject_HasAttrString(its_type.cast(), name) != 0;
        if has(c"_asyncio_future_blocking".as_ptr()) {
            return Kind::Future;
        }
        Kind::Awaitable
    }
}

/// Whether it is a generator that `types.coroutine` has made a coroutine.
unsafe fn is_old_coroutine(object: *mut PyObject) -> bool {
    const CO_ITERABLE_COROUTINE: i64 = 0x100;
    // SAFETY: it is alive.
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

/// The value of an object.
#[inline]
pub(crate) unsafe fn convert(_: Python<'_>, object: &Owned, wishes: Wishes) -> Outcome {
    // SAFETY: it is alive, and the lock is held.
    unsafe {
        if wishes.as_object {
            return Ok(Value::Object(Object::from_pointer(object.as_ptr())));
        }
        value::from_pointer(object.as_ptr(), &Limits::DEFAULT).map_err(|error| error.within("result").into())
    }
}

/// Begins a coroutine. If it waits, its outcome comes later.
unsafe fn start_coroutine(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<LoopShared>,
    coroutine: Owned,
    wishes: Wishes,
    completion: Completion,
) {
    // SAFETY: all are alive. The arrays are as long as the calls say.
    unsafe {
        let task = executing(py, &home.executor, completion.tag(), || {
            let has_factory = core::core(loop_).is_ok_and(|core| !(*core).task_factory.is_null());
            if has_factory {
                let arguments = [loop_, coroutine.as_ptr()];
                let name = pyo3::intern!(py, "create_task").as_ptr();
                return Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut()));
            }
            new_task(py, home, &coroutine)
        });
        drop(coroutine);
        match task {
            Ok(task) => wait_for_future(py, loop_, home, task, wishes, completion),
            // `SystemExit` and `KeyboardInterrupt` come out this way.
            Err(raised) => completion.settle(Err(Failure::from(raised).into_error(py, wishes.keep_exception))),
        }
    }
}

/// Makes a task, which begins at once.
///
/// In two steps, so that there is a task to speak to if beginning it raises `SystemExit` or `KeyboardInterrupt`: else it would
/// complain that nobody has asked for its exception.
unsafe fn new_task(py: Python<'_>, home: &LoopShared, coroutine: &Owned) -> Result<Owned> {
    // SAFETY: a class can make and initialise objects; the keywords are those of its constructor, which changes nothing in there.
    unsafe {
        let class = known().task.as_ptr().cast::<ffi::PyTypeObject>();
        let (Some(make), Some(initialise)) = ((*class).tp_new, (*class).tp_init) else { return Err(Raised) };
        let arguments = Owned::returned(ffi::PyTuple_Pack(1, coroutine.as_ptr()))?;
        let task = Owned::returned(make(class, arguments.as_ptr(), null_mut()))?;
        let keywords = home.task_keywords.get().map_or(null_mut(), |keywords| keywords.as_ptr());
        if initialise(task.as_ptr(), arguments.as_ptr(), keywords) < 0 {
            let raised = PyErr::take(py);
            let task = Bound::<PyAny>::from_owned_ptr(py, task.into_ptr());
            // It has one; that is all there is to be known.
            let _ = task.call_method0("exception");
            if let Some(raised) = raised {
                raised.restore(py);
            }
            return Err(Raised);
        }
        Ok(task)
    }
}

/// Takes the outcome of a future, now or when there is one.
unsafe fn wait_for_future(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<LoopShared>,
    future: Owned,
    wishes: Wishes,
    completion: Completion,
) {
    // SAFETY: all are alive.
    unsafe {
        let done = Owned::returned(ffi::PyObject_CallMethodNoArgs(future.as_ptr(), pyo3::intern!(py, "done").as_ptr()));
        match done {
            Ok(done) if done.as_ptr() == ffi::Py_True() => {
                completion.settle(outcome_of(py, future.as_ptr(), wishes.keep_exception, wishes.as_object));
            }
            Ok(_) => {
                let future = Bound::<PyAny>::from_owned_ptr(py, future.into_ptr());
                let loop_ = Bound::<PyAny>::from_borrowed_ptr(py, loop_);
                wait(py, &loop_, home, &future, wishes, completion);
            }
            Err(raised) => completion.settle(Err(Failure::from(raised).into_error(py, wishes.keep_exception))),
        }
    }
}

/// What a future that is done has come to.
pub(crate) unsafe fn outcome_of(
    py: Python<'_>,
    future: *mut PyObject,
    keep_exception: bool,
    as_object: bool,
) -> Outcome {
    // SAFETY: it is alive, and the lock is held.
    unsafe {
        let result = Owned::returned(ffi::PyObject_CallMethodNoArgs(future, pyo3::intern!(py, "result").as_ptr()));
        match result {
            Ok(result) => convert(py, &result, Wishes { deadline: None, keep_exception, as_object }),
            Err(Raised) => {
                let error = PyErr::fetch(py);
                let future = Bound::<PyAny>::from_borrowed_ptr(py, future);
                let cancelled = future.call_method0("cancelled").and_then(|cancelled| cancelled.is_truthy());
                if cancelled.is_ok_and(|cancelled| cancelled) {
                    return Err(TaskError::Cancelled);
                }
                Err(TaskError::Raised(Box::new(interpreter::describe(py, &error, keep_exception))))
            }
        }
    }
}

/// Has the loop told when a future is done, and when its time is over.
fn wait(
    py: Python<'_>,
    loop_: &Bound<'_, PyAny>,
    home: &Arc<LoopShared>,
    future: &Bound<'_, PyAny>,
    wishes: Wishes,
    completion: Completion,
) {
    let number = home.next_number();
    let (keep_exception, as_object) = (wishes.keep_exception, wishes.as_object);
    let arranged = (|| {
        let its_loop = future.call_method0(pyo3::intern!(py, "get_loop"))?;
        if !its_loop.is(loop_) {
            return Err(pyo3::exceptions::PyRuntimeError::new_err(format!(
                "the function has returned a future of another loop: {}",
                future.repr()?
            )));
        }
        let timer = match wishes.deadline {
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
            let waiting = Waiting { completion, future, timer, keep_exception, as_object };
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

/// Streams what a generator yields.
unsafe fn start_stream(
    py: Python<'_>,
    loop_: *mut PyObject,
    home: &Arc<LoopShared>,
    source: Owned,
    stream: Arc<super::stream::StreamShared>,
    wishes: Wishes,
    completion: Completion,
) {
    // SAFETY: all are alive.
    unsafe {
        let source = Bound::<PyAny>::from_owned_ptr(py, source.into_ptr());
        let made = Bound::new(py, Sink { stream }).and_then(|sink| known().stream.bind(py).call1((source, sink)));
        match made {
            Ok(coroutine) => {
                let coroutine = Owned::new_reference(coroutine.as_ptr());
                start_coroutine(py, loop_, home, coroutine, wishes, completion);
            }
            Err(error) => {
                let exception = interpreter::describe(py, &error, wishes.keep_exception);
                completion.settle(Err(TaskError::Raised(Box::new(exception))));
            }
        }
    }
}
