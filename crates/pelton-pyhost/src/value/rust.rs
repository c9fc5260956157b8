//! `From` and `TryFrom` for Rust's own types. Other types are converted with serde.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use num_bigint::BigInt;
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyRecursionError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{ConversionError, ConversionErrorKind, Date, DateTime, Limits, Object, Time, TimeDelta, Value};

impl Value {
    /// Creates `bytes`. `Value::from` converts a vector to a list of numbers instead.
    pub fn bytes(bytes: impl Into<Bytes>) -> Value {
        Value::Bytes(bytes.into())
    }

    /// Creates a `memoryview` of Rust's bytes, which are not copied.
    pub fn buffer(bytes: impl AsRef<[u8]> + Send + 'static) -> Value {
        Value::Buffer(Bytes::from_owner(bytes))
    }

    /// Creates a `list`.
    pub fn list<T: Into<Value>>(items: impl IntoIterator<Item = T>) -> Value {
        Value::List(items.into_iter().map(Into::into).collect())
    }

    /// Creates a `tuple` of any length. For a Rust tuple, use `Value::from`.
    pub fn tuple<T: Into<Value>>(items: impl IntoIterator<Item = T>) -> Value {
        Value::Tuple(items.into_iter().map(Into::into).collect())
    }

    /// Creates a `dict` in this order.
    pub fn dict<K: Into<Value>, V: Into<Value>>(pairs: impl IntoIterator<Item = (K, V)>) -> Value {
        Value::Dict(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

macro_rules! from {
    ($($type:ty => $make:expr),* $(,)?) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Value {
                let make: fn($type) -> Value = $make;
                make(value)
            }
        })*
    };
}

