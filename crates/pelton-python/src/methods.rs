//! Methods: what Python calls is a C function, what this crate writes is a Rust function that returns a [`Result`].
//!
//! Each macro makes a table entry for a function of ours, with a C function around it in which a panic becomes an exception, and
//! whatever our function returns an object.

use std::ffi::c_int;
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use crate::object::{Owned, Result, none};

/// What a method returns.
pub(crate) trait Answer {
    /// A new reference to it.
    fn into_answer(self) -> *mut PyObject;
}

impl Answer for Owned {
    fn into_answer(self) -> *mut PyObject {
        self.into_ptr()
    }
}

impl Answer for () {
    fn into_answer(self) -> *mut PyObject {
        none()
    }
}

impl Answer for bool {
    fn into_answer(self) -> *mut PyObject {
        // SAFETY: the lock is held.
        unsafe { ffi::PyBool_FromLong(c_int::from(self).into()) }
    }
}

impl Answer for usize {
    fn into_answer(self) -> *mut PyObject {
        // SAFETY: the lock is held.
        unsafe { ffi::PyLong_FromSize_t(self) }
    }
}

impl Answer for f64 {
    fn into_answer(self) -> *mut PyObject {
        // SAFETY: the lock is held.
        unsafe { ffi::PyFloat_FromDouble(self) }
    }
}

/// A C function's answer; null if an exception is set.
pub(crate) fn answer<A: Answer>(result: Result<A>) -> *mut PyObject {
    result.map_or(null_mut(), Answer::into_answer)
}

/// A method without arguments: `unsafe fn(object) -> Result<impl Answer>`.
macro_rules! without_arguments {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            _: *mut pyo3::ffi::PyObject,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that this is a method of.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe { $crate::methods::answer($method(object)) })
        }
        $crate::types::without_arguments($name, method, $doc)
    }};
}

/// A method with one argument: `unsafe fn(object, argument) -> Result<impl Answer>`.
macro_rules! with_one {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            argument: *mut pyo3::ffi::PyObject,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that this is a method of, and a live argument.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe { $crate::methods::answer($method(object, argument)) })
        }
        $crate::types::with_one($name, method, $doc)
    }};
}

/// A method with so many positional arguments: `unsafe fn(object, [argument; N]) -> Result<impl Answer>`.
macro_rules! with_several {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            arguments: *mut *mut pyo3::ffi::PyObject,
            count: pyo3::ffi::Py_ssize_t,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that this is a method of, and that many live arguments.
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

/// A method with arguments that may have names: `unsafe fn(object, Call) -> Result<impl Answer>`.
macro_rules! with_keywords {
    ($name:expr, $method:path, $doc:expr $(,)?) => {{
        unsafe extern "C" fn method(
            object: *mut pyo3::ffi::PyObject,
            arguments: *const *mut pyo3::ffi::PyObject,
            count: pyo3::ffi::Py_ssize_t,
            keywords: *mut pyo3::ffi::PyObject,
        ) -> *mut pyo3::ffi::PyObject {
            // SAFETY: Python calls it with a live object of the type that this is a method of, and with the arguments of a call
            // like this.
            $crate::panic::guard(std::ptr::null_mut(), || unsafe {
                let call = $crate::arguments::Call { function: $name, arguments, count: count as usize, keywords };
                $crate::methods::answer($method(object, call))
            })
        }
        $crate::types::fast_with_keywords($name, method, $doc)
    }};
}

/// A method with one argument that may be given by its name, as one of [`Names`](crate::known::Names): `unsafe fn(object, argument)
/// -> Result<impl Answer>`.
macro_rules! with_one_named {
    ($name:expr, $argument:ident, $method:path, $doc:expr $(,)?) => {{
        #[inline(always)]
        unsafe fn by_name(
            object: *mut pyo3::ffi::PyObject,
            call: $crate::arguments::Call,
        ) -> $crate::object::Result<impl $crate::methods::Answer> {
            // SAFETY: as for any method with keywords.
            unsafe {
                if call.keywords.is_null() && call.count == 1 {
                    return $method(object, *call.arguments);
                }
                let [argument] = $crate::arguments::named(call, [$crate::known::known().names.$argument])?;
                $method(object, argument)
            }
        }
        $crate::methods::with_keywords!($name, by_name, $doc)
    }};
}

pub(crate) use {with_keywords, with_one, with_one_named, with_several, without_arguments};
