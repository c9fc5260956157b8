//! Conversion of Python objects to values.
//!
//! A conversion may run Python code: a time zone written in Python computes its offset. Such code can change the
//! list being converted. So the conversion owns a reference to every object that it reads, and checks lists and
//! dicts for changes.

use pyo3::exceptions::PyUnicodeEncodeError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView, PySet, PyString, PyTuple,
};

use super::error::type_name;
use super::{ConversionError, ConversionErrorKind, Limits, Object, Value, buffers, datetimes};
use crate::native::Native;

type Result<T> = std::result::Result<T, ConversionError>;

/// Maximum number of items to allocate in advance, because the reported size of a container may be wrong.
const SET_ASIDE: usize = 1 << 16;

impl Value {
    /// Converts a Python object to a value.
    ///
    /// Objects of derived types (an `OrderedDict`, an `IntEnum`) are converted like their base types. An object
    /// that cannot be represented in Rust becomes an [`Object`], unless the limits refuse it. A `bytearray`, and a
    /// `memoryview` of writable memory, are copied.
    #[inline]
    pub fn from_python(object: &Bound<'_, PyAny>, limits: &Limits) -> Result<Value> {
        match scalar(object) {
            Some(value) => Ok(value),
            None => Reader { limits, items: limits.items, bytes: limits.bytes }.read(object, limits.depth),
        }
    }
}

/// Converts the most common objects, to which no limit applies.
#[inline]
fn scalar(object: &Bound<'_, PyAny>) -> Option<Value> {
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Some(Value::Float(number.value()));
    }
    if let Ok(number) = object.cast_exact::<PyInt>() {
        return small(number).map(Value::Int);
    }
    if object.is_none() {
        return Some(Value::None);
    }
    object.cast_exact::<PyBool>().ok().map(|value| Value::Bool(value.is_true()))
}

/// Returns an integer of at most 64 bits. For an `int`, overflow is the only failure.
#[inline]
fn small(number: &Bound<'_, PyInt>) -> Option<i64> {
    number.extract::<i64>().ok()
}

/// A conversion in progress, with the unused part of the limits.
struct Reader<'a> {
    limits: &'a Limits,
    items: usize,
    bytes: usize,
}

