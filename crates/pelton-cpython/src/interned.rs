//! Objects that this crate compares by address. They are looked up once and never released.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::Python;
use pyo3::ffi::PyObject;
use pyo3::types::{PyString, PyTuple};

static CONTEXT: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());
static EMPTY_TUPLE: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// Looks the objects up. Classes of this crate must not be made before.
pub fn look_up(py: Python<'_>) {
    CONTEXT.store(PyString::intern(py, "context").into_ptr(), Ordering::Relaxed);
    EMPTY_TUPLE.store(PyTuple::empty(py).into_ptr(), Ordering::Relaxed);
}

/// Returns the string `context`.
#[inline]
pub fn context() -> *mut PyObject {
    CONTEXT.load(Ordering::Relaxed)
}

/// Returns the empty tuple.
#[inline]
pub fn empty_tuple() -> *mut PyObject {
    EMPTY_TUPLE.load(Ordering::Relaxed)
}