from! {
    () => |()| Value::None,
    bool => Value::Bool,
    i8 => |value| Value::Int(value.into()),
    i16 => |value| Value::Int(value.into()),
    i32 => |value| Value::Int(value.into()),
    i64 => Value::Int,
    isize => |value| Value::Int(value as i64),
    u8 => |value| Value::Int(value.into()),
    u16 => |value| Value::Int(value.into()),
    u32 => |value| Value::Int(value.into()),
    u64 => |value| i64::try_from(value).map_or_else(|_| Value::BigInt(Box::new(value.into())), Value::Int),
    usize => |value| i64::try_from(value).map_or_else(|_| Value::BigInt(Box::new(value.into())), Value::Int),
    i128 => |value| i64::try_from(value).map_or_else(|_| Value::BigInt(Box::new(value.into())), Value::Int),
    u128 => |value| i64::try_from(value).map_or_else(|_| Value::BigInt(Box::new(value.into())), Value::Int),
    BigInt => |value| i64::try_from(&value).map_or_else(|_| Value::BigInt(Box::new(value)), Value::Int),
    f32 => |value| Value::Float(value.into()),
    f64 => Value::Float,
    char => |value| Value::Str(value.into()),
    &str => |value| Value::Str(value.to_owned()),
    String => Value::Str,
    Box<str> => |value| Value::Str(value.into()),
    Cow<'_, str> => |value| Value::Str(value.into_owned()),
    &[u8] => |value| Value::Bytes(Bytes::copy_from_slice(value)),
    Bytes => Value::Bytes,
    Arc<[u8]> => |value| Value::Buffer(Bytes::from_owner(value)),
    Date => Value::Date,
    Time => |value| Value::Time(Box::new(value)),
    DateTime => |value| Value::DateTime(Box::new(value)),
    TimeDelta => Value::TimeDelta,
    Object => Value::Object,
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(value: &[u8; N]) -> Value {
        Value::from(value.as_slice())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::None, Into::into)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(items: Vec<T>) -> Value {
        Value::list(items)
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(items: [T; N]) -> Value {
        Value::list(items)
    }
}

impl<K: Into<Value>, V: Into<Value>, S> From<HashMap<K, V, S>> for Value {
    fn from(map: HashMap<K, V, S>) -> Value {
        Value::dict(map)
    }
}

impl<K: Into<Value>, V: Into<Value>> From<BTreeMap<K, V>> for Value {
    fn from(map: BTreeMap<K, V>) -> Value {
        Value::dict(map)
    }
}

impl<T: Into<Value>, S> From<HashSet<T, S>> for Value {
    fn from(set: HashSet<T, S>) -> Value {
        Value::Set(set.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Value>> From<BTreeSet<T>> for Value {
    fn from(set: BTreeSet<T>) -> Value {
        Value::Set(set.into_iter().map(Into::into).collect())
    }
}

macro_rules! tuples {
    ($($count:literal: $($type:ident $name:ident)*;)*) => {
        $(
            impl<$($type: Into<Value>),*> From<($($type,)*)> for Value {
                fn from(($($name,)*): ($($type,)*)) -> Value {
                    Value::Tuple(vec![$($name.into()),*])
                }
            }

            impl<$($type),*> TryFrom<Value> for ($($type,)*)
            where
                $($type: TryFrom<Value>, ConversionError: From<$type::Error>,)*
            {
                type Error = ConversionError;

                /// Converts a tuple or list of the same length.
                fn try_from(value: Value) -> Result<Self, ConversionError> {
                    let items = match value {
                        Value::Tuple(items) | Value::List(items) if items.len() == $count => items,
                        Value::Tuple(items) | Value::List(items) => {
                            let expected = Cow::Borrowed(concat!("a tuple of ", $count));
                            let found = format!("a tuple of {}", items.len());
                            return Err(ConversionError::new(ConversionErrorKind::WrongType { expected, found }));
                        }
                        other => return Err(ConversionError::wrong_type(concat!("a tuple of ", $count), &other)),
                    };
                    let mut items = items.into_iter().enumerate();
                    $(
                        let (index, item) = items.next().unwrap_or_default();
                        let $name = $type::try_from(item).map_err(|error| ConversionError::from(error).in_item(index))?;
                    )*
                    Ok(($($name,)*))
                }
            }
        )*
    };
}

tuples! {
    1: A a;
    2: A a B b;
    3: A a B b C c;
    4: A a B b C c D d;
    5: A a B b C c D d E e;
    6: A a B b C c D d E e F f;
}

impl From<Infallible> for ConversionError {
    fn from(never: Infallible) -> ConversionError {
        match never {}
    }
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl TryFrom<Value> for $type {
            type Error = ConversionError;

            fn try_from(value: Value) -> Result<$type, ConversionError> {
                let out_of_range = |number: &dyn std::fmt::Display| {
                    ConversionError::out_of_range(format_args!("{number} does not fit into {}", stringify!($type)))
                };
                match value {
                    Value::Int(number) => <$type>::try_from(number).map_err(|_| out_of_range(&number)),
                    // The number may have millions of digits.
                    Value::BigInt(number) => <$type>::try_from(&*number)
                        .map_err(|_| out_of_range(&format_args!("a number of {} bits", number.bits()))),
                    other => Err(ConversionError::wrong_type("int", &other)),
                }
            }
        })*
    };
}

integers!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);

macro_rules! try_from {
    ($($type:ty, $expected:literal: $($pattern:pat => $made:expr),*;)*) => {
        $(impl TryFrom<Value> for $type {
            type Error = ConversionError;

            fn try_from(value: Value) -> Result<$type, ConversionError> {
                match value {
                    $($pattern => Ok($made),)*
                    other => Err(ConversionError::wrong_type($expected, &other)),
                }
            }
        })*
    };
}

try_from! {
    (), "NoneType": Value::None => ();
    bool, "bool": Value::Bool(value) => value;
    f64, "float": Value::Float(value) => value, Value::Int(value) => value as f64;
    f32, "float": Value::Float(value) => value as f32, Value::Int(value) => value as f32;
    BigInt, "int": Value::Int(value) => value.into(), Value::BigInt(value) => *value;
    String, "str": Value::Str(value) => value;
    Bytes, "bytes": Value::Bytes(value) => value, Value::Buffer(value) => value;
    Date, "date": Value::Date(value) => value;
    Time, "time": Value::Time(value) => *value;
    DateTime, "datetime": Value::DateTime(value) => *value;
    TimeDelta, "timedelta": Value::TimeDelta(value) => value;
    Object, "object": Value::Object(value) => value;
}

impl TryFrom<Value> for Duration {
    type Error = ConversionError;

    fn try_from(value: Value) -> Result<Duration, ConversionError> {
        TimeDelta::try_from(value)?.try_into()
    }
}

impl TryFrom<Value> for SystemTime {
    type Error = ConversionError;

    fn try_from(value: Value) -> Result<SystemTime, ConversionError> {
        (&DateTime::try_from(value)?).try_into()
    }
}

impl<T> TryFrom<Value> for Vec<T>
where
    T: TryFrom<Value>,
    ConversionError: From<T::Error>,
{
    type Error = ConversionError;

    /// Converts a list, a tuple or a set, and `bytes`, which are numbers too.
    fn try_from(value: Value) -> Result<Vec<T>, ConversionError> {
        let convert = |(index, item)| T::try_from(item).map_err(|error| ConversionError::from(error).in_item(index));
        match value {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
                items.into_iter().enumerate().map(convert).collect()
            }
            Value::Bytes(bytes) | Value::Buffer(bytes) => {
                bytes.iter().map(|&byte| Value::from(byte)).enumerate().map(convert).collect()
            }
            other => Err(ConversionError::wrong_type("list", &other)),
        }
    }
}

