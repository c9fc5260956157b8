//! Attributes that asyncio's methods in Python use by name, and this crate as fields of a state in Rust.

use std::ffi::c_int;

use pyo3::ffi::{self, PyObject};

use crate::object::{Raised, Result};

/// An attribute that is a `bool` field of the state that `$state` returns.
#[macro_export]
macro_rules! flag {
    ($name:expr, $state:path, $field:ident) => {{
        unsafe extern "C" fn get(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live object of the type that has this attribute.
            unsafe {
                match $state(object) {
                    Ok(state) => ffi::PyBool_FromLong((*state).$field.into()),
                    Err($crate::object::Raised) => std::ptr::null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            $crate::panic::guard(-1, || {
                // SAFETY: Python calls it with a live object of the type that has this attribute, and with a live value
                // or null to delete it. The truth of the value is evaluated first, because that may run arbitrary code.
                let outcome = unsafe {
                    $crate::fields::truth(value).and_then(|truth| $state(object).map(|state| (*state).$field = truth))
                };
                $crate::object::status(outcome)
            })
        }
        $crate::types::attribute($name, get, Some(set))
    }};
}

/// An attribute that is an owned reference in such a state, null for `None`.
#[macro_export]
macro_rules! reference {
    ($name:expr, $state:path, $field:ident) => {{
        unsafe extern "C" fn get(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live object of the type that has this attribute.
            unsafe {
                match $state(object) {
                    Ok(state) => $crate::object::or_none((*state).$field),
                    Err($crate::object::Raised) => std::ptr::null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            $crate::panic::guard(-1, || {
                // SAFETY: Python calls it with a live object of the type that has this attribute, and with a live
                // value or null to delete it, which means `None`.
                unsafe {
                    let outcome = $state(object).map(|state| $crate::object::replace(&raw mut (*state).$field, value));
                    $crate::object::status(outcome)
                }
            })
        }
        $crate::types::attribute($name, get, Some(set))
    }};
}

/// An attribute that is an integer in such a state.
#[macro_export]
macro_rules! number {
    ($name:expr, $state:path, $field:ident) => {{
        unsafe extern "C" fn get(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live object of the type that has this attribute.
            unsafe {
                match $state(object) {
                    Ok(state) => ffi::PyLong_FromLongLong((*state).$field.into()),
                    Err($crate::object::Raised) => std::ptr::null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            $crate::panic::guard(-1, || {
                // SAFETY: Python calls it with a live object of the type that has this attribute, and with a live
                // value or null to delete it.
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

/// Returns whether `value` is true; false for null, when an attribute is deleted.
///
/// # Safety
/// It is null or alive.
#[inline]
pub unsafe fn truth(value: *mut PyObject) -> Result<bool> {
    // SAFETY: the caller guarantees that a pointer that is not null is alive.
    let truth: c_int = if value.is_null() { 0 } else { unsafe { ffi::PyObject_IsTrue(value) } };
    if truth < 0 { Err(Raised) } else { Ok(truth == 1) }
}

/// Returns the integer `value`; 0 for null.
///
/// # Safety
/// It is null or alive.
#[inline]
pub unsafe fn whole(value: *mut PyObject) -> Result<i64> {
    // SAFETY: the caller guarantees that a pointer that is not null is alive.
    unsafe {
        let number = if value.is_null() { 0 } else { ffi::PyLong_AsLongLong(value) };
        if number == -1 && !ffi::PyErr_Occurred().is_null() { Err(Raised) } else { Ok(number) }
    }
}
