//! Conversions for code of the host that has its objects as pointers.

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use super::{ConversionError, Limits, Object, Value, to_python};
use pelton_cpython::object::Owned;

type Result<T> = std::result::Result<T, ConversionError>;

/// Converts a Python object to a value.
///
/// # Safety
/// The object is alive, and the interpreter lock is held.
#[inline]
pub(crate) unsafe fn from_pointer(object: *mut PyObject, limits: &Limits) -> Result<Value> {
    // SAFETY: the caller guarantees it.
    let object = unsafe { Borrowed::from_ptr(Python::assume_attached(), object) };
    Value::from_python(&object, limits)
}

/// Converts a value to a Python object.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub(crate) unsafe fn to_pointer(value: &Value) -> Result<Owned> {
    // SAFETY: the caller holds the lock. The reference is given away.
    unsafe { value.to_python(Python::assume_attached()).map(Owned::from) }
}

/// Converts an argument of a task.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub(crate) unsafe fn argument(value: &Value) -> Result<Owned> {
    // SAFETY: the caller holds the lock.
    unsafe { to_python::as_argument(Python::assume_attached(), value).map(Owned::from) }
}

impl Object {
    /// Creates a new reference to an object.
    ///
    /// # Safety
    /// The object is alive, and the interpreter lock is held.
    pub(crate) unsafe fn from_pointer(object: *mut PyObject) -> Object {
        // SAFETY: the caller guarantees it.
        let object = unsafe { Borrowed::from_ptr(Python::assume_attached(), object) };
        Object::new(&object)
    }
}
