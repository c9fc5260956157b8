//! References to Python objects, and the error reported by a Python function that returns null.

use std::ffi::c_int;
use std::ptr::NonNull;

use pyo3::ffi::{self, PyObject};

/// A Python exception has been raised and is set in the thread's state.
#[derive(Debug)]
pub struct Raised;

impl From<Raised> for pyo3::PyErr {
    fn from(Raised: Raised) -> pyo3::PyErr {
        pyo3::Python::attach(pyo3::PyErr::fetch)
    }
}

/// The result of a call into Python.
pub type Result<T> = std::result::Result<T, Raised>;

/// An owned reference, released on drop.
///
/// Dropping the last reference may run a finalizer, so it must not happen while a loop's state is borrowed.
pub struct Owned(NonNull<PyObject>);

impl Owned {
    /// Takes over a reference returned by a call. If it is null, an exception is set.
    ///
    /// # Safety
    /// `object` is null, or a reference that the caller owns and gives away. The interpreter lock is held here and
    /// for as long as the value exists.
    #[inline]
    pub unsafe fn returned(object: *mut PyObject) -> Result<Owned> {
        NonNull::new(object).map(Owned).ok_or(Raised)
    }

    /// Takes over a reference that may be null without an exception.
    ///
    /// # Safety
    /// As for [`returned`](Owned::returned).
    #[inline]
    pub unsafe fn taken(object: *mut PyObject) -> Option<Owned> {
        NonNull::new(object).map(Owned)
    }

    /// Creates a new reference to an object.
    ///
    /// # Safety
    /// `object` is alive. The interpreter lock is held here and for as long as the value exists.
    #[inline]
    pub unsafe fn new_reference(object: *mut PyObject) -> Owned {
        // SAFETY: the caller guarantees that the object is alive, so the pointer is not null either.
        unsafe {
            ffi::Py_INCREF(object);
            Owned(NonNull::new_unchecked(object))
        }
    }

    /// Returns the object as a borrowed reference.
    #[inline]
    pub fn as_ptr(&self) -> *mut PyObject {
        self.0.as_ptr()
    }

    /// Gives the reference away.
    #[inline]
    pub fn into_ptr(self) -> *mut PyObject {
        let object = self.0.as_ptr();
        std::mem::forget(self);
        object
    }
}

impl Drop for Owned {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this value owns the reference. Its creator guarantees that the lock is held while the value exists.
        unsafe { ffi::Py_DECREF(self.as_ptr()) };
    }
}

/// Converts the status of a C function that returns -1 when it raises.
#[inline]
pub fn check(status: c_int) -> Result<()> {
    if status < 0 { Err(Raised) } else { Ok(()) }
}