/// Converts the pairs of a dict.
fn pairs<K, V, M>(value: Value) -> Result<M, ConversionError>
where
    K: TryFrom<Value>,
    V: TryFrom<Value>,
    ConversionError: From<K::Error> + From<V::Error>,
    M: FromIterator<(K, V)>,
{
    let Value::Dict(pairs) = value else { return Err(ConversionError::wrong_type("dict", &value)) };
    let convert = |(index, (key, value)): (usize, (Value, Value))| {
        let value = V::try_from(value).map_err(|error| ConversionError::from(error).under(&key))?;
        let key = K::try_from(key).map_err(|error| ConversionError::from(error).in_key(index))?;
        Ok((key, value))
    };
    pairs.into_iter().enumerate().map(convert).collect()
}

impl<K, V, S> TryFrom<Value> for HashMap<K, V, S>
where
    K: TryFrom<Value> + Eq + Hash,
    V: TryFrom<Value>,
    ConversionError: From<K::Error> + From<V::Error>,
    S: BuildHasher + Default,
{
    type Error = ConversionError;

    fn try_from(value: Value) -> Result<HashMap<K, V, S>, ConversionError> {
        pairs(value)
    }
}

impl<K, V> TryFrom<Value> for BTreeMap<K, V>
where
    K: TryFrom<Value> + Ord,
    V: TryFrom<Value>,
    ConversionError: From<K::Error> + From<V::Error>,
{
    type Error = ConversionError;

    fn try_from(value: Value) -> Result<BTreeMap<K, V>, ConversionError> {
        pairs(value)
    }
}

impl ConversionError {
    /// Returns the name of the Python exception for an error of this kind.
    pub(crate) fn exception_class(&self) -> &'static str {
        match self.kind() {
            ConversionErrorKind::TooDeep { .. } => "RecursionError",
            ConversionErrorKind::TooManyItems { .. } | ConversionErrorKind::TooLarge { .. } => "MemoryError",
            ConversionErrorKind::OutOfRange(_) => "OverflowError",
            ConversionErrorKind::Surrogate { .. } => "ValueError",
            ConversionErrorKind::Changed | ConversionErrorKind::Raised(_) => "RuntimeError",
            ConversionErrorKind::Unhashable(_)
            | ConversionErrorKind::WrongType { .. }
            | ConversionErrorKind::Opaque(_)
            | ConversionErrorKind::Other(_) => "TypeError",
        }
    }
}

impl From<ConversionError> for PyErr {
    fn from(error: ConversionError) -> PyErr {
        let text = error.to_string();
        match error.exception_class() {
            "RecursionError" => PyRecursionError::new_err(text),
            "MemoryError" => PyMemoryError::new_err(text),
            "OverflowError" => PyOverflowError::new_err(text),
            "ValueError" => PyValueError::new_err(text),
            "RuntimeError" => PyRuntimeError::new_err(text),
            _ => PyTypeError::new_err(text),
        }
    }
}

impl<'py> IntoPyObject<'py> for &Value {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = ConversionError;

    fn into_pyobject(self, py: Python<'py>) -> Result<Bound<'py, PyAny>, ConversionError> {
        self.to_python(py)
    }
}

impl<'py> IntoPyObject<'py> for Value {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = ConversionError;

    fn into_pyobject(self, py: Python<'py>) -> Result<Bound<'py, PyAny>, ConversionError> {
        self.to_python(py)
    }
}

impl<'py> FromPyObject<'_, 'py> for Value {
    type Error = ConversionError;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> Result<Value, ConversionError> {
        Value::from_python(&object, &Limits::DEFAULT)
    }
}