impl Reader<'_> {
    /// Converts an object with at most `levels` nested containers.
    fn read(&mut self, object: &Bound<'_, PyAny>, levels: u32) -> Result<Value> {
        if let Some(value) = scalar(object) {
            return Ok(value);
        }
        if let Ok(text) = object.cast::<PyString>() {
            return self.text(text).map(Value::Str);
        }
        if let Ok(tuple) = object.cast::<PyTuple>() {
            return self.tuple(tuple, self.deeper(levels)?);
        }
        if let Ok(list) = object.cast::<PyList>() {
            return self.list(list, self.deeper(levels)?);
        }
        if let Ok(dict) = object.cast::<PyDict>() {
            return self.dict(dict, self.deeper(levels)?);
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            self.spend_bytes(bytes.as_bytes().len())?;
            return Ok(Value::Bytes(buffers::from_bytes(bytes)));
        }
        if let Ok(number) = object.cast::<PyInt>() {
            return self.integer(number);
        }
        self.rarer(object, levels)
    }

    fn rarer(&mut self, object: &Bound<'_, PyAny>, levels: u32) -> Result<Value> {
        if let Ok(number) = object.cast::<PyFloat>() {
            return Ok(Value::Float(number.value()));
        }
        if let Ok(set) = object.cast::<PySet>() {
            return self.set(set, set.len(), self.deeper(levels)?).map(Value::Set);
        }
        if let Ok(set) = object.cast::<PyFrozenSet>() {
            return self.set(set, set.len(), self.deeper(levels)?).map(Value::FrozenSet);
        }
        if object.is_instance_of::<PyMemoryView>() {
            return self.memory(object).map(Value::Buffer);
        }
        if object.is_instance_of::<PyByteArray>() {
            return self.memory(object).map(Value::Bytes);
        }
        if let Some(native) = Native::from_python(object) {
            return Ok(Value::Native(Box::new(native)));
        }
        if let Some(value) = datetimes::from_python(object)? {
            return Ok(value);
        }
        if self.limits.refuse_objects {
            return Err(ConversionError::new(ConversionErrorKind::Opaque(type_name(object))));
        }
        Ok(Value::Object(Object::new(object)))
    }

    fn deeper(&self, levels: u32) -> Result<u32> {
        let limit = self.limits.depth;
        levels.checked_sub(1).ok_or_else(|| ConversionError::new(ConversionErrorKind::TooDeep { limit }))
    }

    fn spend_items(&mut self, count: usize) -> Result<()> {
        let limit = self.limits.items;
        let left = self.items.checked_sub(count);
        self.items = left.ok_or_else(|| ConversionError::new(ConversionErrorKind::TooManyItems { limit }))?;
        Ok(())
    }

    fn spend_bytes(&mut self, count: usize) -> Result<()> {
        let limit = self.limits.bytes;
        let left = self.bytes.checked_sub(count);
        self.bytes = left.ok_or_else(|| ConversionError::new(ConversionErrorKind::TooLarge { limit }))?;
        Ok(())
    }

    fn text(&mut self, object: &Bound<'_, PyString>) -> Result<String> {
        // In UTF-8 every character takes at least one byte, so this is checked before memory is allocated.
        let length = object.len().map_err(|error| raised(object.py(), error))?;
        if length > self.bytes {
            return Err(ConversionError::new(ConversionErrorKind::TooLarge { limit: self.limits.bytes }));
        }
        let text = object.to_str().map_err(|error| no_unicode(object, error))?;
        self.spend_bytes(text.len())?;
        Ok(text.to_owned())
    }

    fn integer(&mut self, number: &Bound<'_, PyInt>) -> Result<Value> {
        if let Some(number) = small(number) {
            return Ok(Value::Int(number));
        }
        let py = number.py();
        // The method is taken from the type `int`, so a subclass cannot override it.
        let bits = py.get_type::<PyInt>().call_method1(pyo3::intern!(py, "bit_length"), (number,));
        let bits = bits.and_then(|bits| bits.extract::<usize>()).map_err(|error| raised(py, error))?;
        self.spend_bytes(bits / 8 + 1)?;
        let number = number.extract().map_err(|error| raised(py, error))?;
        Ok(Value::BigInt(Box::new(number)))
    }

    fn tuple(&mut self, object: &Bound<'_, PyTuple>, levels: u32) -> Result<Value> {
        let count = object.len();
        self.spend_items(count)?;
        let mut items = Vec::with_capacity(count.min(SET_ASIDE));
        for index in 0..count {
            // C code may have exposed an unfinished tuple.
            let item = pelton_cpython::object::item_of_tuple(object, index);
            let Some(item) = item else { return Err(ConversionError::new(ConversionErrorKind::Changed)) };
            items.push(self.read(&item, levels).map_err(|error| error.in_item(index))?);
        }
        Ok(Value::Tuple(items))
    }

    fn list(&mut self, object: &Bound<'_, PyList>, levels: u32) -> Result<Value> {
        let count = object.len();
        self.spend_items(count)?;
        let mut items = Vec::with_capacity(count.min(SET_ASIDE));
        for index in 0..count {
            // Each item is converted through an owned reference, because the list may drop it meanwhile.
            let item = if object.len() == count { pelton_cpython::object::item_of_list(object, index) } else { None };
            let Some(item) = item else { return Err(ConversionError::new(ConversionErrorKind::Changed)) };
            items.push(self.read(&item, levels).map_err(|error| error.in_item(index))?);
        }
        Ok(Value::List(items))
    }

    fn dict(&mut self, object: &Bound<'_, PyDict>, levels: u32) -> Result<Value> {
        let count = object.len();
        self.spend_items(count)?;
        let mut pairs = Vec::with_capacity(count.min(SET_ASIDE));
        let mut position = 0;
        // Each step reads the dict anew, so iterating a changed dict is safe, and the change is detected.
        while let Some((its_key, its_value)) = pelton_cpython::object::next_of_dict(object, &mut position) {
            let key = self.read(&its_key, levels).map_err(|error| error.in_key(pairs.len()))?;
            let value = self.read(&its_value, levels).map_err(|error| error.under(&key))?;
            pairs.push((key, value));
            if object.len() != count || pairs.len() > count {
                return Err(ConversionError::new(ConversionErrorKind::Changed));
            }
        }
        if pairs.len() != count {
            return Err(ConversionError::new(ConversionErrorKind::Changed));
        }
        Ok(Value::Dict(pairs))
    }

    /// Reads a `set` or `frozenset`, by the iterator of the base type, which detects changes.
    fn set(&mut self, object: &Bound<'_, PyAny>, count: usize, levels: u32) -> Result<Vec<Value>> {
        let py = object.py();
        self.spend_items(count)?;
        let mut items = Vec::with_capacity(count.min(SET_ASIDE));
        let base = match object.is_instance_of::<PySet>() {
            true => py.get_type::<PySet>(),
            false => py.get_type::<PyFrozenSet>(),
        };
        let iterator = base.call_method1(pyo3::intern!(py, "__iter__"), (object,));
        let iterator = iterator.and_then(|iterator| iterator.try_iter()).map_err(|error| raised(py, error))?;
        for item in iterator {
            let item = item.map_err(|_| ConversionError::new(ConversionErrorKind::Changed))?;
            items.push(self.read(&item, levels).map_err(|error| error.in_element(items.len()))?);
        }
        Ok(items)
    }

    /// Reads a `memoryview` or a `bytearray`.
    fn memory(&mut self, object: &Bound<'_, PyAny>) -> Result<bytes::Bytes> {
        let py = object.py();
        let view = buffers::View::of_any_shape(object).map_err(|error| raised(py, error.into()))?;
        self.spend_bytes(view.len())?;
        let base = match object.is_instance_of::<PyMemoryView>() {
            true => Some(object.getattr(pyo3::intern!(py, "obj")).map_err(|error| raised(py, error))?),
            false => None,
        };
        buffers::from_view(&view, base.as_ref()).map_err(|error| raised(py, error.into()))
    }
}

#[cold]
pub(super) fn raised(py: Python<'_>, error: PyErr) -> ConversionError {
    ConversionError::raised_by(py, &error)
}

/// Returns the error for a string that cannot be encoded, with the index of the surrogate.
#[cold]
fn no_unicode(object: &Bound<'_, PyString>, error: PyErr) -> ConversionError {
    let py = object.py();
    if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
        return raised(py, error);
    }
    let index = error.value(py).getattr("start").and_then(|start| start.extract::<usize>()).unwrap_or(0);
    ConversionError::new(ConversionErrorKind::Surrogate { index })
}
