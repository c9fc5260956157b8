//! Deserialization with serde: Rust types from a value, and values from any format.

use std::fmt;
use std::iter::Enumerate;
use std::vec::IntoIter;

use bytes::Bytes;
use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::serialize::marks;
use super::{ConversionError, ConversionErrorKind, Date, DateTime, Limits, Time, TimeDelta, Value};

/// Deserializes a type from a value: the inverse of [`to_value`](super::to_value).
///
/// ```
/// use pelton_python::value::from_value;
/// use pelton_python::Value;
///
/// let value = Value::dict([("x", 1), ("y", 2)]);
/// let map: std::collections::BTreeMap<String, f64> = from_value(value).unwrap();
/// assert_eq!(map["y"], 2.0);
/// ```
///
/// Values of more than 128 levels are refused, because each level takes several stack frames in serde.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, ConversionError> {
    let limit = Limits::DEFAULT.depth;
    if is_deeper_than(&value, limit) {
        return Err(ConversionError::new(ConversionErrorKind::TooDeep { limit }));
    }
    T::deserialize(value)
}

fn is_deeper_than(value: &Value, levels: u32) -> bool {
    let inner = |item: &Value| is_deeper_than(item, levels - 1);
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
            levels == 0 || items.iter().any(inner)
        }
        Value::Dict(pairs) => levels == 0 || pairs.iter().any(|(key, value)| inner(key) || inner(value)),
        _ => false,
    }
}

impl de::Error for ConversionError {
    fn custom<T: fmt::Display>(message: T) -> ConversionError {
        ConversionError::new(ConversionErrorKind::Other(message.to_string()))
    }
}

