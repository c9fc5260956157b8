//! Whether Python code watches over what is done with a class, or with the system.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Returns the version of a class. CPython assigns a class a new one at the first use after a change; 0 if it has none.
#[inline]
pub fn version(class: &Bound<'_, PyType>) -> u32 {
    // SAFETY: it is a type.
    unsafe { (*class.as_type_ptr()).tp_version_tag }
}

unsafe extern "C" {
    // Part of the documented C API; pyo3 does not declare it.
    fn PySys_Audit(event: *const c_char, format: *const c_char, ...) -> c_int;
}

/// Converter for an event argument that always raises.
unsafe extern "C" fn no_argument(_: *mut c_void) -> *mut PyObject {
    // SAFETY: arguments are converted with the lock held.
    unsafe { ffi::PyErr_SetNone(ffi::PyExc_RuntimeError) };
    null_mut()
}

/// Returns whether there are audit hooks. No exception may be set.
///
/// No function reports this. But the arguments of an event are converted only if there are hooks, and before any
/// hook is called. So this raises an event whose argument cannot be converted. It fails if there are hooks, and
/// calls none of them.
pub fn is_audited(_: Python<'_>) -> bool {
    let converter: unsafe extern "C" fn(*mut c_void) -> *mut PyObject = no_argument;
    // SAFETY: the lock is held. "O&" takes a converter and its argument.
    unsafe {
        let outcome = PySys_Audit(c"pelton.probe".as_ptr(), c"O&".as_ptr(), converter, null_mut::<c_void>());
        if outcome != 0 {
            ffi::PyErr_Clear();
        }
        outcome != 0
    }
}
