//! Conversion of Python objects to values.
//!
//! A conversion may run Python code: a time zone written in Python computes its offset. Such code can change the
//! list being converted. So the conversion owns a reference to every object that it reads, and checks lists and
//! dicts for changes.

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::error::type_name;
use super::{ConversionError, ConversionErrorKind, Limits, Object, Value, buffers, datetimes, integers};
use crate::native::Native;
use pelton_cpython::object::{Owned, Raised};

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
        // SAFETY: `Bound` shows that the object is alive and that the lock is held.
        unsafe { from_pointer(object.as_ptr(), limits) }
    }
}

/// Converts a Python object to a value.
///
/// # Safety
/// The object is alive, and the interpreter lock is held.
#[inline]
pub(crate) unsafe fn from_pointer(object: *mut PyObject, limits: &Limits) -> Result<Value> {
    // SAFETY: the caller guarantees that the object is alive and holds the lock.
    unsafe {
        match scalar(object) {
            Some(value) => Ok(value),
            None => Reader { limits, items: limits.items, bytes: limits.bytes }.read(object, limits.depth),
        }
    }
}

/// Converts the most common objects, to which no limit applies.
///
/// # Safety
/// As above.
#[inline]
unsafe fn scalar(object: *mut PyObject) -> Option<Value> {
    // SAFETY: the caller guarantees that the object is alive. Each is read only after a check of its type.
    unsafe {
        let its_type = ffi::Py_TYPE(object);
        if its_type == &raw mut ffi::PyFloat_Type {
            return Some(Value::Float(ffi::PyFloat_AS_DOUBLE(object)));
        }
        if its_type == &raw mut ffi::PyLong_Type {
            let mut overflow = 0;
            let number = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
            // For an `int`, overflow is the only failure.
            return if overflow == 0 { Some(Value::Int(number)) } else { None };
        }
        if object == ffi::Py_None() {
            return Some(Value::None);
        }
        if its_type == &raw mut ffi::PyBool_Type {
            return Some(Value::Bool(object == ffi::Py_True()));
        }
        None
    }
}

/// A conversion in progress, with the unused part of the limits.
struct Reader<'a> {
    limits: &'a Limits,
    items: usize,
    bytes: usize,
}