impl IntoDeserializer<'_, ConversionError> for Value {
    type Deserializer = Value;

    fn into_deserializer(self) -> Value {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = ConversionError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConversionError> {
        match self {
            Value::None => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Int(value) => visitor.visit_i64(value),
            Value::BigInt(value) => match (u64::try_from(&*value), i128::try_from(&*value), u128::try_from(&*value)) {
                (Ok(value), ..) => visitor.visit_u64(value),
                (_, Ok(value), _) => visitor.visit_i128(value),
                (_, _, Ok(value)) => visitor.visit_u128(value),
                _ => visitor.visit_string(value.to_string()),
            },
            Value::Float(value) => visitor.visit_f64(value),
            Value::Str(value) => visitor.visit_string(value),
            Value::Bytes(value) | Value::Buffer(value) => visitor.visit_byte_buf(value.into()),
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
                let mut items = Items(items.into_iter().enumerate());
                let made = visitor.visit_seq(&mut items)?;
                no_more(items.0.len(), "items")?;
                Ok(made)
            }
            Value::Dict(pairs) => {
                let mut pairs = Pairs { rest: pairs.into_iter().enumerate(), value: None };
                let made = visitor.visit_map(&mut pairs)?;
                no_more(pairs.rest.len(), "keys")?;
                Ok(made)
            }
            Value::DateTime(value) => visitor.visit_string(value.to_string()),
            Value::Date(value) => visitor.visit_string(value.to_string()),
            Value::Time(value) => visitor.visit_string(value.to_string()),
            Value::TimeDelta(value) => visitor.visit_string(value.to_string()),
            Value::Native(_) | Value::Object(_) => Err(ConversionError::wrong_type("data", &self)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConversionError> {
        if self.is_none() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConversionError> {
        if name == marks::VALUE {
            // A `Value` is requested. Types unknown to serde are passed as a variant with our name.
            return match mark_of(&self) {
                Some(mark) => visitor.visit_enum(Variant { name: mark.into(), content: unwrapped(self) }),
                None => visitor.visit_newtype_struct(self),
            };
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConversionError> {
        match self {
            Value::Str(name) => visitor.visit_enum(Variant { name, content: Value::None }),
            Value::Dict(mut pairs) if pairs.len() == 1 => match pairs.pop() {
                Some((Value::Str(name), content)) => visitor.visit_enum(Variant { name, content }),
                _ => Err(ConversionError::wrong_type("a variant name as the key", &Value::Dict(pairs))),
            },
            other => Err(ConversionError::wrong_type(
                "a variant name, or a dict with a variant name as its only key",
                &other,
            )),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// Returns our name for a type unknown to serde.
fn mark_of(value: &Value) -> Option<&'static str> {
    Some(match value {
        Value::BigInt(_) => marks::INT,
        Value::Buffer(_) => marks::BUFFER,
        Value::Tuple(_) => marks::TUPLE,
        Value::Set(_) => marks::SET,
        Value::FrozenSet(_) => marks::FROZEN_SET,
        Value::DateTime(_) => marks::DATE_TIME,
        Value::Date(_) => marks::DATE,
        Value::Time(_) => marks::TIME,
        Value::TimeDelta(_) => marks::TIME_DELTA,
        _ => return None,
    })
}

/// Returns the content as a type known to serde.
fn unwrapped(value: Value) -> Value {
    match value {
        Value::BigInt(number) => Value::Str(number.to_string()),
        Value::Buffer(bytes) => Value::Bytes(bytes),
        Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => Value::List(items),
        other => other,
    }
}

/// Fails if items are left over.
fn no_more(count: usize, what: &str) -> Result<(), ConversionError> {
    if count == 0 { Ok(()) } else { Err(de::Error::custom(format_args!("{count} more {what} than expected"))) }
}

/// The remaining items of a sequence, with their indices.
struct Items(Enumerate<IntoIter<Value>>);

impl<'de> SeqAccess<'de> for &mut Items {
    type Error = ConversionError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ConversionError> {
        let Some((index, item)) = self.0.next() else { return Ok(None) };
        seed.deserialize(item).map(Some).map_err(|error| error.in_item(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The remaining pairs of a dict.
struct Pairs {
    rest: Enumerate<IntoIter<(Value, Value)>>,
    /// The pair whose key was taken.
    value: Option<(Value, Value)>,
}

impl<'de> MapAccess<'de> for &mut Pairs {
    type Error = ConversionError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ConversionError> {
        let Some((index, (key, value))) = self.rest.next() else { return Ok(None) };
        // The key is kept for error messages. For strings, by far the most common, this is free.
        let made = match &key {
            Value::Str(text) => seed.deserialize(StrDeserializer::<ConversionError>::new(text)),
            other => seed.deserialize(other.clone()),
        };
        self.value = Some((key, value));
        made.map(Some).map_err(|error| error.in_key(index))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ConversionError> {
        match self.value.take() {
            Some((key, value)) => seed.deserialize(value).map_err(|error| error.under(&key)),
            None => Err(de::Error::custom("a value was requested before its key")),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// A variant of an enum: its name and its content.
struct Variant {
    name: String,
    content: Value,
}

impl<'de> EnumAccess<'de> for Variant {
    type Error = ConversionError;
    type Variant = Content;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content), ConversionError> {
        let name: StrDeserializer<'_, ConversionError> = self.name.as_str().into_deserializer();
        Ok((seed.deserialize(name)?, Content(self.content)))
    }
}

struct Content(Value);

impl<'de> VariantAccess<'de> for Content {
    type Error = ConversionError;

    fn unit_variant(self) -> Result<(), ConversionError> {
        if self.0.is_none() { Ok(()) } else { Err(ConversionError::wrong_type("a variant without content", &self.0)) }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ConversionError> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ConversionError> {
        self.0.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConversionError> {
        self.0.deserialize_any(visitor)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_newtype_struct(marks::VALUE, AnyValue)
    }
}

/// Accepts anything a format has.
struct AnyValue;

macro_rules! visit {
    ($($method:ident($type:ty)),*) => {
        $(fn $method<E>(self, value: $type) -> Result<Value, E> {
            Ok(value.into())
        })*
    };
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that can be converted to Python")
    }

    visit! {
        visit_bool(bool), visit_i64(i64), visit_i128(i128), visit_u64(u64), visit_u128(u128), visit_f64(f64),
        visit_str(&str), visit_string(String), visit_bytes(&[u8])
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Value, E> {
        Ok(Value::Bytes(bytes.into()))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Dict(pairs))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        let (name, content) = access.variant::<String>()?;
        let bytes = |content: Value| content.as_bytes().cloned().unwrap_or_else(Bytes::new);
        let items = |content| match content {
            Value::List(items) => items,
            _ => Vec::new(),
        };
        Ok(match name.as_str() {
            marks::INT => {
                let text: String = content.newtype_variant()?;
                text.parse::<num_bigint::BigInt>().map_err(de::Error::custom)?.into()
            }
            marks::BUFFER => Value::Buffer(bytes(content.newtype_variant()?)),
            marks::TUPLE => Value::Tuple(items(content.newtype_variant()?)),
            marks::SET => Value::Set(items(content.newtype_variant()?)),
            marks::FROZEN_SET => Value::FrozenSet(items(content.newtype_variant()?)),
            marks::DATE_TIME => content.newtype_variant::<DateTime>()?.into(),
            marks::DATE => content.newtype_variant::<Date>()?.into(),
            marks::TIME => content.newtype_variant::<Time>()?.into(),
            marks::TIME_DELTA => content.newtype_variant::<TimeDelta>()?.into(),
            // A format with its own enums.
            _ => Value::Dict(vec![(name.into(), content.newtype_variant()?)]),
        })
    }
}

macro_rules! from_text {
    ($($type:ty => $mark:expr, $what:literal);*) => {
        $(impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Text;

                impl<'de> Visitor<'de> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }

                    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<$type, D::Error> {
                        deserializer.deserialize_str(self)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(|error: ConversionError| E::custom(error.kind()))
                    }
                }

                deserializer.deserialize_newtype_struct($mark, Text)
            }
        })*
    };
}

from_text! {
    DateTime => marks::DATE_TIME, "a date and time in ISO 8601 format";
    Date => marks::DATE, "a date in ISO 8601 format";
    Time => marks::TIME, "a time of day in ISO 8601 format";
    TimeDelta => marks::TIME_DELTA, "a duration in ISO 8601 format"
}
