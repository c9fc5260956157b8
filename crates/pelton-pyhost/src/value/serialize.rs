//! Serialization with serde: values from Rust types, and values into any format.
//!
//! Python types unknown to serde are serialized as newtype structs with our names. Our own serializer recognizes
//! these, so [`to_value`] returns a value unchanged. Other formats see the content, which is text or a sequence.

use std::fmt::Display;

use serde::ser::{self, Serialize};

use super::{ConversionError, ConversionErrorKind, Date, DateTime, Limits, Time, TimeDelta, Value};

/// Names of the newtype structs that stand for Python's types.
pub(super) mod marks {
    pub(in super::super) const INT: &str = "$pelton::int";
    pub(in super::super) const BUFFER: &str = "$pelton::memoryview";
    pub(in super::super) const TUPLE: &str = "$pelton::tuple";
    pub(in super::super) const SET: &str = "$pelton::set";
    pub(in super::super) const FROZEN_SET: &str = "$pelton::frozenset";
    pub(in super::super) const DATE_TIME: &str = "$pelton::datetime";
    pub(in super::super) const DATE: &str = "$pelton::date";
    pub(in super::super) const TIME: &str = "$pelton::time";
    pub(in super::super) const TIME_DELTA: &str = "$pelton::timedelta";
    pub(in super::super) const VALUE: &str = "$pelton::value";
}

/// Converts anything that can be serialized to a value.
///
/// Structs and maps become dicts, sequences become lists, and tuples become tuples; `None` and `()` become `None`. An
/// enum variant without content becomes its name; any other variant becomes a dict with the name as its only key.
///
/// ```
/// use pelton_python::value::to_value;
/// use pelton_python::Value;
///
/// #[derive(serde::Serialize)]
/// struct Point {
///     x: i32,
///     y: i32,
/// }
///
/// assert_eq!(to_value(&Point { x: 1, y: 2 }).unwrap(), Value::dict([("x", 1), ("y", 2)]));
/// ```
pub fn to_value<T: Serialize + ?Sized>(data: &T) -> Result<Value, ConversionError> {
    data.serialize(Serializer { levels: Limits::DEFAULT.depth })
}

/// Serializes bytes as bytes; serde's default is a sequence of numbers.
struct AsBytes<'a>(&'a [u8]);

impl Serialize for AsBytes<'_> {
    fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Serializes something as its text.
struct AsText<T>(T);

impl<T: Display> Serialize for AsText<T> {
    fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Serialize for Value {
    /// Fails for an [`Object`](super::Object), which cannot be serialized.
    fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::None => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Int(value) => serializer.serialize_i64(*value),
            Value::BigInt(value) => match (i128::try_from(&**value), u128::try_from(&**value)) {
                (Ok(value), _) => serializer.serialize_i128(value),
                (_, Ok(value)) => serializer.serialize_u128(value),
                _ => serializer.serialize_newtype_struct(marks::INT, &AsText(value)),
            },
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Str(value) => serializer.serialize_str(value),
            Value::Bytes(value) => serializer.serialize_bytes(value),
            Value::Buffer(value) => serializer.serialize_newtype_struct(marks::BUFFER, &AsBytes(value)),
            Value::List(items) => serializer.collect_seq(items),
            Value::Tuple(items) => serializer.serialize_newtype_struct(marks::TUPLE, items),
            Value::Set(items) => serializer.serialize_newtype_struct(marks::SET, items),
            Value::FrozenSet(items) => serializer.serialize_newtype_struct(marks::FROZEN_SET, items),
            Value::Dict(pairs) => serializer.collect_map(pairs.iter().map(|(key, value)| (key, value))),
            Value::DateTime(value) => value.serialize(serializer),
            Value::Date(value) => value.serialize(serializer),
            Value::Time(value) => value.serialize(serializer),
            Value::TimeDelta(value) => value.serialize(serializer),
            Value::Native(native) => {
                Err(ser::Error::custom(format_args!("a {} cannot be serialized", native.type_name())))
            }
            Value::Object(_) => Err(ser::Error::custom("a Python object cannot be serialized")),
        }
    }
}

