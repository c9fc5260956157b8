//! Replies as values.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::Error;

/// A reply, or a part of one.
///
/// [`FromValue`] converts it to a type that a program expects.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// No value: an absent key, for example.
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number (RESP3).
    Double(f64),
    /// A Boolean (RESP3).
    Bool(bool),
    /// A short status, such as `OK`.
    Status(Bytes),
    /// A string of bytes.
    Bytes(Bytes),
    /// An integer of any length (RESP3), in decimal digits.
    BigNumber(Bytes),
    /// A text with a format (RESP3), such as `txt` or `mkd`.
    Verbatim {
        /// The format.
        format: [u8; 3],
        /// The text.
        text: Bytes,
    },
    /// A list.
    Array(Vec<Value>),
    /// A list of keys and values (RESP3). RESP2 has a list with twice as many elements instead.
    Map(Vec<(Value, Value)>),
    /// A set (RESP3), in the order of the server.
    Set(Vec<Value>),
    /// A message that is not a reply (RESP3), such as one that was published.
    Push(Vec<Value>),
    /// An error inside of a reply, such as that of one command of a transaction.
    Error(ServerError),
}

/// An error that the server has answered with.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServerError(Arc<str>);

impl ServerError {
    /// Makes an error of the server's line. Bytes that are not UTF-8 are replaced.
    pub fn new(line: &[u8]) -> ServerError {
        ServerError(String::from_utf8_lossy(line).into())
    }

    /// Returns the first word, which programs distinguish errors by: `ERR`, `WRONGTYPE`, `READONLY`, `OOM`, `NOAUTH`.
    pub fn code(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// The text, without control characters: a server must not be able to take over a terminal.
impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| if letter.is_control() { Ok(()) } else { write!(f, "{letter}") })
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerError({:?})", &self.0)
    }
}

impl std::error::Error for ServerError {}

