//! Conversion of values to Python objects.

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::error::take_exception;
use super::{ConversionError, ConversionErrorKind, Limits, Value, buffers, datetimes, integers};
use pelton_cpython::object::{Owned, Raised};

type Result<T> = std::result::Result<T, ConversionError>;

impl Value {
    /// Converts the value to a Python object.
    ///
    /// Fails if Python refuses the value (an unhashable key, an unknown zone, no memory), and for values that are
    /// more than 1,000 levels deep.
    #[inline]
    pub fn to_python<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        // SAFETY: the lock is held, as `py` shows, and `to_pointer` returns an owned reference.
        unsafe { to_pointer(self).map(|object| Bound::from_owned_ptr(py, object.into_ptr())) }
    }
}

/// Converts a value to a Python object.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub(crate) unsafe fn to_pointer(value: &Value) -> Result<Owned> {
    // SAFETY: the caller holds the lock.
    unsafe {
        let object = match value {
            Value::None => return Ok(Owned::new_reference(ffi::Py_None())),
            Value::Bool(value) => ffi::PyBool_FromLong((*value).into()),
            Value::Int(value) => ffi::PyLong_FromLongLong(*value),
            Value::Float(value) => ffi::PyFloat_FromDouble(*value),
            Value::Str(value) => text(value),
            _ => return composed(value, Limits::DEFAULT.depth(u32::MAX).depth),
        };
        Owned::returned(object).map_err(|error| ConversionError::raised(error))
    }
}

/// Converts an argument of a task. The task keeps its arguments until its outcome is taken, so this releases native
/// values that Python now owns.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub(crate) unsafe fn argument(value: &Value) -> Result<Owned> {
    // SAFETY: the caller holds the lock.
    let object = unsafe { to_pointer(value) }?;
    if let Value::Native(native) = value {
        native.hand_over();
    }
    Ok(object)
}

#[inline]
unsafe fn text(text: &str) -> *mut PyObject {
    // SAFETY: the caller holds the lock. Pointer and length are those of a string.
    unsafe { ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len() as Py_ssize_t) }
}

/// Converts a value with at most `levels` nested containers.
unsafe fn nested(value: &Value, levels: u32) -> Result<Owned> {
    let is_nested =
        matches!(value, Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_));
    // SAFETY: the caller holds the lock.
    unsafe { if is_nested { composed(value, levels) } else { to_pointer(value) } }
}

unsafe fn composed(value: &Value, levels: u32) -> Result<Owned> {
    let deeper = || {
        let limit = Limits::DEFAULT.depth(u32::MAX).depth;
        levels.checked_sub(1).ok_or_else(|| ConversionError::new(ConversionErrorKind::TooDeep { limit }))
    };
    let raised = |error: Raised| {
        // SAFETY: the caller holds the lock.
        unsafe { ConversionError::raised(error) }
    };
    // SAFETY: the caller holds the lock.
    unsafe {
        match value {
            Value::Tuple(items) => tuple(items, deeper()?),
            Value::List(items) => list(items, deeper()?),
            Value::Dict(pairs) => dict(pairs, deeper()?),
            Value::Set(items) => {
                let set = Owned::returned(ffi::PySet_New(std::ptr::null_mut())).map_err(raised)?;
                fill(set, items, deeper()?)
            }
            Value::FrozenSet(items) => {
                // A frozenset that nothing else refers to may be added to.
                let set = Owned::returned(ffi::PyFrozenSet_New(std::ptr::null_mut())).map_err(raised)?;
                fill(set, items, deeper()?)
            }
            Value::Bytes(bytes) => {
                let pointer = ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as Py_ssize_t);
                Owned::returned(pointer).map_err(raised)
            }
            Value::Buffer(bytes) => buffers::to_python(Python::assume_attached(), bytes).map_err(raised),
            Value::BigInt(number) => integers::to_python(number).map_err(raised),
            Value::DateTime(value) => datetimes::date_time(value).map_err(raised),
            Value::Date(value) => datetimes::date(value).map_err(raised),
            Value::Time(value) => datetimes::time(value).map_err(raised),
            Value::TimeDelta(value) => datetimes::time_delta(value).map_err(raised),
            Value::Native(native) => {
                let py = Python::assume_attached();
                let made = native.to_python(py).map_err(|error| {
                    error.restore(py);
                    raised(Raised)
                })?;
                Ok(Owned::new_reference(made.as_ptr()))
            }
            Value::Object(object) => Ok(Owned::new_reference(object.as_ptr())),
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => to_pointer(value),
        }
    }
}

unsafe fn tuple(items: &[Value], levels: u32) -> Result<Owned> {
    // SAFETY: the caller holds the lock. Each item is set once, with a reference that the tuple takes over. After
    // an error, a tuple with null items can be dropped.
    unsafe {
        let tuple = Owned::returned(ffi::PyTuple_New(items.len() as Py_ssize_t));
        let tuple = tuple.map_err(|error| ConversionError::raised(error))?;
        for (index, item) in items.iter().enumerate() {
            let item = nested(item, levels).map_err(|error| error.in_item(index))?;
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as Py_ssize_t, item.into_ptr());
        }
        Ok(tuple)
    }
}

unsafe fn list(items: &[Value], levels: u32) -> Result<Owned> {
    // SAFETY: as for tuples.
    unsafe {
        let list = Owned::returned(ffi::PyList_New(items.len() as Py_ssize_t));
        let list = list.map_err(|error| ConversionError::raised(error))?;
        for (index, item) in items.iter().enumerate() {
            let item = nested(item, levels).map_err(|error| error.in_item(index))?;
            ffi::PyList_SET_ITEM(list.as_ptr(), index as Py_ssize_t, item.into_ptr());
        }
        Ok(list)
    }
}

unsafe fn dict(pairs: &[(Value, Value)], levels: u32) -> Result<Owned> {
    // SAFETY: the caller holds the lock, and all references are owned.
    unsafe {
        let dict = Owned::returned(ffi::PyDict_New()).map_err(|error| ConversionError::raised(error))?;
        for (index, (key, value)) in pairs.iter().enumerate() {
            let its_key = nested(key, levels).map_err(|error| error.in_key(index))?;
            let value = nested(value, levels).map_err(|error| error.under(key))?;
            if ffi::PyDict_SetItem(dict.as_ptr(), its_key.as_ptr(), value.as_ptr()) < 0 {
                return Err(refused().in_key(index));
            }
        }
        Ok(dict)
    }
}

unsafe fn fill(set: Owned, items: &[Value], levels: u32) -> Result<Owned> {
    for (index, item) in items.iter().enumerate() {
        // SAFETY: the caller holds the lock, and all references are owned.
        unsafe {
            let item = nested(item, levels).map_err(|error| error.in_element(index))?;
            if ffi::PySet_Add(set.as_ptr(), item.as_ptr()) < 0 {
                return Err(refused().in_element(index));
            }
        }
    }
    Ok(set)
}

/// Returns the error for a key that a dict or set refused.
#[cold]
unsafe fn refused() -> ConversionError {
    // SAFETY: the caller holds the lock, and an exception is set.
    unsafe {
        let is_unhashable = ffi::PyErr_ExceptionMatches(ffi::PyExc_TypeError) != 0;
        let text = take_exception();
        let kind = if is_unhashable { ConversionErrorKind::Unhashable } else { ConversionErrorKind::Raised };
        ConversionError::new(kind(text))
    }
}
