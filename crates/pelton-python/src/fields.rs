//! Attributes that both sides use: asyncio's methods in Python by name, and this crate as fields of a state in Rust.

use std::ffi::c_int;

use pyo3::ffi::{self, PyObject};

use crate::object::{Raised, Result};

/// An attribute that is a `bool` field of what `$state` finds for an object.
macro_rules! flag {
    ($name:expr, $state:path, $field:ident) => {{
        unsafe extern "C" fn get(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live object of the type that this is an attribute of.
            unsafe {
                match $state(object) {
                    Ok(state) => ffi::PyBool_FromLong((*state).$field.into()),
                    Err($crate::object::Raised) => std::ptr::null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            $crate::panic::guard(-1, || {
                // SAFETY: likewise, and with a value unless the attribute is to be deleted. Asking for its truth may call
                // anything, so that comes first.
                let outcome = unsafe {
                    $crate::fields::truth(value).and_then(|truth| $state(object).map(|state| (*state).$field = truth))
                };
                $crate::object::status(outcome)
            })
        }
        $crate::types::attribute($name, get, Some(set))
    }};
}

/// An attribute that is an owned reference, null for `None`, likewise.
macro_rules! reference {
    ($name:expr, $state:path, $field:ident) => {{
        unsafe extern "C" fn get(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live object of the type that this is an attribute of.
            unsafe {
                match $state(object) {
                    Ok(state) => $crate::object::or_none((*state).$field),
                    Err($crate::object::Raised) => std::ptr::null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            $crate::panic::guard(-1, || {
                // SAFETY: likewise, and with a value unless the attribute is to be deleted, which is as good as `None`.
                unsafe {
                    let outcome = $state(object).map(|state| $crate::object::replace(&raw mut (*state).$field, value));
                    $crate::object::status(outcome)
                }
            })
        }
        $crate::types::attribute($name, get, Some(set))
    }};
}

/// An attribute that is a whole number, likewise.
macro_rules! number {
    ($name:expr, $state:path, $field:ident) => {{
        unsafe extern "C" fn get(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live object of the type that this is an attribute of.
            unsafe {
                match $state(object) {
                    Ok(state) => ffi::PyLong_FromLongLong((*state).$field.into()),
                    Err($crate::object::Raised) => std::ptr::null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            $crate::panic::guard(-1, || {
                // SAFETY: likewise, and with a value unless the attribute is to be deleted.
                let outcome = unsafe {
                    $crate::fields::whole(value)
                        .and_then(|number| $state(object).map(|state| (*state).$field = number as _))
                };
                $crate::object::status(outcome)
            })
        }
        $crate::types::attribute($name, get, Some(set))
    }};
}

pub(crate) use {flag, number, reference};

/// Whether `value`, null if an attribute is deleted, is true.
///
/// # Safety
/// It is null or alive.
pub(crate) unsafe fn truth(value: *mut PyObject) -> Result<bool> {
    // SAFETY: as the caller says.
    let truth: c_int = if value.is_null() { 0 } else { unsafe { ffi::PyObject_IsTrue(value) } };
    if truth < 0 { Err(Raised) } else { Ok(truth == 1) }
}

/// The number that `value` is, 0 if it is null.
///
/// # Safety
/// It is null or alive.
pub(crate) unsafe fn whole(value: *mut PyObject) -> Result<i64> {
    // SAFETY: as the caller says.
    unsafe {
        let number = if value.is_null() { 0 } else { ffi::PyLong_AsLongLong(value) };
        if number == -1 && !ffi::PyErr_Occurred().is_null() { Err(Raised) } else { Ok(number) }
    }
}
