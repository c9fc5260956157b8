//! Objects that this crate compares by address. They are looked up once and never released.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::Python;
use pyo3::ffi::PyObject;
use pyo3::types::{PyString, PyTuple};

static CONTEXT: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// Looks the objects up. Classes of this crate must not be made before.
pub fn look_up(py: Python<'_>) {
    CONTEXT.store(PyString::intern(py, "context").into_ptr(), Ordering::Relaxed);
}

/// A tuple with nothing but the name `context`, as `_asyncio` passes it: its string is not interned.
static CONTEXT_ALONE: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// Remembers the names of the keywords of a call that has only `context`. The first tuple is kept for good.
#[cold]
pub(crate) fn remember_context_alone(names: pyo3::Borrowed<'_, '_, PyTuple>) {
    if CONTEXT_ALONE.load(Ordering::Relaxed).is_null() {
        CONTEXT_ALONE.store(names.to_owned().into_ptr(), Ordering::Relaxed);
    }
}

/// Returns that tuple, or null.
#[inline]
pub(crate) fn context_alone() -> *mut PyObject {
    CONTEXT_ALONE.load(Ordering::Relaxed)
}

/// Returns the string `context`.
#[inline]
pub fn context() -> *mut PyObject {
    CONTEXT.load(Ordering::Relaxed)
}
