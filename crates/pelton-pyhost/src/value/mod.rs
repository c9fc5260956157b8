//! Python data in Rust: [`Value`], and conversions in both directions.
//!
//! A [`Value`] belongs to no interpreter. It can be created, sent to other threads and dropped without the interpreter
//! lock. Only [`Value::to_python`] and [`Value::from_python`] need the lock. Objects that cannot be represented in Rust
//! stay in Python. A [`Value`] refers to them by an [`Object`], a reference that any thread may drop.
//!
//! | file | contents |
//! |---|---|
//! | `to_python.rs`, `from_python.rs` | conversion to and from Python objects |
//! | `datetimes.rs`, `buffers.rs` | the same for types that need more code |
//! | `raw.rs` | the same for pointers, for the host |
//! | `calendar.rs`, `calendar_text.rs` | dates and times in Rust, and as text |
//! | `object.rs` | references that any thread may drop |
//! | `rust.rs` | `From` and `TryFrom` for Rust's types |
//! | `serialize.rs`, `deserialize.rs` | conversion to and from types that serde supports |
//! | `discard.rs` | dropping deeply nested values |
//! | `error.rs`, `limits.rs` | errors and limits |

mod buffers;
mod calendar;
mod calendar_text;
mod datetimes;
mod deserialize;
mod discard;
mod error;
mod from_python;
mod limits;
mod object;
mod raw;
mod rust;
mod serialize;
mod to_python;

use bytes::Bytes;
use num_bigint::BigInt;

use crate::native::Native;

pub use self::calendar::{Date, DateTime, Time, TimeDelta, Zone};
pub use self::deserialize::from_value;
#[allow(unused_imports, reason = "only the host uses it")]
pub(crate) use self::discard::discard;
pub use self::error::{ConversionError, ConversionErrorKind};
pub use self::limits::Limits;
pub use self::object::{Object, release_dropped};
#[allow(unused_imports, reason = "only the host uses it")]
pub(crate) use self::object::{has_dropped, has_lock};
#[allow(unused_imports, reason = "only the host uses it")]
pub(crate) use self::raw::{argument, from_pointer, to_pointer};
pub use self::serialize::to_value;

/// Python data.
///
/// ```
/// use pelton_python::Value;
///
/// let value = Value::dict([("name", Value::from("Ada")), ("born", Value::from(1815))]);
/// assert_eq!(value.get("born").and_then(Value::as_int), Some(1815));
/// ```
///
/// Values are compared structurally: an `Int` never equals a `Float`, and unlike in Python the order of a `Dict` or
/// `Set` matters.
///
/// The nesting depth of a value is not limited, but it is copied, compared, formatted and dropped recursively: some
/// ten thousand levels overflow a thread's stack. Values from Python are bounded by [`Limits`], and values passed
/// to a host are dropped without recursion.
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
    /// A larger `int`. Both become an `int` in Python; one that fits comes back as [`Int`](Value::Int).
    BigInt(Box<BigInt>),
    /// `float`
    Float(f64),
    /// `str`
    Str(String),
    /// `bytes`. Copied on the way to Python, whose objects contain their bytes. Large ones from Python are not
    /// copied: this is a view of the object.
    Bytes(Bytes),
    /// A read-only `memoryview`. It shares its memory with Rust, in both directions.
    Buffer(Bytes),
    /// `list`
    List(Vec<Value>),
    /// `tuple`
    Tuple(Vec<Value>),
    /// `dict`, in order. If a key occurs twice, Python gets the later value.
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
    /// A Rust object with a Python wrapper: an end of a channel, or shared state.
    Native(Box<Native>),
    /// Any other object.
    Object(Object),
}

impl Value {
    /// Returns Python's name of the type.
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

    /// Returns whether it is `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Value::None)
    }

    /// Returns the boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(value) = self { Some(*value) } else { None }
    }

    /// Returns the integer, if it is one of at most 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        if let Value::Int(value) = self { Some(*value) } else { None }
    }

    /// Returns the number, if it is a `float` or an `int` of at most 64 bits.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            Value::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Returns the text, if it is a `str`.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Str(value) = self { Some(value) } else { None }
    }

    /// Returns the bytes, if it is `bytes` or a `memoryview`.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        if let Value::Bytes(value) | Value::Buffer(value) = self { Some(value) } else { None }
    }

    /// Returns the items, if it is a `list`, a `tuple` or a set.
    pub fn as_slice(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the pairs, if it is a `dict`.
    pub fn as_dict(&self) -> Option<&[(Value, Value)]> {
        if let Value::Dict(pairs) = self { Some(pairs) } else { None }
    }

    /// Returns the object, if it is one that cannot be represented in Rust.
    pub fn as_object(&self) -> Option<&Object> {
        if let Value::Object(object) = self { Some(object) } else { None }
    }

    /// Returns the value under a `str` key of a `dict`. Searches all pairs linearly, last first.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_dict()?.iter().rev().find(|(its_key, _)| its_key.as_str() == Some(key)).map(|(_, value)| value)
    }
}
