//! Calling Python for a task, with the interpreter lock held, and making out what came back.
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
use std::sync::atomic::Ordering;

use pelton_os::clock;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::TaskError;
use super::call::{Call, Name, Target};
use super::callables::Callables;
use super::callbacks::{Expired, Finished};
use super::completion::{CANCEL, Completion, INTERRUPT, Request, Tag};
use super::interpreter::{self, known};
use super::loops::{Executor, LoopShared, Waiting};
use super::namespaces::Namespaces;
use super::reply::Outcome;
use super::stream::Sink;
use super::workers::{Job, Workers};
use crate::core;
use crate::object::{Owned, Raised, Result, raise_text};
use crate::value::{self, Limits, Object, Value};

/// Arguments that are passed without allocating.
const INLINE: usize = 8;

/// What has been returned, and what is wanted of it.
pub(crate) struct Returned {
    pub(crate) object: Py<PyAny>,
    pub(crate) wishes: Wishes,
    pub(crate) completion: Completion,
}

/// A function, its arguments as a tuple, and its keyword arguments as a dictionary, if there are any.
type Prepared = (Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>);

/// What is wanted of a result.
#[derive(Clone, Copy)]
pub(crate) struct Wishes {
    pub(crate) deadline: Option<pelton_os::Time>,
    pub(crate) keep_exception: bool,
    pub(crate) as_object: bool,
}

/// Where tasks are executed: what belongs to the loop's thread.
pub(crate) struct Place {
    pub(crate) home: Arc<LoopShared>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) callables: Callables,
    pub(crate) namespaces: Namespaces,
}

impl Place {
    /// Starts a task.
    ///
    /// # Safety
    /// The lock is held, and `loop_` is the loop that runs on this thread.
    pub(crate) unsafe fn start(&mut self, py: Python<'_>, loop_: *mut PyObject, completion: Completion) {
        let request = completion.request();
        let Request { deadline, namespace, tag, .. } = request;
        if tag.is_wanted(CANCEL) || self.home.cancelling.load(Ordering::Relaxed) {
            return completion.settle(Err(TaskError::Cancelled));
        }
        if deadline.is_some_and(|deadline| deadline <= clock::now()) {
            return completion.settle(Err(TaskError::TimedOut));
        }
        let Some(call) = request.take() else { return };
        let wishes = Wishes { deadline: *deadline, keep_exception: call.keep_exception, as_object: call.as_object };
        // SAFETY: as the caller says.
        unsafe {
            if call.on_worker {
                let prepared = self.prepare(py, &call, *namespace);
                request.put_back(call);
                return match prepared {
                    Ok((function, args, keywords)) => {
                        self.workers.run(Job { function, args, keywords, wishes, completion, home: self.home.clone() });
                    }
                    Err(failure) => completion.settle(Err(failure.into_error(py, wishes.keep_exception))),
                };
            }
            let home = self.home.clone();
            let returned = executing(py, &home.executor, tag, || self.call(py, &call, *namespace));
            request.put_back(call);
            match returned {
                Ok(object) => settle(py, loop_, &home, object, wishes, completion),
                Err(failure) => completion.settle(Err(failure.into_error(py, wishes.keep_exception))),
            }
        }
    }

    unsafe fn call(&mut self, py: Python<'_>, call: &Call, namespace: u64) -> std::result::Result<Owned, Failure> {
        // SAFETY: the lock is held.
        unsafe {
            let function = match &call.target {
                Target::Function(module, function) => {
                    let namespace = self.namespaces.get(py, namespace)?;
                    self.callables.find(py, module, function, namespace)?
                }
                Target::Object(object) => Owned::new_reference(object.as_ptr()),
                Target::Exec(source) => return Ok(self.run_source(py, source, ffi::Py_file_input, namespace)?),
                Target::Eval(source) => return Ok(self.run_source(py, source, ffi::Py_eval_input, namespace)?),
            };
            call_with(py, &function, &call.args, &call.keywords)
        }
    }

    /// Finds a function and makes its arguments, for another thread to call it.
    unsafe fn prepare(
        &mut self,
        py: Python<'_>,
        call: &Call,
        namespace: u64,
    ) -> std::result::Result<Prepared, Failure> {
        let Call { target, args, keywords, .. } = call;
        // SAFETY: the lock is held; a tuple takes over the references that are put into it.
        unsafe {
            let own = |object: Owned| Bound::<PyAny>::from_owned_ptr(py, object.into_ptr()).unbind();
            let (function, first) = match target {
                Target::Function(module, function) => {
                    let namespace = self.namespaces.get(py, namespace)?;
                    (self.callables.find(py, module, function, namespace)?, None)
                }
                Target::Object(object) => (Owned::new_reference(object.as_ptr()), None),
                Target::Exec(source) | Target::Eval(source) => {
                    let name = if matches!(target, Target::Exec(_)) { c"exec" } else { c"eval" };
                    let function = ffi::PyDict_GetItemString(known().builtins.as_ptr(), name.as_ptr());
                    let namespace = Owned::new_reference(self.namespaces.get_or_main(py, namespace)?);
                    let source = value::to_pointer(&Value::Str(source.to_string()))?;
                    (Owned::new_reference(function), Some([source, namespace]))
                }
            };
            let tuple = Owned::returned(ffi::PyTuple_New((args.len() + if first.is_some() { 2 } else { 0 }) as _))?;
            let mut index = 0;
            for object in first.into_iter().flatten() {
                ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index, object.into_ptr());
                index += 1;
            }
            for (number, value) in args.iter().enumerate() {
                let object = value::argument(value).map_err(|error| error.within(format!("args[{number}]")))?;
                ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index, object.into_ptr());
                index += 1;
            }
            let mut dictionary = None;
            if !keywords.is_empty() {
                let made = Owned::returned(ffi::PyDict_New())?;
                for (name, value) in keywords {
                    let key = value::to_pointer(&Value::Str(name.to_string()))?;
                    let object = value::argument(value).map_err(|error| error.within(name.to_string()))?;
                    crate::object::check(ffi::PyDict_SetItem(made.as_ptr(), key.as_ptr(), object.as_ptr()))?;
                }
                dictionary = Some(own(made));
            }
            Ok((own(function), own(tuple), dictionary))
        }
    }

    /// Runs source code in a namespace.
    unsafe fn run_source(&mut self, py: Python<'_>, source: &str, kind: i32, namespace: u64) -> Result<Owned> {
        // SAFETY: the lock is held; the dictionary is kept while code runs in it, which may well forget it.
        unsafe {
            let namespace = Owned::new_reference(self.namespaces.get_or_main(py, namespace)?);
            let Ok(source) = std::ffi::CString::new(source) else {
                return Err(raise_text(ffi::PyExc_ValueError, "source code string cannot contain null bytes"));
            };
            let code = ffi::Py_CompileString(source.as_ptr(), c"<string>".as_ptr(), kind);
            let code = Owned::returned(code)?;
            Owned::returned(ffi::PyEval_EvalCode(code.as_ptr(), namespace.as_ptr(), namespace.as_ptr()))
        }
    }
}