impl Reader<'_> {
    /// Converts an object with at most `levels` nested containers.
    ///
    /// # Safety
    /// The object is alive until this returns, and the interpreter lock is held.
    unsafe fn read(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: the caller keeps the object alive. The flags of a type show its base type.
        unsafe {
            if let Some(value) = scalar(object) {
                return Ok(value);
            }
            let flags = ffi::PyType_GetFlags(ffi::Py_TYPE(object));
            let is = |flag| flags & flag != 0;
            if is(ffi::Py_TPFLAGS_UNICODE_SUBCLASS) {
                return self.text(object).map(Value::Str);
            }
            if is(ffi::Py_TPFLAGS_TUPLE_SUBCLASS) {
                return self.tuple(object, self.deeper(levels)?);
            }
            if is(ffi::Py_TPFLAGS_LIST_SUBCLASS) {
                return self.list(object, self.deeper(levels)?);
            }
            if is(ffi::Py_TPFLAGS_DICT_SUBCLASS) {
                return self.dict(object, self.deeper(levels)?);
            }
            if is(ffi::Py_TPFLAGS_BYTES_SUBCLASS) {
                self.spend_bytes(ffi::PyBytes_Size(object) as usize)?;
                return Ok(Value::Bytes(buffers::from_bytes(object)));
            }
            if is(ffi::Py_TPFLAGS_LONG_SUBCLASS) {
                return self.integer(object);
            }
            self.rarer(object, levels)
        }
    }

    /// # Safety
    /// As for `read`.
    unsafe fn rarer(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: the caller keeps the object alive. Each is read only after a check of its type.
        unsafe {
            if ffi::PyFloat_Check(object) != 0 {
                return Ok(Value::Float(ffi::PyFloat_AS_DOUBLE(object)));
            }
            if ffi::PyAnySet_Check(object) != 0 {
                let items = self.set(object, self.deeper(levels)?)?;
                let is_frozen = ffi::PyFrozenSet_Check(object) != 0;
                return Ok(if is_frozen { Value::FrozenSet(items) } else { Value::Set(items) });
            }
            if ffi::PyMemoryView_Check(object) != 0 {
                return self.memory(object).map(Value::Buffer);
            }
            if ffi::PyByteArray_Check(object) != 0 {
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
            Ok(Value::Object(Object::from_pointer(object)))
        }
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

    /// # Safety
    /// `object` is a `str`; otherwise as for `read`. The same applies to the following functions.
    unsafe fn text(&mut self, object: *mut PyObject) -> Result<String> {
        let mut length = 0;
        // SAFETY: the caller guarantees that it is a string. Its UTF-8 form lives as long as the string, and is
        // valid UTF-8.
        unsafe {
            // In UTF-8 every character takes at least one byte, so this is checked before memory is allocated.
            if ffi::PyUnicode_GetLength(object) as usize > self.bytes {
                return Err(ConversionError::new(ConversionErrorKind::TooLarge { limit: self.limits.bytes }));
            }
            let start = ffi::PyUnicode_AsUTF8AndSize(object, &mut length);
            if start.is_null() {
                return Err(no_unicode(object));
            }
            self.spend_bytes(length as usize)?;
            let bytes = std::slice::from_raw_parts(start.cast::<u8>(), length as usize);
            Ok(std::str::from_utf8_unchecked(bytes).to_owned())
        }
    }

    /// # Safety
    /// `object` is an `int`.
    unsafe fn integer(&mut self, object: *mut PyObject) -> Result<Value> {
        // SAFETY: the caller guarantees that it is an `int`.
        unsafe {
            let mut overflow = 0;
            let number = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
            if overflow == 0 {
                return Ok(Value::Int(number));
            }
            let raised = |error| ConversionError::raised(error);
            let length = integers::byte_length(object).map_err(raised)?;
            self.spend_bytes(length)?;
            let number = integers::from_python(object, length).map_err(raised)?;
            Ok(Value::BigInt(Box::new(number)))
        }
    }

    /// # Safety
    /// `object` is a `tuple`.
    unsafe fn tuple(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: the caller guarantees that it is a tuple and keeps it alive. A tuple is immutable and keeps its
        // items alive.
        unsafe {
            let count = ffi::PyTuple_GET_SIZE(object) as usize;
            self.spend_items(count)?;
            let mut items = Vec::with_capacity(count.min(SET_ASIDE));
            for index in 0..count {
                let item = ffi::PyTuple_GET_ITEM(object, index as Py_ssize_t);
                if item.is_null() {
                    // C code exposed an unfinished tuple.
                    return Err(ConversionError::new(ConversionErrorKind::Changed));
                }
                items.push(self.read(item, levels).map_err(|error| error.in_item(index))?);
            }
            Ok(Value::Tuple(items))
        }
    }

    /// # Safety
    /// `object` is a `list`.
    unsafe fn list(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: the caller guarantees that it is a list. Each item is converted through an owned reference,
        // because the list may drop it meanwhile.
        unsafe {
            let count = ffi::PyList_GET_SIZE(object) as usize;
            self.spend_items(count)?;
            let mut items = Vec::with_capacity(count.min(SET_ASIDE));
            for index in 0..count {
                if ffi::PyList_GET_SIZE(object) as usize != count {
                    return Err(ConversionError::new(ConversionErrorKind::Changed));
                }
                let item = ffi::PyList_GET_ITEM(object, index as Py_ssize_t);
                if item.is_null() {
                    return Err(ConversionError::new(ConversionErrorKind::Changed));
                }
                if let Some(value) = scalar(item) {
                    items.push(value);
                    continue;
                }
                let item = Owned::new_reference(item);
                items.push(self.read(item.as_ptr(), levels).map_err(|error| error.in_item(index))?);
            }
            Ok(Value::List(items))
        }
    }

    /// # Safety
    /// `object` is a `dict`.
    unsafe fn dict(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        let (mut position, mut key, mut value): (Py_ssize_t, *mut PyObject, *mut PyObject) = Default::default();
        // SAFETY: the caller guarantees that it is a dict. Key and value are converted through owned references.
        // `PyDict_Next` reads the dict anew in each call, so iterating a changed dict is safe, and the change is
        // detected.
        unsafe {
            let count = ffi::PyDict_Size(object) as usize;
            self.spend_items(count)?;
            let mut pairs = Vec::with_capacity(count.min(SET_ASIDE));
            while ffi::PyDict_Next(object, &mut position, &mut key, &mut value) != 0 {
                let (its_key, its_value) = (Owned::new_reference(key), Owned::new_reference(value));
                let key = self.read(its_key.as_ptr(), levels).map_err(|error| error.in_key(pairs.len()))?;
                let value = self.read(its_value.as_ptr(), levels).map_err(|error| error.under(&key))?;
                pairs.push((key, value));
                if ffi::PyDict_Size(object) as usize != count || pairs.len() > count {
                    return Err(ConversionError::new(ConversionErrorKind::Changed));
                }
            }
            if pairs.len() != count {
                return Err(ConversionError::new(ConversionErrorKind::Changed));
            }
            Ok(Value::Dict(pairs))
        }
    }

    /// # Safety
    /// `object` is a `set` or `frozenset`.
    unsafe fn set(&mut self, object: *mut PyObject, levels: u32) -> Result<Vec<Value>> {
        // SAFETY: the caller guarantees that it is a set. The iterator of the base type detects changes and returns
        // new references.
        unsafe {
            let raised = |error| ConversionError::raised(error);
            let count = ffi::PySet_Size(object) as usize;
            self.spend_items(count)?;
            let mut items = Vec::with_capacity(count.min(SET_ASIDE));
            let base: *mut ffi::PyTypeObject = match ffi::PyFrozenSet_Check(object) {
                0 => &raw mut ffi::PySet_Type,
                _ => &raw mut ffi::PyFrozenSet_Type,
            };
            let Some(iterate) = (*base).tp_iter else { unreachable!("set types have an iterator") };
            let iterator = Owned::returned(iterate(object)).map_err(raised)?;
            while let Some(item) = Owned::taken(ffi::PyIter_Next(iterator.as_ptr())) {
                items.push(self.read(item.as_ptr(), levels).map_err(|error| error.in_element(items.len()))?);
            }
            if !ffi::PyErr_Occurred().is_null() {
                ffi::PyErr_Clear();
                return Err(ConversionError::new(ConversionErrorKind::Changed));
            }
            Ok(items)
        }
    }

    /// # Safety
    /// `object` is a `memoryview` or a `bytearray`.
    unsafe fn memory(&mut self, object: *mut PyObject) -> Result<bytes::Bytes> {
        // SAFETY: the caller guarantees the type. If no view can be acquired, an exception is set.
        unsafe {
            let raised = |error| ConversionError::raised(error);
            let view = buffers::View::of(object).map_err(raised)?;
            self.spend_bytes(view.length())?;
            let base = match ffi::PyMemoryView_Check(object) {
                0 => None,
                _ => Some(Owned::returned(ffi::PyObject_GetAttrString(object, c"obj".as_ptr())).map_err(raised)?),
            };
            let base = base.as_ref().map_or(std::ptr::null_mut(), Owned::as_ptr);
            view.bytes(Python::assume_attached(), base).map_err(raised)
        }
    }
}

/// Returns the error for a string that cannot be encoded, with the index of the surrogate. Clears the exception.
#[cold]
unsafe fn no_unicode(object: *mut PyObject) -> ConversionError {
    // SAFETY: the caller holds the lock, passes a string, and has an exception set.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_UnicodeEncodeError) == 0 {
            return ConversionError::raised(Raised);
        }
        ffi::PyErr_Clear();
        let length = ffi::PyUnicode_GetLength(object);
        let is_surrogate = |index| (0xD800..0xE000).contains(&ffi::PyUnicode_ReadChar(object, index));
        let index = (0..length).find(|&index| is_surrogate(index)).unwrap_or(0) as usize;
        ConversionError::new(ConversionErrorKind::Surrogate { index })
    }
}
