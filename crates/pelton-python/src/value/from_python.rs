//! Making a value of a Python object.
//!
//! Converting may run Python code: a zone that is written in Python is asked for its offset. Such code can change the very
//! list that is being converted, so every object that is looked into is held by a reference of its own, and lists and
//! dicts are checked for changes.

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use super::error::type_name;
use super::{ConversionError, ConversionErrorKind, Limits, Object, Value, buffers, datetimes, integers};
use crate::native::Native;
use crate::object::{Owned, Raised};

type Result<T> = std::result::Result<T, ConversionError>;

/// No more than this is set aside for items before they are there: the size of a container is not to be believed.
const SET_ASIDE: usize = 1 << 16;

impl Value {
    /// What a Python object is in Rust.
    ///
    /// Objects of types that are derived from Python's own (an `OrderedDict`, an `IntEnum`) become what these become. What has
    /// no form in Rust becomes an [`Object`], unless the limits refuse it. A `bytearray` and a `memoryview` of memory that can
    /// be written to are copied.
    #[inline]
    pub fn from_python(object: &Bound<'_, PyAny>, limits: &Limits) -> Result<Value> {
        // SAFETY: it is alive and the lock is held, as its type shows.
        unsafe { from_pointer(object.as_ptr(), limits) }
    }
}

/// What a Python object is in Rust.
///
/// # Safety
/// It is alive, and the interpreter lock is held.
#[inline]
pub(crate) unsafe fn from_pointer(object: *mut PyObject, limits: &Limits) -> Result<Value> {
    // SAFETY: as the caller says.
    unsafe {
        match scalar(object) {
            Some(value) => Ok(value),
            None => Reader { limits, items: limits.items, bytes: limits.bytes }.read(object, limits.depth),
        }
    }
}

/// The commonest objects, which no limit applies to.
///
/// # Safety
/// As above.
#[inline]
unsafe fn scalar(object: *mut PyObject) -> Option<Value> {
    // SAFETY: as the caller says; each is only asked what its type has.
    unsafe {
        let its_type = ffi::Py_TYPE(object);
        if its_type == &raw mut ffi::PyFloat_Type {
            return Some(Value::Float(ffi::PyFloat_AS_DOUBLE(object)));
        }
        if its_type == &raw mut ffi::PyLong_Type {
            let mut overflow = 0;
            let number = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
            // It cannot fail otherwise, since it is an `int`.
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

/// A conversion under way: what is left of the limits.
struct Reader<'a> {
    limits: &'a Limits,
    items: usize,
    bytes: usize,
}

impl Reader<'_> {
    /// Converts an object in which `levels` may be inside each other.
    ///
    /// # Safety
    /// The object is alive until this returns, and the interpreter lock is held.
    unsafe fn read(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: as the caller says. The flags of a type say what objects of it are, derived ones included.
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
        // SAFETY: as the caller says.
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
    /// It is a `str`; otherwise as for `read`, which goes for all that follow.
    unsafe fn text(&mut self, object: *mut PyObject) -> Result<String> {
        let mut length = 0;
        // SAFETY: the UTF-8 of a string lives as long as it does, and is UTF-8.
        unsafe {
            // In UTF-8 no character is shorter than one byte, so this is known before memory is spent on it.
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
    /// It is an `int`.
    unsafe fn integer(&mut self, object: *mut PyObject) -> Result<Value> {
        // SAFETY: as the caller says.
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
    /// It is a `tuple`, which cannot change.
    unsafe fn tuple(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: as the caller says; its items live as long as it does.
        unsafe {
            let count = ffi::PyTuple_GET_SIZE(object) as usize;
            self.spend_items(count)?;
            let mut items = Vec::with_capacity(count.min(SET_ASIDE));
            for index in 0..count {
                let item = ffi::PyTuple_GET_ITEM(object, index as Py_ssize_t);
                if item.is_null() {
                    // Somebody in C shows it around before it is finished.
                    return Err(ConversionError::new(ConversionErrorKind::Changed));
                }
                items.push(self.read(item, levels).map_err(|error| error.in_item(index))?);
            }
            Ok(Value::Tuple(items))
        }
    }

    /// # Safety
    /// It is a `list`.
    unsafe fn list(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        // SAFETY: as the caller says; each item is held by us while it is converted, since the list may let go of it then.
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
    /// It is a `dict`.
    unsafe fn dict(&mut self, object: *mut PyObject, levels: u32) -> Result<Value> {
        let (mut position, mut key, mut value): (Py_ssize_t, *mut PyObject, *mut PyObject) = Default::default();
        // SAFETY: as the caller says; key and value are held by us while they are converted. `PyDict_Next` looks at the dict
        // anew in each call, so that one which has changed is at worst walked through wrongly.
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
    /// It is a `set` or `frozenset`.
    unsafe fn set(&mut self, object: *mut PyObject, levels: u32) -> Result<Vec<Value>> {
        // SAFETY: as the caller says. The iterator that the base types have notices changes by itself, and gives references.
        unsafe {
            let raised = |error| ConversionError::raised(error);
            let count = ffi::PySet_Size(object) as usize;
            self.spend_items(count)?;
            let mut items = Vec::with_capacity(count.min(SET_ASIDE));
            let base: *mut ffi::PyTypeObject = match ffi::PyFrozenSet_Check(object) {
                0 => &raw mut ffi::PySet_Type,
                _ => &raw mut ffi::PyFrozenSet_Type,
            };
            let Some(iterate) = (*base).tp_iter else { unreachable!("sets can be iterated over") };
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
    /// It is a `memoryview` or a `bytearray`.
    unsafe fn memory(&mut self, object: *mut PyObject) -> Result<bytes::Bytes> {
        // SAFETY: as the caller says; a view that cannot be had leaves an exception.
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

/// Says which character it is that UTF-8 has no bytes for. An exception is set, and no longer is then.
#[cold]
unsafe fn no_unicode(object: *mut PyObject) -> ConversionError {
    // SAFETY: the lock is held, and the object is a string.
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
