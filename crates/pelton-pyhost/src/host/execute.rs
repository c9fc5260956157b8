//! Calling Python for a task, with the interpreter lock held. `returned.rs` handles the result.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pelton_os::clock;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::TaskError;
use super::call::{Call, Name, Target};
use super::callables::Callables;
use super::completion::{CANCEL, Completion, INTERRUPT, Request, Tag};
use super::foreign::{ArgumentList, ForeignTask};
use super::interpreter::{self, known};
use super::loops::{Executor, HostedLoop};
use super::namespaces::Namespaces;
use super::returned::{ResultOptions, settle};
use super::workers::{Job, Workers};
use crate::value::{self, Value};
use pelton_cpython::object::{Owned, Raised, Result};

/// Number of arguments that are passed without allocating.
const INLINE: usize = 8;

/// A function, its arguments as a tuple, and its keyword arguments, if any, as a dictionary.
type Prepared = (Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>);

/// Executes tasks on a loop's thread.
pub(crate) struct Place {
    pub(crate) home: Arc<HostedLoop>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) callables: Callables,
    pub(crate) namespaces: Namespaces,
}

/// A namespace: its table, and its number there.
struct Space {
    namespaces: Namespaces,
    number: u64,
}

impl Place {
    /// Starts a task.
    ///
    /// # Safety
    /// The lock is held, and `loop_` is the loop that runs on this thread, or null for a thread without one.
    pub(crate) unsafe fn start(&mut self, py: Python<'_>, loop_: *mut PyObject, completion: Completion) {
        let request = completion.request();
        let Request { deadline, namespace, elsewhere, tag, .. } = request;
        if tag.is_wanted(CANCEL) || self.home.cancelling.load(Ordering::Relaxed) {
            return completion.settle(Err(TaskError::Cancelled));
        }
        if deadline.is_some_and(|deadline| deadline <= clock::now()) {
            return completion.settle(Err(TaskError::TimedOut));
        }
        let Some(call) = request.take() else { return };
        let namespaces = elsewhere.as_ref().map_or_else(|| self.namespaces.clone(), |home| home.namespaces.clone());
        let space = Space { namespaces, number: *namespace };
        let options =
            ResultOptions { deadline: *deadline, keep_exception: call.keep_exception, as_object: call.as_object };
        // SAFETY: the caller holds the lock, and `loop_` is the loop of this thread.
        unsafe {
            if call.on_worker {
                let prepared = self.prepare(py, &call, &space, completion.foreign());
                request.put_back(call);
                return match prepared {
                    Ok((function, args, keywords)) => {
                        self.workers.run(Job {
                            function,
                            args,
                            keywords,
                            options,
                            completion,
                            home: self.home.clone(),
                        });
                    }
                    Err(failure) => completion.settle(Err(failure.into_error(py, options.keep_exception))),
                };
            }
            let home = self.home.clone();
            let foreign = completion.foreign();
            let returned = executing(py, &home.executor, tag, || self.call(py, &call, &space, foreign));
            request.put_back(call);
            match returned {
                Ok(object) => settle(py, loop_, &home, object, options, completion),
                Err(failure) => completion.settle(Err(failure.into_error(py, options.keep_exception))),
            }
        }
    }

    unsafe fn call(
        &mut self,
        py: Python<'_>,
        call: &Call,
        space: &Space,
        foreign: Option<&Arc<ForeignTask>>,
    ) -> std::result::Result<Owned, Failure> {
        // SAFETY: the caller holds the lock.
        unsafe {
            let function = match &call.target {
                Target::Function(module, function) => {
                    let namespace = space.namespaces.get(py, space.number)?;
                    self.callables.find(py, module, function, namespace)?
                }
                Target::Object(object) => Owned::new_reference(object.as_ptr()),
                Target::Exec(source) => return run_source(py, source, ffi::Py_file_input, space, foreign),
                Target::Eval(source) => return run_source(py, source, ffi::Py_eval_input, space, foreign),
            };
            match foreign {
                None => call_with(py, &function, &call.args, &call.keywords),
                Some(task) => {
                    let returned = arguments(py, call, task).and_then(|mut list| list.call(function.as_ptr()));
                    let returned = returned.map_err(|error| error.restore(py));
                    Ok(Owned::returned(returned.map_or(null_mut(), Bound::into_ptr))?)
                }
            }
        }
    }

