//! References to Python objects, and the error reported by a Python function that returns null.

use std::ffi::c_int;
use std::ptr::NonNull;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

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

impl From<Bound<'_, PyAny>> for Owned {
    #[inline]
    fn from(object: Bound<'_, PyAny>) -> Owned {
        // SAFETY: the reference is owned, and not null.
        Owned(unsafe { NonNull::new_unchecked(object.into_ptr()) })
    }
}

/// Returns an item of a tuple; `None` if C code has exposed the tuple before it was complete.
#[inline]
pub fn item_of_tuple<'py>(tuple: &Bound<'py, PyTuple>, index: usize) -> Option<Bound<'py, PyAny>> {
    if index >= tuple.len() {
        return None;
    }
    // SAFETY: the index is in range, and an item is null or alive.
    unsafe { Bound::from_borrowed_ptr_or_opt(tuple.py(), ffi::PyTuple_GET_ITEM(tuple.as_ptr(), index as _)) }
}

/// Returns an item of a list; `None` if there is none.
#[inline]
pub fn item_of_list<'py>(list: &Bound<'py, PyList>, index: usize) -> Option<Bound<'py, PyAny>> {
    if index >= list.len() {
        return None;
    }
    // SAFETY: as for a tuple.
    unsafe { Bound::from_borrowed_ptr_or_opt(list.py(), ffi::PyList_GET_ITEM(list.as_ptr(), index as _)) }
}

/// Returns the next pair of a dict, from `position` on, which begins at 0. A dict may change meanwhile: pairs are then skipped or repeated.
#[inline]
pub fn next_of_dict<'py>(
    dict: &Bound<'py, PyDict>,
    position: &mut isize,
) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let (py, mut key, mut value) = (dict.py(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: `PyDict_Next` checks the position, and sets both to references that the dict owns.
    unsafe {
        if ffi::PyDict_Next(dict.as_ptr(), position, &mut key, &mut value) == 0 {
            return None;
        }
        Some((Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, value)))
    }
}
