//! Conversion of values to Python objects.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple};

use super::error::describe;
use super::from_python::raised;
use super::{ConversionError, ConversionErrorKind, Limits, Value, buffers, datetimes};

type Result<T> = std::result::Result<T, ConversionError>;

impl Value {
    /// Converts the value to a Python object.
    ///
    /// Fails if Python refuses the value (an unhashable key, an unknown zone, no memory), and for values that are
    /// more than 1,000 levels deep.
    #[inline]
    pub fn to_python<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        match self {
            Value::None => Ok(py.None().into_bound(py)),
            Value::Bool(value) => made(py, value.into_pyobject(py).map(|value| value.to_owned())),
            Value::Int(value) => made(py, value.into_pyobject(py)),
            Value::Float(value) => made(py, value.into_pyobject(py)),
            Value::Str(value) => Ok(PyString::new(py, value).into_any()),
            _ => composed(py, self, Limits::DEFAULT.depth(u32::MAX).depth),
        }
    }
}

/// Converts an argument of a task. The task keeps its arguments until its outcome is taken, so this releases native
/// values that Python now owns.
#[inline]
pub(crate) fn as_argument<'py>(py: Python<'py>, value: &Value) -> Result<Bound<'py, PyAny>> {
    let object = value.to_python(py)?;
    if let Value::Native(native) = value {
        native.hand_over();
    }
    Ok(object)
}

#[inline]
fn made<'py, T, E: Into<PyErr>>(
    py: Python<'py>,
    made: std::result::Result<Bound<'py, T>, E>,
) -> Result<Bound<'py, PyAny>> {
    made.map(Bound::into_any).map_err(|error| raised(py, error.into()))
}

/// Converts a value with at most `levels` nested containers. Each container has a function of its own, which keeps the stack frames of a
/// recursion small.
fn nested<'py>(py: Python<'py>, value: &Value, levels: u32) -> Result<Bound<'py, PyAny>> {
    match value {
        Value::Tuple(items) => sequence(py, items, levels, |py, items| made(py, PyTuple::new(py, items))),
        Value::List(items) => sequence(py, items, levels, |py, items| made(py, PyList::new(py, items))),
        Value::Dict(pairs) => dict(py, pairs, levels),
        Value::Set(items) => set(py, items, levels),
        Value::FrozenSet(items) => frozen_set(py, items, levels),
        _ => value.to_python(py),
    }
}

fn composed<'py>(py: Python<'py>, value: &Value, levels: u32) -> Result<Bound<'py, PyAny>> {
    match value {
        Value::Bytes(bytes) => Ok(PyBytes::new(py, bytes).into_any()),
        Value::Buffer(bytes) => made(py, buffers::to_python(py, bytes)),
        Value::BigInt(number) => made(py, (**number).clone().into_pyobject(py)),
        Value::DateTime(value) => made(py, datetimes::date_time(py, value)),
        Value::Date(value) => made(py, datetimes::date(py, value)),
        Value::Time(value) => made(py, datetimes::time(py, value)),
        Value::TimeDelta(value) => made(py, datetimes::time_delta(py, value)),
        Value::Native(native) => made(py, native.to_python(py)),
        Value::Object(object) => Ok(object.bind(py)),
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => value.to_python(py),
        Value::Tuple(_) | Value::List(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_) => {
            nested(py, value, levels)
        }
    }
}

fn deeper(levels: u32) -> Result<u32> {
    let limit = Limits::DEFAULT.depth(u32::MAX).depth;
    levels.checked_sub(1).ok_or_else(|| ConversionError::new(ConversionErrorKind::TooDeep { limit }))
}

fn sequence<'py>(
    py: Python<'py>,
    items: &[Value],
    levels: u32,
    make: fn(Python<'py>, Vec<Bound<'py, PyAny>>) -> Result<Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyAny>> {
    let levels = deeper(levels)?;
    let mut converted = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match nested(py, item, levels) {
            Ok(item) => converted.push(item),
            Err(error) => return Err(error.in_item(index)),
        }
    }
    make(py, converted)
}

fn dict<'py>(py: Python<'py>, pairs: &[(Value, Value)], levels: u32) -> Result<Bound<'py, PyAny>> {
    let levels = deeper(levels)?;
    let dict = PyDict::new(py);
    for (index, (key, value)) in pairs.iter().enumerate() {
        let its_key = nested(py, key, levels).map_err(|error| error.in_key(index))?;
        let value = nested(py, value, levels).map_err(|error| error.under(key))?;
        dict.set_item(its_key, value).map_err(|error| refused(py, &error).in_key(index))?;
    }
    Ok(dict.into_any())
}

/// Creates a frozenset. Its elements were hashed once, and are again.
fn frozen_set<'py>(py: Python<'py>, items: &[Value], levels: u32) -> Result<Bound<'py, PyAny>> {
    let elements = set(py, items, levels)?;
    made(
        py,
        elements
            .try_iter()
            .and_then(|elements| elements.collect::<PyResult<Vec<_>>>())
            .and_then(|elements| PyFrozenSet::new(py, elements)),
    )
}

fn set<'py>(py: Python<'py>, items: &[Value], levels: u32) -> Result<Bound<'py, PyAny>> {
    let levels = deeper(levels)?;
    let set = PySet::empty(py).map_err(|error| raised(py, error))?;
    for (index, item) in items.iter().enumerate() {
        let item = nested(py, item, levels).map_err(|error| error.in_element(index))?;
        set.add(item).map_err(|error| refused(py, &error).in_element(index))?;
    }
    Ok(set.into_any())
}

/// Returns the error for a key that a dict or set refused.
#[cold]
fn refused(py: Python<'_>, error: &PyErr) -> ConversionError {
    let is_unhashable = error.is_instance_of::<PyTypeError>(py);
    let kind = if is_unhashable { ConversionErrorKind::Unhashable } else { ConversionErrorKind::Raised };
    ConversionError::new(kind(describe(py, error)))
}
