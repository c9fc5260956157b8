//! Rust functions as Python objects.
//!
//! Python calls them by vectorcall. The arguments are converted to values and the interpreter lock is released.
//! After the function returns, the lock is acquired again and the result is converted to an object.

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
use crate::value::{self, Limits, Value};
use pelton_cpython::object::Owned;

/// Maximum nesting of Rust functions on a thread's stack, each called by Python code that the previous one called.
/// It fits into two megabytes of stack, the default for Rust threads, even in an unoptimised build.
const DEEPEST: u32 = 64;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

pub(crate) type CallResult = Result<Value, Raise>;
pub(crate) type CallFuture = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// The Rust code of a function.
pub(crate) enum Body {
    /// Called without the interpreter lock.
    Plain(Box<dyn Fn(Args) -> CallResult + Send + Sync>),
    /// Called with the interpreter lock held.
    Brief(Box<dyn Fn(Args) -> CallResult + Send + Sync>),
    Async(Box<dyn Fn(Args) -> CallFuture + Send + Sync>),
}

/// The object that a function object refers to, with the definition that Python points to.
#[pyclass(frozen, module = "pelton")]
pub(crate) struct Function {
    body: Body,
    /// Includes the module name; for messages.
    full_name: Arc<str>,
    /// `definition` points to this and the next field.
    _name: CString,
    _doc: CString,
    definition: Box<Definition>,
}

struct Definition(ffi::PyMethodDef);

// SAFETY: it is immutable, and points to strings owned by the same `Function`.
unsafe impl Send for Definition {}
// SAFETY: as for `Send`.
unsafe impl Sync for Definition {}

/// Creates a function object. Python keeps a pointer to the definition, and a reference to the object that owns it.
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
    // SAFETY: the definition is boxed and lives as long as `function`, to which the new object owns a reference.
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
    pelton_cpython::panic::guard(std::ptr::null_mut(), || {
        // SAFETY: Python calls it with the lock held and with the object that the function was created with. There
        // are `count` positional arguments, then one for each keyword.
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
/// The lock is held. There are `count` positional arguments, then one for each keyword.
unsafe fn args(
    arguments: *const *mut PyObject,
    count: usize,
    keywords: *mut PyObject,
) -> Result<Args, value::ConversionError> {
    let mut args = Args::default();
    // SAFETY: the caller guarantees that the array has these arguments and keeps them alive.
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
                // SAFETY: the lock is held, as `py` shows, and the object is alive.
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
        // SAFETY: the lock is held, as `py` shows.
        unsafe { value::to_pointer(&answer) }.map_err(|error| error.within(format!("{}()", self.full_name)).into())
    }

    /// Calls the program's code. A panic becomes an exception.
    fn caught<R>(&self, body: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        // As with a panicking thread, the program's own data may be left inconsistent.
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panicked(&self.full_name, &*payload)))
    }
}

/// Returns the exception for a panic.
#[cold]
pub(crate) fn panicked(name: &str, payload: &(dyn std::any::Any + Send)) -> PyErr {
    let message = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    PyRuntimeError::new_err(format!("the Rust function {name} panicked: {}", message.unwrap_or("no message")))
}

/// One level of nesting.
struct Depth;

impl Depth {
    fn enter(name: &str) -> PyResult<Depth> {
        let depth = DEPTH.get();
        if depth >= DEEPEST {
            let text =
                format!("more than {DEEPEST} nested calls of Rust functions from Python, the last one to {name}");
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
