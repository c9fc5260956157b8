//! Method tables: Rust functions that return a [`Result`], wrapped as the C functions that Python calls.
//!
//! Each macro creates the table entry for a Rust function. The C function around it turns panics into exceptions
//! and converts the result to an object.

use std::ffi::c_int;
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use crate::object::{Owned, Result, none};

/// A value that a method can return.
pub trait ReturnValue {
    /// Converts it to a new reference.
    fn into_object(self) -> *mut PyObject;
}

impl ReturnValue for Owned {
    #[inline]
    fn into_object(self) -> *mut PyObject {
        self.into_ptr()
    }
}

impl ReturnValue for () {
    #[inline]
    fn into_object(self) -> *mut PyObject {
        none()
    }
}

impl ReturnValue for bool {
    #[inline]
    fn into_object(self) -> *mut PyObject {
        // SAFETY: methods are called with the lock held.
        unsafe { ffi::PyBool_FromLong(c_int::from(self).into()) }
    }
}

impl ReturnValue for usize {
    #[inline]
    fn into_object(self) -> *mut PyObject {
        // SAFETY: methods are called with the lock held.
        unsafe { ffi::PyLong_FromSize_t(self) }
    }
}

impl ReturnValue for f64 {
    #[inline]
    fn into_object(self) -> *mut PyObject {
        // SAFETY: methods are called with the lock held.
        unsafe { ffi::PyFloat_FromDouble(self) }
    }
}

/// Converts the result of a method; null means that an exception is set.
#[inline]
pub fn answer<A: ReturnValue>(result: Result<A>) -> *mut PyObject {
    result.map_or(null_mut(), ReturnValue::into_object)
}

/// A method without arguments: `unsafe fn(object) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! without_arguments {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            _: *mut pyo3::ffi::PyObject,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that has this method.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe { $crate::methods::answer($method(object)) })
        }
        $crate::types::without_arguments($name, method, $doc)
    }};
}

/// A method with one argument: `unsafe fn(object, argument) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! with_one {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            argument: *mut pyo3::ffi::PyObject,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that has this method, and a live argument.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe { $crate::methods::answer($method(object, argument)) })
        }
        $crate::types::with_one($name, method, $doc)
    }};
}

/// A method with exactly N positional arguments: `unsafe fn(object, [argument; N]) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! with_several {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            arguments: *mut *mut pyo3::ffi::PyObject,
            count: pyo3::ffi::Py_ssize_t,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that has this method, and `count` live arguments.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe {
                $crate::methods::answer(
                    $crate::arguments::exactly($name, arguments, count)
                        .and_then(|arguments| $method(object, arguments)),
                )
            })
        }
        $crate::types::fast($name, method, $doc)
    }};
}

/// A method with positional and keyword arguments: `unsafe fn(object, Call) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! with_keywords {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            arguments: *const *mut pyo3::ffi::PyObject,
            count: pyo3::ffi::Py_ssize_t,
            keywords: *mut pyo3::ffi::PyObject,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that has this method, and with the arguments
            // of a call with keywords.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe {
                let call = $crate::arguments::Call { function: $name, arguments, count: count as usize, keywords };
                $crate::methods::answer($method(object, call))
            })
        }
        $crate::types::fast_with_keywords($name, method, $doc)
    }};
}

/// A method with one argument, which may be passed by its name: `unsafe fn(object, argument) -> Result<impl ReturnValue>`.
#[macro_export]
macro_rules! with_one_named {
    ($name:expr, $argument:expr, $method:path, $doc:expr $(,)?) => {{
        #[inline(always)]
        unsafe fn by_name(
            object: *mut pyo3::ffi::PyObject,
            call: $crate::arguments::Call,
        ) -> $crate::object::Result<impl $crate::methods::ReturnValue> {
            // SAFETY: `with_keywords` passes a live object and a call in progress. With a count of 1 the array has
            // an item.
            unsafe {
                if call.keywords.is_null() && call.count == 1 {
                    return $method(object, *call.arguments);
                }
                let [argument] = $crate::arguments::named(call, [$argument])?;
                $method(object, argument)
            }
        }
        $crate::with_keywords!($name, by_name, $doc)
    }};
}
