//! Conversion of descriptor arguments: an integer, or an object with `fileno()`.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use crate::event_loop::state;
use crate::known::known;
use pelton_cpython::object::{Owned, Raised, Result, raise_text};

/// Raises if a transport uses the descriptor, as asyncio does.
///
/// # Safety
/// Both are live objects, `loop_` a `pelton.Loop`.
pub(crate) unsafe fn refuse_transports(loop_: *mut PyObject, fd: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that both are alive. `loop._transports` is a dictionary of weak references by
    // descriptor. If it has this descriptor, or if the argument is not an integer, asyncio's own method decides.
    unsafe {
        let core = state::of(loop_)?;
        if !(*core).transports.is_null() && ffi::PyLong_CheckExact(fd) != 0 {
            // Comparing with keys of a custom class may run code that replaces the dictionary.
            let transports = Owned::new_reference((*core).transports);
            match ffi::PyDict_Contains(transports.as_ptr(), fd) {
                0 => return Ok(()),
                -1 => return Err(Raised),
                _ => {}
            }
        }
        let arguments = [loop_, fd];
        let name = known().names._ensure_fd_no_transport;
        Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}

/// Returns the descriptor given as an integer or as an object with `fileno()`.
///
/// # Safety
/// `object` is alive.
pub(crate) unsafe fn descriptor(object: *mut PyObject) -> Result<RawFd> {
    // SAFETY: the caller guarantees that the object is alive.
    unsafe {
        let number = if ffi::PyLong_Check(object) != 0 {
            ffi::PyLong_AsLong(object)
        } else {
            let number = Owned::returned(ffi::PyObject_CallMethodNoArgs(object, known().names.fileno));
            let number = number.map(|number| ffi::PyLong_AsLong(number.as_ptr()));
            if !ffi::PyErr_Occurred().is_null() {
                let expected = [ffi::PyExc_AttributeError, ffi::PyExc_TypeError, ffi::PyExc_ValueError];
                if expected.iter().all(|expected| ffi::PyErr_ExceptionMatches(*expected) == 0) {
                    return Err(Raised);
                }
                ffi::PyErr_Clear();
                return Err(invalid("file object", object));
            }
            number?
        };
        if number == -1 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        if number < 0 || number > c_int::MAX.into() {
            return Err(raise_text(ffi::PyExc_ValueError, &format!("Invalid file descriptor: {number}")));
        }
        Ok(number as RawFd)
    }
}

#[cold]
unsafe fn invalid(what: &str, object: *mut PyObject) -> Raised {
    pyo3::Python::attach(|py| {
        // SAFETY: the caller guarantees that the object is alive.
        let repr = unsafe { pyo3::Bound::from_borrowed_ptr(py, object) };
        let text = pyo3::types::PyAnyMethods::repr(&repr).map(|repr| repr.to_string()).unwrap_or_default();
        // SAFETY: exception classes live as long as the interpreter.
        raise_text(unsafe { ffi::PyExc_ValueError }, &format!("Invalid {what}: {text}"))
    })
}