macro_rules! as_text {
    ($($type:ty => $mark:expr),*) => {
        $(impl Serialize for $type {
            fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_newtype_struct($mark, &AsText(self))
            }
        })*
    };
}

as_text!(DateTime => marks::DATE_TIME, Date => marks::DATE, Time => marks::TIME, TimeDelta => marks::TIME_DELTA);

impl ser::Error for ConversionError {
    fn custom<T: Display>(message: T) -> ConversionError {
        ConversionError::new(ConversionErrorKind::Other(message.to_string()))
    }
}

/// Creates a value with at most `levels` nested containers.
#[derive(Clone, Copy)]
struct Serializer {
    levels: u32,
}

impl Serializer {
    fn deeper(self) -> Result<Serializer, ConversionError> {
        let limit = Limits::DEFAULT.depth;
        let levels = self.levels.checked_sub(1);
        let levels = levels.ok_or_else(|| ConversionError::new(ConversionErrorKind::TooDeep { limit }))?;
        Ok(Serializer { levels })
    }

    /// Starts a sequence one level deeper, which is wrapped when it is finished.
    fn sequence(self, length: usize, wrap: Wrap) -> Result<Sequence, ConversionError> {
        // The announced length may be wrong.
        let items = Vec::with_capacity(length.min(4_096));
        Ok(Sequence { items, wrap, inner: self.deeper()? })
    }

    fn pairs(self, length: usize, variant: Option<&'static str>) -> Result<Pairs, ConversionError> {
        let pairs = Vec::with_capacity(length.min(4_096));
        Ok(Pairs { pairs, key: None, variant, inner: self.deeper()? })
    }
}

/// Returns a dict with one pair: a variant's name and its content.
fn variant_dict(variant: &str, content: Value) -> Value {
    Value::Dict(vec![(variant.into(), content)])
}

/// Returns the value that one of our newtype structs stands for.
fn unmark(mark: &'static str, content: Value) -> Result<Value, ConversionError> {
    Ok(match (mark, content) {
        (marks::INT, Value::Str(text)) => match text.parse::<num_bigint::BigInt>() {
            Ok(number) => number.into(),
            Err(error) => return Err(ConversionError::out_of_range(error)),
        },
        (marks::BUFFER, Value::Bytes(bytes)) => Value::Buffer(bytes),
        (marks::TUPLE, Value::List(items)) => Value::Tuple(items),
        (marks::SET, Value::List(items)) => Value::Set(items),
        (marks::FROZEN_SET, Value::List(items)) => Value::FrozenSet(items),
        (marks::DATE_TIME, Value::Str(text)) => text.parse::<DateTime>()?.into(),
        (marks::DATE, Value::Str(text)) => text.parse::<Date>()?.into(),
        (marks::TIME, Value::Str(text)) => text.parse::<Time>()?.into(),
        (marks::TIME_DELTA, Value::Str(text)) => text.parse::<TimeDelta>()?.into(),
        (_, other) => other,
    })
}

macro_rules! scalars {
    ($($method:ident($type:ty)),*) => {
        $(fn $method(self, value: $type) -> Result<Value, ConversionError> {
            Ok(value.into())
        })*
    };
}

impl ser::Serializer for Serializer {
    type Ok = Value;
    type Error = ConversionError;
    type SerializeSeq = Sequence;
    type SerializeTuple = Sequence;
    type SerializeTupleStruct = Sequence;
    type SerializeTupleVariant = Sequence;
    type SerializeMap = Pairs;
    type SerializeStruct = Pairs;
    type SerializeStructVariant = Pairs;

