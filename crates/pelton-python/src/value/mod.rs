//! Python's data as Rust has it: [`Value`], and the ways there and back.
//!
//! A [`Value`] belongs to no interpreter. It is made, sent to other threads and dropped without the interpreter lock; only
//! [`Value::to_python`] and [`Value::from_python`] need it. What has no form in Rust stays in Python, and a [`Value`] holds
//! an [`Object`] for it, a reference that any thread may drop.
//!
//! | file | what is in it |
//! |---|---|
//! | `to_python.rs`, `from_python.rs` | making a Python object of a value, and a value of one |
//! | `datetimes.rs`, `integers.rs`, `buffers.rs` | the same for those types that are some work |
//! | `calendar.rs`, `calendar_text.rs` | dates and times as Rust has them, and as text |
//! | `object.rs` | references that any thread may drop |
//! | `rust.rs` | `From` and `TryFrom` for Rust's types |
//! | `serialize.rs`, `deserialize.rs` | the same for whatever serde knows |
//! | `discard.rs` | dropping what may be very deep |
//! | `error.rs`, `limits.rs` | what can be wrong, and how much is too much |

mod buffers;
mod calendar;
mod calendar_text;
mod datetimes;
mod deserialize;
mod discard;
mod error;
mod from_python;
mod integers;
mod limits;
mod object;
mod rust;
mod serialize;
mod to_python;

use bytes::Bytes;
use num_bigint::BigInt;

use crate::native::Native;

pub use self::calendar::{Date, DateTime, Time, TimeDelta, Zone};
pub use self::deserialize::from_value;
#[allow(unused_imports, reason = "as below")]
pub(crate) use self::discard::discard;
pub use self::error::{ConversionError, ConversionErrorKind};
#[allow(unused_imports, reason = "for the host, which is compiled only where Python is hosted")]
pub(crate) use self::from_python::from_pointer;
pub use self::limits::Limits;
pub use self::object::{Object, release_dropped};
#[allow(unused_imports, reason = "as above")]
pub(crate) use self::object::{has_dropped, release};
pub use self::serialize::to_value;
#[allow(unused_imports, reason = "as above")]
pub(crate) use self::to_python::{argument, to_pointer};

/// Python data.
///
/// ```
/// use pelton_python::Value;
///
/// let value = Value::dict([("name", Value::from("Ada")), ("born", Value::from(1815))]);
/// assert_eq!(value.get("born").and_then(Value::as_int), Some(1815));
/// ```
///
/// Values compare by what they consist of: an `Int` is no `Float`, and the order of a `Dict` or `Set` counts, which in Python
/// it does not.
///
/// A value may be nested as deep as one likes, but is copied, compared, printed and dropped level by level: one of some ten thousand levels
/// is more than a thread's stack has room for. Those that come from Python are bounded, by [`Limits`]; and what is handed to a
/// host is dropped without recursion.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// `None`
    #[default]
    None,
    /// `bool`
    Bool(bool),
    /// An `int` of at most 64 bits.
    Int(i64),
    /// An `int` that needs more. Both go to Python as the same type; one that fits comes back as [`Int`](Value::Int).
    BigInt(Box<BigInt>),
    /// `float`
    Float(f64),
    /// `str`
    Str(String),
    /// `bytes`. They are copied on the way to Python, whose objects hold their bytes themselves. A large one that comes
    /// from Python is not copied: this is a view of the object.
    Bytes(Bytes),
    /// A `memoryview` that nobody can write through. It shares its memory with Rust, whichever side it is from.
    Buffer(Bytes),
    /// `list`
    List(Vec<Value>),
    /// `tuple`
    Tuple(Vec<Value>),
    /// `dict`, in its order. If a key is there twice, Python gets the later value.
    Dict(Vec<(Value, Value)>),
    /// `set`
    Set(Vec<Value>),
    /// `frozenset`
    FrozenSet(Vec<Value>),
    /// `datetime.datetime`
    DateTime(Box<DateTime>),
    /// `datetime.date`
    Date(Date),
    /// `datetime.time`
    Time(Box<Time>),
    /// `datetime.timedelta`
    TimeDelta(TimeDelta),
    /// Something of Rust's that Python has an object for: an end of a channel, shared state.
    Native(Box<Native>),
    /// Any other object.
    Object(Object),
}

impl Value {
    /// What Python calls the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::BigInt(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Bytes(_) => "bytes",
            Value::Buffer(_) => "memoryview",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Set(_) => "set",
            Value::FrozenSet(_) => "frozenset",
            Value::DateTime(_) => "datetime",
            Value::Date(_) => "date",
            Value::Time(_) => "time",
            Value::TimeDelta(_) => "timedelta",
            Value::Native(native) => native.type_name(),
            Value::Object(_) => "object",
        }
    }

    /// Whether it is `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    /// The truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(*value) } else { None }
    }

    /// The whole number, if it is one of at most 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        if let Value::Int(value) = self { Some(*value) } else { None }
    }

    /// The number, if it is a `float` or an `int` of at most 64 bits.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            Value::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// The text, if it is any.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Str(value) = self { Some(value) } else { None }
    }

    /// The bytes, if it is `bytes` or a `memoryview`.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        if let Value::Bytes(value) | Value::Buffer(value) = self { Some(value) } else { None }
    }

    /// The items, if it is a `list`, a `tuple` or a set.
    pub fn as_slice(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => Some(items),
            _ => None,
        }
    }

    /// The pairs, if it is a `dict`.
    pub fn as_dict(&self) -> Option<&[(Value, Value)]> {
        if let Value::Dict(pairs) = self { Some(pairs) } else { None }
    }

    /// The object, if it is one that has no form in Rust.
    pub fn as_object(&self) -> Option<&Object> {
        if let Value::Object(object) = self { Some(object) } else { None }
    }

    /// What a `dict` has under a key that is a `str`. All pairs are looked through, the last first.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_dict()?.iter().rev().find(|(its_key, _)| its_key.as_str() == Some(key)).map(|(_, value)| value)
    }
}
