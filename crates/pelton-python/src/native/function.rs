//! A Rust function as a Python object.
//!
//! Python calls it by the fast protocol: arguments in an array. They are made values, the interpreter lock is let go of, the
//! function is called, the lock is taken again, and the result is made an object.

use std::cell::Cell;
use std::ffi::CString;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use pyo3::exceptions::{PyRecursionError, PyRuntimeError};
use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::coroutine::Coroutine;
use super::{Args, Raise};
use crate::object::{Owned, Raised};
use crate::value::{self, Limits, Value};

/// Rust functions on the stack of a thread, each called by Python that the one before has called. A stack of two megabytes,
/// which Rust gives its threads, holds that many even without optimisation.
const DEEPEST: u32 = 64;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

pub(crate) type Answer = Result<Value, Raise>;
pub(crate) type AnswerLater = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What is called.
pub(crate) enum Body {
    /// Without the interpreter lock.
    Plain(Box<dyn Fn(Args) -> Answer + Send + Sync>),
    /// With it.
    Brief(Box<dyn Fn(Args) -> Answer + Send + Sync>),
    Async(Box<dyn Fn(Args) -> AnswerLater + Send + Sync>),
}

/// What a function object refers to, and what its definition is part of.
#[pyclass(frozen, module = "pelton")]
pub(crate) struct Function {
    body: Body,
    /// With the module's in front, for messages.
    full_name: Arc<str>,
    /// What `definition` points at.
    _name: CString,
    _doc: CString,
    definition: Box<Definition>,
}

struct Definition(ffi::PyMethodDef);

// SAFETY: it is not written to after it was made, and points at strings that belong to the same object.
unsafe impl Send for Definition {}
// SAFETY: as above.
unsafe impl Sync for Definition {}

/// Makes a function object. Python keeps a pointer to the definition, and with it a reference to what that is part of.
pub(crate) fn make<'py>(
    py: Python<'py>,
    module: &Bound<'py, PyModule>,
    name: &str,
    doc: &str,
    body: Body,
) -> PyResult<Bound<'py, PyAny>> {
    let module_name = module.name()?;
    let full_name = format!("{module_name}.{name}").into();
    let (name, doc) = (CString::new(name)?, CString::new(doc)?);
    let definition = ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: call },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr(),
    };
    let definition = Box::new(Definition(definition));
    let function = Bound::new(py, Function { body, full_name, _name: name, _doc: doc, definition })?;
    // SAFETY: the definition is where it is as long as `function` lives, which the new object refers to.
    unsafe {
        let definition = (&raw const function.get().definition.0).cast_mut();
        let object = ffi::PyCFunction_NewEx(definition, function.as_ptr(), module_name.as_ptr());
        Bound::from_owned_ptr_or_err(py, object)
    }
}

unsafe extern "C" fn call(
    function: *mut PyObject,
    arguments: *const *mut PyObject,
    count: Py_ssize_t,
    keywords: *mut PyObject,
) -> *mut PyObject {
    crate::panic::guard(std::ptr::null_mut(), || {
        // SAFETY: Python calls it with the lock, with the object that the function was made with, and with what the protocol
        // says: `count` positional arguments and one for each of the keywords.
        unsafe {
            let py = Python::assume_attached();
            let function = Bound::<PyAny>::from_borrowed_ptr(py, function);
            let Ok(function) = function.cast::<Function>() else { return std::ptr::null_mut() };
            match args(arguments, count as usize, keywords)
                .map_err(PyErr::from)
                .and_then(|args| function.get().answer(py, args))
            {
                Ok(object) => object.into_ptr(),
                Err(error) => {
                    error.restore(py);
                    std::ptr::null_mut()
                }
            }
        }
    })
}

/// # Safety
/// As `call` says.
unsafe fn args(
    arguments: *const *mut PyObject,
    count: usize,
    keywords: *mut PyObject,
) -> Result<Args, value::ConversionError> {
    let mut args = Args::default();
    // SAFETY: as the caller says.
    unsafe {
        args.values.reserve_exact(count);
        for index in 0..count {
            let value = value::from_pointer(*arguments.add(index), &Limits::DEFAULT);
            args.values.push(value.map_err(|error| error.within(format!("args[{index}]")))?);
        }
        if !keywords.is_null() {
            for index in 0..ffi::PyTuple_GET_SIZE(keywords) as usize {
                let name = value::from_pointer(ffi::PyTuple_GET_ITEM(keywords, index as Py_ssize_t), &Limits::DEFAULT)?;
                let Value::Str(name) = name else { continue };
                let value = value::from_pointer(*arguments.add(count + index), &Limits::DEFAULT);
                let value = value.map_err(|error| error.within(name.clone()))?;
                args.keywords.push((name, value));
            }
        }
    }
    Ok(args)
}

impl Function {
    fn answer(&self, py: Python<'_>, args: Args) -> PyResult<Owned> {
        let answer = match &self.body {
            Body::Async(body) => {
                let future = self.caught(|| Ok(body(args)))?;
                let coroutine = Bound::new(py, Coroutine::new(self.full_name.clone(), future))?;
                // SAFETY: the lock is held, and the object alive.
                return Ok(unsafe { Owned::new_reference(coroutine.as_ptr()) });
            }
            Body::Brief(body) => {
                let _depth = Depth::enter(&self.full_name)?;
                self.caught(|| Ok(body(args)))?
            }
            Body::Plain(body) => {
                let _depth = Depth::enter(&self.full_name)?;
                py.detach(|| self.caught(|| Ok(body(args))))?
            }
        };
        let answer = answer.map_err(|raise| raise.into_error(py))?;
        // SAFETY: the lock is held.
        unsafe { value::to_pointer(&answer) }.map_err(|error| error.within(format!("{}()", self.full_name)).into())
    }

    /// Calls the program's code. A panic in it becomes an exception.
    fn caught<R>(&self, body: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        // The program's own data may be left half done; that is for it to know, as with a panicking thread.
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panicked(&self.full_name, &*payload)))
    }
}

/// What Python is told of a panic.
#[cold]
pub(crate) fn panicked(name: &str, payload: &(dyn std::any::Any + Send)) -> PyErr {
    let message = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    PyRuntimeError::new_err(format!("the Rust function {name} panicked: {}", message.unwrap_or("no message")))
}

/// One more level.
struct Depth;

impl Depth {
    fn enter(name: &str) -> PyResult<Depth> {
        let depth = DEPTH.get();
        if depth >= DEEPEST {
            let text = format!("{DEEPEST} calls of Rust functions by Python inside each other, the last of {name}");
            return Err(PyRecursionError::new_err(text));
        }
        DEPTH.set(depth + 1);
        Ok(Depth)
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl From<Raised> for PyErr {
    fn from(Raised: Raised) -> PyErr {
        Python::attach(PyErr::fetch)
    }
}