    /// Looks up a function and converts its arguments, for another thread to call.
    unsafe fn prepare(
        &mut self,
        py: Python<'_>,
        call: &Call,
        space: &Space,
        foreign: Option<&Arc<ForeignTask>>,
    ) -> std::result::Result<Prepared, Failure> {
        let Call { target, args, keywords, .. } = call;
        // SAFETY: the caller holds the lock. The tuple takes over the references to its items.
        unsafe {
            let own = |object: Owned| Bound::<PyAny>::from_owned_ptr(py, object.into_ptr()).unbind();
            let (function, first) = match target {
                Target::Function(module, function) => {
                    let namespace = space.namespaces.get(py, space.number)?;
                    (self.callables.find(py, module, function, namespace)?, None)
                }
                Target::Object(object) => (Owned::new_reference(object.as_ptr()), None),
                Target::Exec(source) | Target::Eval(source) => {
                    let name = if matches!(target, Target::Exec(_)) { c"exec" } else { c"eval" };
                    let function = ffi::PyDict_GetItemString(known().builtins.as_ptr(), name.as_ptr());
                    let namespace = Owned::new_reference(space.namespaces.get_or_main(py, space.number)?);
                    let source = value::to_pointer(&Value::Str(source.to_string()))?;
                    let mut first = vec![source, namespace];
                    match foreign.and_then(|task| task.with(|foreign| foreign.locals(py))) {
                        None | Some(Ok(None)) => {}
                        Some(Ok(Some(locals))) => first.push(Owned::returned(locals.into_ptr())?),
                        Some(Err(error)) => {
                            error.restore(py);
                            return Err(Failure::Raised);
                        }
                    }
                    (Owned::new_reference(function), Some(first))
                }
            };
            if first.is_none()
                && let Some(task) = foreign
            {
                let packed = arguments(py, call, task).and_then(|list| list.packed());
                let (tuple, dictionary) = packed.map_err(|error| {
                    error.restore(py);
                    Failure::Raised
                })?;
                return Ok((own(function), tuple, dictionary));
            }
            let tuple = Owned::returned(ffi::PyTuple_New((args.len() + first.as_ref().map_or(0, Vec::len)) as _))?;
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
                    pelton_cpython::object::check(ffi::PyDict_SetItem(made.as_ptr(), key.as_ptr(), object.as_ptr()))?;
                }
                dictionary = Some(own(made));
            }
            Ok((own(function), own(tuple), dictionary))
        }
    }
}

/// Runs source code in a namespace.
unsafe fn run_source(
    py: Python<'_>,
    source: &str,
    kind: i32,
    space: &Space,
    foreign: Option<&Arc<ForeignTask>>,
) -> std::result::Result<Owned, Failure> {
    // SAFETY: the caller holds the lock. An owned reference keeps the dictionary alive, because the code may
    // drop the namespace.
    unsafe {
        let namespace = Owned::new_reference(space.namespaces.get_or_main(py, space.number)?);
        let Ok(source) = std::ffi::CString::new(source) else {
            let message = "source code string cannot contain null bytes";
            return Err(pelton_cpython::call::raise::<pyo3::exceptions::PyValueError>(py, message).into());
        };
        let code = ffi::Py_CompileString(source.as_ptr(), c"<string>".as_ptr(), kind);
        let code = Owned::returned(code)?;
        let locals = match foreign.and_then(|task| task.with(|foreign| foreign.locals(py))) {
            None | Some(Ok(None)) => None,
            Some(Ok(locals)) => locals,
            Some(Err(error)) => {
                error.restore(py);
                return Err(Failure::Raised);
            }
        };
        let locals = locals.as_ref().map_or(namespace.as_ptr(), |locals| locals.as_ptr());
        Ok(Owned::returned(ffi::PyEval_EvalCode(code.as_ptr(), namespace.as_ptr(), locals))?)
    }
}

/// Returns the arguments of a task that converts its own.
fn arguments<'py>(py: Python<'py>, call: &Call, task: &ForeignTask) -> PyResult<ArgumentList<'py>> {
    let mut list = ArgumentList::new(py);
    for (index, value) in call.args.iter().enumerate() {
        list.push(value.to_python(py).map_err(|error| error.within(format!("args[{index}]")))?);
    }
    match task.with(|foreign| foreign.arguments(&mut list)) {
        Some(outcome) => outcome?,
        None => return Err(pyo3::exceptions::PyRuntimeError::new_err("the loop of the task was given up")),
    }
    for (name, value) in &call.keywords {
        let value = value.to_python(py).map_err(|error| error.within(name.to_string()))?;
        list.keyword(pyo3::types::PyString::new(py, name), value);
    }
    Ok(list)
}

/// Why a call returned nothing.
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

/// Calls Python for a task. The task can be interrupted during the call, and no other code after it.
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

/// Calls a function with converted arguments.
#[inline]
unsafe fn call_with(
    py: Python<'_>,
    function: &Owned,
    args: &[Value],
    keywords: &[(Name, Value)],
) -> std::result::Result<Owned, Failure> {
    let count = args.len() + keywords.len();
    // The first item is scratch space for the callee, as vectorcall allows.
    let mut inline = [null_mut(); INLINE + 1];
    let mut allocated;
    let objects = if count <= INLINE {
        &mut inline[..]
    } else {
        allocated = vec![null_mut(); count + 1];
        &mut allocated[..]
    };
    // SAFETY: the array has as many objects as the call states. Each is an owned reference, released after the call.
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
    // SAFETY: the lock is held, as `py` shows. The tuple takes over the references.
    unsafe {
        let names = Owned::returned(ffi::PyTuple_New(keywords.len() as _))?;
        for (index, (name, _)) in keywords.iter().enumerate() {
            let name = pyo3::types::PyString::intern(py, name);
            ffi::PyTuple_SET_ITEM(names.as_ptr(), index as _, name.into_ptr());
        }
        Ok(names)
    }
}