/// Why there is nothing to be returned.
pub(crate) enum Failure {
    Raised,
    Conversion(value::ConversionError),
}

impl From<Raised> for Failure {
    fn from(Raised: Raised) -> Failure {
        Failure::Raised
    }
}

impl From<value::ConversionError> for Failure {
    fn from(error: value::ConversionError) -> Failure {
        Failure::Conversion(error)
    }
}

impl Failure {
    #[cold]
    pub(crate) fn into_error(self, py: Python<'_>, keep: bool) -> TaskError {
        match self {
            Failure::Raised => TaskError::Raised(Box::new(interpreter::describe(py, &PyErr::fetch(py), keep))),
            Failure::Conversion(error) => TaskError::Conversion(error),
        }
    }
}

/// Calls Python for a task, so that it can be interrupted meanwhile, and nobody else after.
#[inline]
pub(crate) fn executing<R>(py: Python<'_>, executor: &Executor, tag: &Tag, call: impl FnOnce() -> R) -> R {
    let outer = executor.task.load(Ordering::Relaxed);
    executor.task.store(std::ptr::from_ref(tag).addr(), Ordering::Relaxed);
    let returned = call();
    executor.task.store(outer, Ordering::Relaxed);
    if tag.is_wanted(INTERRUPT) {
        interpreter::take_back_interrupt(py, executor.thread.load(Ordering::Relaxed));
    }
    returned
}

/// Calls a function with values.
#[inline]
unsafe fn call_with(
    py: Python<'_>,
    function: &Owned,
    args: &[Value],
    keywords: &[(Name, Value)],
) -> std::result::Result<Owned, Failure> {
    let count = args.len() + keywords.len();
    // One in front is for the callee to use.
    let mut inline = [null_mut(); INLINE + 1];
    let mut allocated;
    let objects = if count <= INLINE {
        &mut inline[..]
    } else {
        allocated = vec![null_mut(); count + 1];
        &mut allocated[..]
    };
    // SAFETY: the array has as many objects as the call says, each with a reference of ours that is given back after it.
    unsafe {
        let mut made = 0;
        let mut convert = |value: &Value| {
            let object = value::argument(value)?;
            made += 1;
            objects[made] = object.into_ptr();
            Ok::<(), value::ConversionError>(())
        };
        let mut outcome = Ok(());
        for (index, value) in args.iter().enumerate() {
            if let Err(error) = convert(value) {
                outcome = Err(Failure::from(error.within(format!("args[{index}]"))));
                break;
            }
        }
        let mut names = None;
        if outcome.is_ok() && !keywords.is_empty() {
            outcome = keyword_names(py, keywords).map(|made| names = Some(made)).map_err(Failure::from);
            for (name, value) in keywords {
                if outcome.is_ok()
                    && let Err(error) = convert(value)
                {
                    outcome = Err(Failure::from(error.within(name.to_string())));
                }
            }
        }
        let returned = outcome.and_then(|()| {
            let names = names.as_ref().map_or(null_mut(), Owned::as_ptr);
            let flagged = args.len() | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
            Ok(Owned::returned(ffi::PyObject_Vectorcall(function.as_ptr(), objects.as_ptr().add(1), flagged, names))?)
        });
        if made > 0 {
            let raised = if returned.is_err() { PyErr::take(py) } else { None };
            for object in &objects[1..=made] {
                ffi::Py_DECREF(*object);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        }
        returned
    }
}

unsafe fn keyword_names(py: Python<'_>, keywords: &[(Name, Value)]) -> Result<Owned> {
    // SAFETY: the tuple takes over the references.
    unsafe {
        let names = Owned::returned(ffi::PyTuple_New(keywords.len() as _))?;
        for (index, (name, _)) in keywords.iter().enumerate() {
            let name = pyo3::types::PyString::intern(py, name);
            ffi::PyTuple_SET_ITEM(names.as_ptr(), index as _, name.into_ptr());
        }
        Ok(names)
    }
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
pub(crate) unsafe fn convert(py: Python<'_>, object: &Owned, wishes: Wishes) -> Outcome {
    // SAFETY: it is alive, and the lock is held.
    unsafe {
        if wishes.as_object {
            return Ok(Value::Object(Object::from_pointer(object.as_ptr())));
        }
        let _ = py;
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
