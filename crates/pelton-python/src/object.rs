//! References to Python objects, and the error that a Python function reports by returning nothing.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;

use pyo3::ffi::{self, PyObject};

/// A Python exception has been raised: it is set in the thread's state, for the caller to find.
#[derive(Debug)]
pub(crate) struct Raised;

pub(crate) type Result<T> = std::result::Result<T, Raised>;

/// A reference that is owned, and given back when dropped.
///
/// Dropping the last one runs whatever the object's finalizer does. It must not happen while a loop's state is borrowed.
pub(crate) struct Owned(NonNull<PyObject>);

impl Owned {
    /// Takes over a reference that a call has returned; an exception is set if it is null.
    ///
    /// # Safety
    /// `object` is null, or a reference that is the caller's to give away. The interpreter lock is held, here and
    /// wherever this value goes.
    pub(crate) unsafe fn returned(object: *mut PyObject) -> Result<Owned> {
        NonNull::new(object).map(Owned).ok_or(Raised)
    }

    /// Takes over a reference that may be none at all, without any exception.
    ///
    /// # Safety
    /// As for [`returned`](Owned::returned).
    pub(crate) unsafe fn taken(object: *mut PyObject) -> Option<Owned> {
        NonNull::new(object).map(Owned)
    }

    /// A new reference to an object.
    ///
    /// # Safety
    /// `object` is alive. The interpreter lock is held, here and wherever this value goes.
    pub(crate) unsafe fn new_reference(object: *mut PyObject) -> Owned {
        // SAFETY: the caller says that it is alive, so it is not null either.
        unsafe {
            ffi::Py_INCREF(object);
            Owned(NonNull::new_unchecked(object))
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut PyObject {
        self.0.as_ptr()
    }

    /// Gives the reference away.
    pub(crate) fn into_ptr(self) -> *mut PyObject {
        let object = self.0.as_ptr();
        std::mem::forget(self);
        object
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and whoever made this value has promised that the lock is held.
        unsafe { ffi::Py_DECREF(self.as_ptr()) };
    }
}

/// A new reference to `None`.
pub(crate) fn none() -> *mut PyObject {
    // SAFETY: `None` is always alive; the lock is held wherever this crate runs.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

/// A new reference to `object`, or to `None` if it is null.
///
/// # Safety
/// `object` is null or alive.
pub(crate) unsafe fn or_none(object: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    if object.is_null() { none() } else { unsafe { ffi::Py_NewRef(object) } }
}

/// Puts a new reference to `new` into `field`, null for `None`, and lets go of what was there.
///
/// # Safety
/// `field` points at a field of a live object that holds an owned reference or null; `new` is null or alive. No Rust
/// reference to that object's fields is held.
pub(crate) unsafe fn replace(field: *mut *mut PyObject, new: *mut PyObject) {
    // SAFETY: as the caller says. The field is up to date before the old reference is let go of, which may run anything.
    unsafe {
        let new = if new.is_null() || new == ffi::Py_None() { std::ptr::null_mut() } else { ffi::Py_NewRef(new) };
        let old = std::mem::replace(&mut *field, new);
        ffi::Py_XDECREF(old);
    }
}

/// Puts `new` into a field that was null before it was made, unless making it has called something that has filled the field
/// meanwhile. Returns a new reference to what is in the field.
///
/// # Safety
/// `field` points at a field of a live object that holds an owned reference or null. No Rust reference to that object's
/// fields is held.
pub(crate) unsafe fn fill_once(field: *mut *mut PyObject, new: Owned) -> Owned {
    // SAFETY: as the caller says. If `new` is not needed, it is let go of last.
    unsafe {
        if (*field).is_null() {
            *field = ffi::Py_NewRef(new.as_ptr());
            return new;
        }
        Owned::new_reference(*field)
    }
}

/// Gives back the end of a `bytes` object, which nobody else has seen yet.
///
/// # Safety
/// `bytes` is the only reference to such an object, which has at least that length.
pub(crate) unsafe fn resize_bytes(bytes: Owned, len: usize) -> Result<Owned> {
    // Part of the documented interface; pyo3 does not declare it.
    unsafe extern "C" {
        fn _PyBytes_Resize(bytes: *mut *mut PyObject, len: ffi::Py_ssize_t) -> c_int;
    }
    let mut bytes = bytes.into_ptr();
    // SAFETY: as the caller says. If it fails, it has let go of the object.
    unsafe {
        if ffi::PyBytes_Size(bytes) as usize != len {
            check(_PyBytes_Resize(&mut bytes, len as ffi::Py_ssize_t))?;
        }
        Owned::returned(bytes)
    }
}

/// A C function's answer.
pub(crate) fn pointer(result: Result<Owned>) -> *mut PyObject {
    result.map_or(std::ptr::null_mut(), Owned::into_ptr)
}

/// A C function's answer that is nothing but success.
pub(crate) fn nothing(result: Result<()>) -> *mut PyObject {
    result.map_or(std::ptr::null_mut(), |()| none())
}

/// A C function's answer where that is a number.
pub(crate) fn status(result: Result<()>) -> c_int {
    result.map_or(-1, |()| 0)
}

/// The outcome of a C function that answers -1 when it has raised.
pub(crate) fn check(status: c_int) -> Result<()> {
    if status < 0 { Err(Raised) } else { Ok(()) }
}

/// Raises `exception` with a message.
pub(crate) fn raise(exception: *mut PyObject, message: &CStr) -> Raised {
    // SAFETY: all exceptions that this is called with are built-in classes; the lock is held.
    unsafe { ffi::PyErr_SetString(exception, message.as_ptr()) };
    Raised
}

/// Raises `exception` with a message that is put together.
pub(crate) fn raise_text(exception: *mut PyObject, message: &str) -> Raised {
    // SAFETY: as for `raise`; the message is passed by pointer and length.
    unsafe {
        let text = ffi::PyUnicode_FromStringAndSize(message.as_ptr().cast(), message.len() as ffi::Py_ssize_t);
        if let Ok(text) = Owned::returned(text) {
            ffi::PyErr_SetObject(exception, text.as_ptr());
        }
    }
    Raised
}

/// Raises the `OSError` that `error` is: the subclass that belongs to its number, if it has one.
pub(crate) fn raise_io(error: &io::Error) -> Raised {
    // SAFETY: the exception classes are there as long as the interpreter is.
    let exception = unsafe { ffi::PyExc_OSError };
    let Some(number) = error.raw_os_error() else { return raise_wrapped(exception, error) };
    // SAFETY: `strerror` answers with a string for any number, and the lock keeps others from asking meanwhile. What the
    // format makes of the two is a tuple, whose reference is ours; an exception with a tuple is called with its items.
    unsafe {
        let arguments = ffi::Py_BuildValue(c"(is)".as_ptr(), number as c_int, libc::strerror(number));
        if let Ok(arguments) = Owned::returned(arguments) {
            ffi::PyErr_SetObject(exception, arguments.as_ptr());
        }
    }
    Raised
}

/// Raises an error that has a text of its own, and perhaps the system's error as its source.
#[cold]
fn raise_wrapped(exception: *mut PyObject, error: &io::Error) -> Raised {
    let source = error.get_ref().and_then(|inner| inner.source());
    let number = source.and_then(|source| source.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    let Some(number) = number else { return raise_text(exception, &error.to_string()) };
    let text = error.to_string();
    // SAFETY: as for `raise_io`; the text is passed by pointer and length.
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
