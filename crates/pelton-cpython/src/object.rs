//! References to Python objects, and the error reported by a Python function that returns null.

use std::ffi::{CStr, c_int};
use std::io;
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

/// A new reference to `None`.
#[inline]
pub fn none() -> *mut PyObject {
    // SAFETY: `None` is always alive, and all code of this crate that handles references holds the lock.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

/// A new reference to `object`, or to `None` if it is null.
///
/// # Safety
/// `object` is null or alive.
#[inline]
pub unsafe fn or_none(object: *mut PyObject) -> *mut PyObject {
    // SAFETY: the caller guarantees that a pointer that is not null is alive.
    if object.is_null() { none() } else { unsafe { ffi::Py_NewRef(object) } }
}

/// Stores a new reference to `new` in `field`, or null for `None`, and drops the old value.
///
/// # Safety
/// `field` points at a field of a live object that holds an owned reference or null; `new` is null or alive. No Rust
/// reference to that object's fields is held.
#[inline]
pub unsafe fn replace(field: *mut *mut PyObject, new: *mut PyObject) {
    // SAFETY: the caller guarantees that `field` is valid and `new` is null or alive. The field is updated before
    // the old reference is dropped, because dropping it may run arbitrary code.
    unsafe {
        let new = if new.is_null() || new == ffi::Py_None() { std::ptr::null_mut() } else { ffi::Py_NewRef(new) };
        let old = std::mem::replace(&mut *field, new);
        ffi::Py_XDECREF(old);
    }
}

/// Stores `new` in a field that was null before `new` was created, unless code that ran meanwhile has filled the
/// field. Returns a new reference to the object in the field.
///
/// # Safety
/// `field` points at a field of a live object that holds an owned reference or null. No Rust reference to that object's
/// fields is held.
#[inline]
pub unsafe fn fill_once(field: *mut *mut PyObject, new: Owned) -> Owned {
    // SAFETY: the caller guarantees that `field` is valid. An unused `new` is dropped last.
    unsafe {
        if (*field).is_null() {
            *field = ffi::Py_NewRef(new.as_ptr());
            return new;
        }
        Owned::new_reference(*field)
    }
}

/// Shrinks a `bytes` object that no other code has seen yet.
///
/// # Safety
/// `bytes` is the only reference to a `bytes` object of at least that length.
#[inline]
pub unsafe fn resize_bytes(bytes: Owned, len: usize) -> Result<Owned> {
    // Part of the documented C API; pyo3 does not declare it.
    unsafe extern "C" {
        fn _PyBytes_Resize(bytes: *mut *mut PyObject, len: ffi::Py_ssize_t) -> c_int;
    }
    let mut bytes = bytes.into_ptr();
    // SAFETY: the caller guarantees that this is the only reference. On failure `_PyBytes_Resize` has released the
    // object.
    unsafe {
        if ffi::PyBytes_Size(bytes) as usize != len {
            check(_PyBytes_Resize(&mut bytes, len as ffi::Py_ssize_t))?;
        }
        Owned::returned(bytes)
    }
}

/// Converts a result for a C function that returns an object.
#[inline]
pub fn pointer(result: Result<Owned>) -> *mut PyObject {
    result.map_or(std::ptr::null_mut(), Owned::into_ptr)
}

/// Converts a result without a value for a C function that returns an object.
#[inline]
pub fn nothing(result: Result<()>) -> *mut PyObject {
    result.map_or(std::ptr::null_mut(), |()| none())
}

/// Converts a result for a C function that returns a status.
#[inline]
pub fn status(result: Result<()>) -> c_int {
    result.map_or(-1, |()| 0)
}

/// Converts the status of a C function that returns -1 when it raises.
#[inline]
pub fn check(status: c_int) -> Result<()> {
    if status < 0 { Err(Raised) } else { Ok(()) }
}

/// Raises `exception` with a message.
pub fn raise(exception: *mut PyObject, message: &CStr) -> Raised {
    // SAFETY: all callers pass a built-in exception class and hold the lock.
    unsafe { ffi::PyErr_SetString(exception, message.as_ptr()) };
    Raised
}

/// Raises `exception` with a formatted message.
pub fn raise_text(exception: *mut PyObject, message: &str) -> Raised {
    // SAFETY: as for `raise`. The message is passed by pointer and length.
    unsafe {
        let text = ffi::PyUnicode_FromStringAndSize(message.as_ptr().cast(), message.len() as ffi::Py_ssize_t);
        if let Ok(text) = Owned::returned(text) {
            ffi::PyErr_SetObject(exception, text.as_ptr());
        }
    }
    Raised
}

/// Raises the `OSError` for `error`, as the subclass for its number if there is one.
pub fn raise_io(error: &io::Error) -> Raised {
    // SAFETY: exception classes live as long as the interpreter.
    let exception = unsafe { ffi::PyExc_OSError };
    let Some(number) = error.raw_os_error() else { return raise_wrapped(exception, error) };
    // SAFETY: `strerror` returns a valid string for any number, and a constant one for the numbers that the system
    // reports. `Py_BuildValue` returns a new tuple or null. `PyErr_SetObject` calls the exception class with the
    // items of the tuple.
    unsafe {
        let arguments = ffi::Py_BuildValue(c"(is)".as_ptr(), number as c_int, libc::strerror(number));
        if let Ok(arguments) = Owned::returned(arguments) {
            ffi::PyErr_SetObject(exception, arguments.as_ptr());
        }
    }
    Raised
}

/// Raises `error` with its own message. The error may wrap a system error, whose number is then kept.
#[cold]
fn raise_wrapped(exception: *mut PyObject, error: &io::Error) -> Raised {
    let source = error.get_ref().and_then(|inner| inner.source());
    let number = source.and_then(|source| source.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    let Some(number) = number else { return raise_text(exception, &error.to_string()) };
    let text = error.to_string();
    // SAFETY: as for `raise_io`. The text is passed by pointer and length.
    unsafe {
        let text = ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len() as ffi::Py_ssize_t);
        let Ok(text) = Owned::returned(text) else { return Raised };
        let arguments = ffi::Py_BuildValue(c"(iO)".as_ptr(), number as c_int, text.as_ptr());
        if let Ok(arguments) = Owned::returned(arguments) {
            ffi::PyErr_SetObject(exception, arguments.as_ptr());
        }
    }
    Raised
}