    scalars! {
        serialize_bool(bool), serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64),
        serialize_i128(i128), serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64),
        serialize_u128(u128), serialize_f32(f32), serialize_f64(f64), serialize_char(char), serialize_str(&str),
        serialize_bytes(&[u8])
    }

    fn serialize_none(self) -> Result<Value, ConversionError> {
        Ok(Value::None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, ConversionError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, ConversionError> {
        Ok(Value::None)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, ConversionError> {
        Ok(Value::None)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, ConversionError> {
        Ok(variant.into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Value, ConversionError> {
        unmark(name, value.serialize(self)?)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, ConversionError> {
        let content = value.serialize(self.deeper()?).map_err(|error| error.under(&variant.into()))?;
        Ok(variant_dict(variant, content))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Sequence, ConversionError> {
        self.sequence(length.unwrap_or(0), Wrap::List)
    }

    fn serialize_tuple(self, length: usize) -> Result<Sequence, ConversionError> {
        self.sequence(length, Wrap::Tuple)
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<Sequence, ConversionError> {
        self.sequence(length, Wrap::Tuple)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Sequence, ConversionError> {
        self.deeper()?.sequence(length, Wrap::Variant(variant))
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Pairs, ConversionError> {
        self.pairs(length.unwrap_or(0), None)
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Pairs, ConversionError> {
        self.pairs(length, None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Pairs, ConversionError> {
        self.deeper()?.pairs(length, Some(variant))
    }
}

enum Wrap {
    List,
    Tuple,
    /// A tuple in a dict under this name.
    Variant(&'static str),
}

/// A list or tuple under construction.
struct Sequence {
    items: Vec<Value>,
    wrap: Wrap,
    inner: Serializer,
}

impl Sequence {
    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConversionError> {
        let item = item.serialize(self.inner).map_err(|error| error.in_item(self.items.len()))?;
        self.items.push(item);
        Ok(())
    }

    fn finish(self) -> Result<Value, ConversionError> {
        Ok(match self.wrap {
            Wrap::List => Value::List(self.items),
            Wrap::Tuple => Value::Tuple(self.items),
            Wrap::Variant(variant) => variant_dict(variant, Value::Tuple(self.items)),
        })
    }
}

macro_rules! sequences {
    ($($kind:ident, $push:ident);*) => {
        $(impl ser::$kind for Sequence {
            type Ok = Value;
            type Error = ConversionError;

            fn $push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), ConversionError> {
                self.push(item)
            }

            fn end(self) -> Result<Value, ConversionError> {
                self.finish()
            }
        })*
    };
}

sequences! {
    SerializeSeq, serialize_element; SerializeTuple, serialize_element; SerializeTupleStruct, serialize_field;
    SerializeTupleVariant, serialize_field
}

/// A dict under construction.
struct Pairs {
    pairs: Vec<(Value, Value)>,
    /// The key whose value comes next.
    key: Option<Value>,
    variant: Option<&'static str>,
    inner: Serializer,
}

impl Pairs {
    fn push<T: Serialize + ?Sized>(&mut self, key: Value, value: &T) -> Result<(), ConversionError> {
        let value = value.serialize(self.inner).map_err(|error| error.under(&key))?;
        self.pairs.push((key, value));
        Ok(())
    }

    fn finish(self) -> Result<Value, ConversionError> {
        let dict = Value::Dict(self.pairs);
        Ok(match self.variant {
            Some(variant) => variant_dict(variant, dict),
            None => dict,
        })
    }
}

impl ser::SerializeMap for Pairs {
    type Ok = Value;
    type Error = ConversionError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), ConversionError> {
        self.key = Some(key.serialize(self.inner).map_err(|error| error.in_key(self.pairs.len()))?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ConversionError> {
        match self.key.take() {
            Some(key) => self.push(key, value),
            None => Err(ser::Error::custom("a value was serialized without a key")),
        }
    }

    fn end(self) -> Result<Value, ConversionError> {
        self.finish()
    }
}

macro_rules! structs {
    ($($kind:ident),*) => {
        $(impl ser::$kind for Pairs {
            type Ok = Value;
            type Error = ConversionError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), ConversionError> {
                self.push(name.into(), value)
            }

            fn end(self) -> Result<Value, ConversionError> {
                self.finish()
            }
        })*
    };
}

structs!(SerializeStruct, SerializeStructVariant);