impl Value {
    /// Returns the name of the type, as errors print it.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Int(_) => "an integer",
            Value::Double(_) => "a floating-point number",
            Value::Bool(_) => "a Boolean",
            Value::Status(_) => "a status",
            Value::Bytes(_) => "a string",
            Value::BigNumber(_) => "a big number",
            Value::Verbatim { .. } => "a text",
            Value::Array(_) => "an array",
            Value::Map(_) => "a map",
            Value::Set(_) => "a set",
            Value::Push(_) => "a pushed message",
            Value::Error(_) => "an error",
        }
    }

    /// Returns the bytes of a string, text, status or big number.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            Value::Bytes(bytes) | Value::Status(bytes) | Value::BigNumber(bytes) => Some(bytes),
            Value::Verbatim { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns the elements of an array, a set or a pushed message.
    pub fn into_elements(self) -> Option<Vec<Value>> {
        match self {
            Value::Array(elements) | Value::Set(elements) | Value::Push(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns keys and values: those of a map, or of an array that has them alternating, as RESP2 does.
    pub fn into_pairs(self) -> Option<Vec<(Value, Value)>> {
        match self {
            Value::Map(pairs) => Some(pairs),
            Value::Array(elements) if elements.len().is_multiple_of(2) => {
                let mut elements = elements.into_iter();
                Some(std::iter::from_fn(|| Some((elements.next()?, elements.next()?))).collect())
            }
            _ => None,
        }
    }

    fn unlike(&self, expected: &'static str) -> Error {
        Error::WrongType { expected, found: self.kind() }
    }
}

/// Converts a reply to a type that a program expects. Replies of another type are [`Error::WrongType`].
///
/// ```
/// use pelton_redis::{Error, FromValue, Value};
///
/// assert_eq!(i64::from_value(Value::Int(7)), Ok(7));
/// assert_eq!(Option::<String>::from_value(Value::Null), Ok(None));
/// assert!(matches!(i64::from_value(Value::Null), Err(Error::WrongType { .. })));
/// ```
pub trait FromValue: Sized {
    /// Converts a reply.
    fn from_value(value: Value) -> Result<Self, Error>;
}

/// Any reply, except an error.
impl FromValue for Value {
    fn from_value(value: Value) -> Result<Value, Error> {
        match value {
            Value::Error(error) => Err(Error::Server(error)),
            value => Ok(value),
        }
    }
}

/// Any reply, which is dropped.
impl FromValue for () {
    fn from_value(value: Value) -> Result<(), Error> {
        Value::from_value(value).map(drop)
    }
}

impl FromValue for i64 {
    fn from_value(value: Value) -> Result<i64, Error> {
        const EXPECTED: &str = "an integer";
        match Value::from_value(value)? {
            Value::Int(number) => Ok(number),
            value => {
                let text = value.as_bytes().and_then(|bytes| str::from_utf8(bytes).ok());
                text.and_then(|text| text.parse().ok()).ok_or_else(|| value.unlike(EXPECTED))
            }
        }
    }
}

impl FromValue for u64 {
    fn from_value(value: Value) -> Result<u64, Error> {
        let error = value.unlike("a non-negative integer");
        i64::from_value(value)?.try_into().map_err(|_| error)
    }
}

impl FromValue for f64 {
    fn from_value(value: Value) -> Result<f64, Error> {
        match Value::from_value(value)? {
            Value::Double(number) => Ok(number),
            Value::Int(number) => Ok(number as f64),
            value => {
                let text = value.as_bytes().and_then(|bytes| str::from_utf8(bytes).ok());
                text.and_then(|text| text.parse().ok()).ok_or_else(|| value.unlike("a floating-point number"))
            }
        }
    }
}

/// A Boolean, or the integers 0 and 1, which RESP2 has instead.
impl FromValue for bool {
    fn from_value(value: Value) -> Result<bool, Error> {
        match Value::from_value(value)? {
            Value::Bool(truth) => Ok(truth),
            Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            value => Err(value.unlike("a Boolean")),
        }
    }
}

impl FromValue for Bytes {
    fn from_value(value: Value) -> Result<Bytes, Error> {
        match Value::from_value(value)? {
            Value::Bytes(bytes) | Value::Status(bytes) | Value::BigNumber(bytes) => Ok(bytes),
            Value::Verbatim { text, .. } => Ok(text),
            value => Err(value.unlike("a string")),
        }
    }
}

impl FromValue for String {
    fn from_value(value: Value) -> Result<String, Error> {
        let error = value.unlike("a string in UTF-8");
        String::from_utf8(Bytes::from_value(value)?.into()).map_err(|_| error)
    }
}

/// `None` for null.
impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: Value) -> Result<Option<T>, Error> {
        if value == Value::Null { Ok(None) } else { T::from_value(value).map(Some) }
    }
}

/// The elements of an array or a set.
impl<T: FromValue> FromValue for Vec<T> {
    fn from_value(value: Value) -> Result<Vec<T>, Error> {
        let error = value.unlike("an array");
        let elements = Value::from_value(value)?.into_elements().ok_or(error)?;
        elements.into_iter().map(T::from_value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_convert_to_what_is_expected_or_fail() {
        let text = |text: &'static str| Value::Bytes(Bytes::from_static(text.as_bytes()));
        assert_eq!(i64::from_value(text("12")), Ok(12));
        assert!(i64::from_value(text("12x")).is_err());
        assert!(u64::from_value(Value::Int(-1)).is_err());
        assert_eq!(f64::from_value(text("1.5")), Ok(1.5));
        assert_eq!(bool::from_value(Value::Int(1)), Ok(true));
        assert!(bool::from_value(Value::Int(2)).is_err());
        assert!(String::from_value(Value::Bytes(Bytes::from_static(b"\xff"))).is_err());
        let pair = Value::Array(vec![text("a"), Value::Null]);
        assert_eq!(Vec::<Option<String>>::from_value(pair.clone()), Ok(vec![Some("a".into()), None]));
        assert_eq!(pair.into_pairs(), Some(vec![(text("a"), Value::Null)]));
        let error = Value::Error(ServerError::new(b"OOM command not allowed"));
        assert!(matches!(<()>::from_value(error), Err(Error::Server(error)) if error.code() == "OOM"));
    }

    #[test]
    fn errors_are_printed_without_control_characters() {
        assert_eq!(ServerError::new(b"ERR \x1b[2Jboo\xff").to_string(), "ERR [2Jboo\u{fffd}");
    }
}
