//! Parses replies as their bytes arrive.

use bytes::Bytes;

use super::number::{double, integer, is_big_number, length};
use super::{ProtocolError, ServerError, Value};

/// What a server may send. A reply past a limit ends the connection, as soon as a length announces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The size of a reply on the wire, in bytes. By default 64 MiB.
    pub bytes: usize,
    /// How many values a reply may have, at all levels together. Each takes about 50 bytes of memory, however short it is
    /// on the wire. By default 1,048,576.
    pub elements: usize,
    /// How deep a reply may be nested. No command nests deeper than 10. By default 32.
    pub depth: usize,
    /// The length of a line: a status, an error, a number. By default 64 KiB.
    pub line: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes: 64 << 20, elements: 1 << 20, depth: 32, line: 64 << 10 }
    }
}

/// A string's memory grows with the bytes that have arrived, from this size on. Its announced length proves nothing.
const FIRST_ROOM: usize = 16 << 10;

/// The same for the elements of an array.
const FIRST_ELEMENTS: usize = 64;

/// Parses replies, wherever the stream was split. It does not recurse, and each byte is looked at once.
///
/// ```
/// use pelton_redis::{Limits, Parser, Value};
///
/// let mut parser = Parser::new(Limits::default());
/// let mut input = &b"*2\r\n:1\r\n$3\r\non"[..];
/// assert_eq!(parser.parse(&mut input), Ok(None));
/// let mut input = &b"e\r\n:2\r\n"[..];
/// let one = Value::Array(vec![Value::Int(1), Value::Bytes("one".into())]);
/// assert_eq!(parser.parse(&mut input), Ok(Some(one)));
/// assert_eq!(parser.parse(&mut input), Ok(Some(Value::Int(2))));
/// assert_eq!(parser.parse(&mut input), Ok(None));
/// ```
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// The aggregates that are not complete, outermost first.
    open: Vec<Aggregate>,
    item: Item,
    /// Bytes of the current reply that have arrived, or are announced by the length of a string.
    bytes: usize,
    /// Elements of the current reply, including those that aggregates announce.
    elements: usize,
}

/// What is being read.
#[derive(Debug)]
enum Item {
    /// A line, of which these bytes have arrived.
    Line(Vec<u8>),
    /// A string of this length, of which these bytes have arrived, and the end of its line after it.
    String { kind: StringKind, length: usize, bytes: Vec<u8> },
    /// The parser has failed.
    Failed(ProtocolError),
}

#[derive(Clone, Copy, Debug)]
enum StringKind {
    Bytes,
    Error,
    Verbatim,
}

#[derive(Debug)]
struct Aggregate {
    kind: AggregateKind,
    /// How many values are missing.
    missing: usize,
    values: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum AggregateKind {
    Array,
    Set,
    Map,
    Push,
    /// Extra information about the value that follows, which is dropped.
    Attribute,
}

/// What a line begins.
enum Begun {
    Value(Value),
    String(StringKind, usize),
    Aggregate(AggregateKind, usize),
}

impl Parser {
    /// Makes a parser at the beginning of a stream.
    pub fn new(limits: Limits) -> Parser {
        // No larger string exists, and lengths can be added without overflow.
        let limits =
            Limits { bytes: limits.bytes.min(usize::MAX / 4), line: limits.line.min(usize::MAX / 4), ..limits };
        Parser { limits, open: Vec::new(), item: Item::Line(Vec::new()), bytes: 0, elements: 1 }
    }

    /// Returns the next reply and removes its bytes from `input`. Returns `None` if more bytes are needed; then `input` is
    /// empty. After an error, it returns that error for ever.
    pub fn parse(&mut self, input: &mut &[u8]) -> Result<Option<Value>, ProtocolError> {
        let result = self.advance(input);
        if let Err(error) = result {
            *self = Parser { item: Item::Failed(error), ..Parser::new(self.limits) };
        }
        result
    }

    /// Returns whether a reply has begun and is not complete.
    pub fn is_inside(&self) -> bool {
        self.bytes > 0
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Value>, ProtocolError> {
        loop {
            let value = match &mut self.item {
                Item::Failed(error) => return Err(*error),
                Item::Line(_) => match self.line(input)? {
                    None => return Ok(None),
                    Some(Begun::Value(value)) => Some(value),
                    Some(Begun::String(kind, length)) => {
                        // Counted now: an announced length that is too large is refused before its bytes arrive.
                        if length > self.limits.bytes || length + 2 > self.limits.bytes - self.bytes {
                            return Err(ProtocolError::TooLarge(self.limits.bytes));
                        }
                        self.bytes += length + 2;
                        self.item = Item::String { kind, length, bytes: Vec::new() };
                        None
                    }
                    Some(Begun::Aggregate(kind, count)) => self.open(kind, count)?,
                },
                Item::String { .. } => match self.string(input)? {
                    None => return Ok(None),
                    value => value,
                },
            };
            if let Some(value) = value.and_then(|value| self.close(value)) {
                (self.bytes, self.elements) = (0, 1);
                return Ok(Some(value));
            }
        }
    }

    /// Reads a line. Copies it only if it arrives in pieces.
    fn line(&mut self, input: &mut &[u8]) -> Result<Option<Begun>, ProtocolError> {
        let end = memchr::memchr(b'\n', input);
        let (piece, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
        *input = rest;
        let Item::Line(kept) = &mut self.item else { return Ok(None) };
        // Which limit is exceeded first must not depend on where the input is split.
        let (longest, left) = (self.limits.line + 2, self.limits.bytes - (self.bytes - kept.len()));
        if kept.len() + piece.len() > longest.min(left) {
            return Err(match longest <= left {
                true => ProtocolError::LongLine(self.limits.line),
                false => ProtocolError::TooLarge(self.limits.bytes),
            });
        }
        self.bytes += piece.len();
        if end.is_none() || !kept.is_empty() {
            kept.extend_from_slice(piece);
        }
        if end.is_none() {
            return Ok(None);
        }
        let kept = std::mem::take(kept);
        let line = if kept.is_empty() { piece } else { &kept };
        let line = line.strip_suffix(b"\r\n").ok_or(ProtocolError::BadLine)?;
        begin(line).map(Some)
    }

    /// Reads a string and the end of its line.
    fn string(&mut self, input: &mut &[u8]) -> Result<Option<Value>, ProtocolError> {
        let Item::String { kind, length, bytes } = &mut self.item else { return Ok(None) };
        let (kind, length) = (*kind, *length);
        if bytes.is_empty()
            && let Some(whole) = input.get(..length + 2)
        {
            // Everything is here: one copy, of the exact size.
            let text = whole.strip_suffix(b"\r\n").ok_or(ProtocolError::BadLine)?;
            let value = finish_string(kind, Bytes::copy_from_slice(text))?;
            *input = &input[length + 2..];
            self.item = Item::Line(Vec::new());
            return Ok(Some(value));
        }
        let piece = &input[..input.len().min(length + 2 - bytes.len())];
        let needed = bytes.len() + piece.len();
        if needed > bytes.capacity() {
            let room = needed.max(bytes.capacity() * 2).max(FIRST_ROOM).min(length + 2);
            bytes.reserve_exact(room - bytes.len());
        }
        bytes.extend_from_slice(piece);
        *input = &input[piece.len()..];
        let complete = bytes.len() == length + 2;
        if !complete {
            return Ok(None);
        }
        let mut bytes = std::mem::take(bytes);
        self.item = Item::Line(Vec::new());
        if !bytes.ends_with(b"\r\n") {
            return Err(ProtocolError::BadLine);
        }
        bytes.truncate(length);
        finish_string(kind, bytes.into()).map(Some)
    }

    /// Opens an aggregate. Returns it if it is empty.
    fn open(&mut self, kind: AggregateKind, count: usize) -> Result<Option<Value>, ProtocolError> {
        let per_entry = if matches!(kind, AggregateKind::Map | AggregateKind::Attribute) { 2 } else { 1 };
        let missing = count.saturating_mul(per_entry);
        if missing > self.limits.elements.saturating_sub(self.elements) {
            return Err(ProtocolError::TooManyElements(self.limits.elements));
        }
        self.elements += missing;
        if kind == AggregateKind::Push && !self.open.is_empty() {
            return Err(ProtocolError::NestedPush);
        }
        if self.open.len() >= self.limits.depth {
            return Err(ProtocolError::TooDeep(self.limits.depth));
        }
        let aggregate = Aggregate { kind, missing, values: Vec::new() };
        if missing == 0 {
            return Ok(aggregate.finish());
        }
        self.open.push(aggregate);
        Ok(None)
    }

    /// Adds a complete value to the aggregate that it belongs to. Returns the reply if that completes it.
    fn close(&mut self, mut value: Value) -> Option<Value> {
        loop {
            let Some(innermost) = self.open.last_mut() else { return Some(value) };
            innermost.add(value);
            if innermost.missing > 0 {
                return None;
            }
            // An attribute is no value: the one that it describes follows.
            value = self.open.pop()?.finish()?;
        }
    }
}

impl Aggregate {
    fn add(&mut self, value: Value) {
        self.missing -= 1;
        if self.kind == AggregateKind::Attribute {
            return;
        }
        if self.values.capacity() == 0 {
            self.values.reserve_exact((self.missing + 1).min(FIRST_ELEMENTS));
        }
        self.values.push(value);
    }

    /// Returns the value, or `None` for an attribute.
    fn finish(self) -> Option<Value> {
        Some(match self.kind {
            AggregateKind::Array => Value::Array(self.values),
            AggregateKind::Set => Value::Set(self.values),
            AggregateKind::Push => Value::Push(self.values),
            AggregateKind::Map => Value::Map(Value::Array(self.values).into_pairs()?),
            AggregateKind::Attribute => return None,
        })
    }
}

/// Interprets a line without its end.
fn begin(line: &[u8]) -> Result<Begun, ProtocolError> {
    let (&mark, text) = line.split_first().ok_or(ProtocolError::BadLine)?;
    if memchr::memchr(b'\r', text).is_some() {
        return Err(ProtocolError::BadLine);
    }
    let string = |kind, what| Ok::<_, ProtocolError>(length(text, what)?.map(|length| (kind, length)));
    let aggregate = |kind| match (length(text, "the length of an aggregate")?, kind) {
        (Some(count), kind) => Ok(Begun::Aggregate(kind, count)),
        (None, AggregateKind::Array) => Ok(Begun::Value(Value::Null)),
        (None, _) => Err(ProtocolError::Malformed("the length of an aggregate")),
    };
    Ok(match mark {
        b'+' => Begun::Value(Value::Status(status(text))),
        b'-' => Begun::Value(Value::Error(ServerError::new(text))),
        b':' => Begun::Value(Value::Int(integer(text, "an integer")?)),
        b'$' => match string(StringKind::Bytes, "the length of a string")? {
            Some((kind, length)) => Begun::String(kind, length),
            None => Begun::Value(Value::Null),
        },
        b'!' => match string(StringKind::Error, "the length of an error")? {
            Some((kind, length)) => Begun::String(kind, length),
            None => return Err(ProtocolError::Malformed("the length of an error")),
        },
        b'=' => match string(StringKind::Verbatim, "the length of a text")? {
            Some((kind, length)) => Begun::String(kind, length),
            None => return Err(ProtocolError::Malformed("the length of a text")),
        },
        b'*' => aggregate(AggregateKind::Array)?,
        b'~' => aggregate(AggregateKind::Set)?,
        b'%' => aggregate(AggregateKind::Map)?,
        b'>' => aggregate(AggregateKind::Push)?,
        b'|' => aggregate(AggregateKind::Attribute)?,
        b'_' if text.is_empty() => Begun::Value(Value::Null),
        b'#' if text == b"t" => Begun::Value(Value::Bool(true)),
        b'#' if text == b"f" => Begun::Value(Value::Bool(false)),
        b'_' => return Err(ProtocolError::Malformed("a null")),
        b'#' => return Err(ProtocolError::Malformed("a Boolean")),
        b',' => Begun::Value(Value::Double(double(text)?)),
        b'(' if is_big_number(text) => Begun::Value(Value::BigNumber(Bytes::copy_from_slice(text))),
        b'(' => return Err(ProtocolError::Malformed("a big number")),
        other => return Err(ProtocolError::UnknownType(other)),
    })
}

/// The statuses that servers send all the time need no memory.
fn status(text: &[u8]) -> Bytes {
    match text {
        b"OK" => Bytes::from_static(b"OK"),
        b"QUEUED" => Bytes::from_static(b"QUEUED"),
        b"PONG" => Bytes::from_static(b"PONG"),
        text => Bytes::copy_from_slice(text),
    }
}

fn finish_string(kind: StringKind, mut bytes: Bytes) -> Result<Value, ProtocolError> {
    Ok(match kind {
        StringKind::Bytes => Value::Bytes(bytes),
        StringKind::Error => Value::Error(ServerError::new(&bytes)),
        StringKind::Verbatim => match bytes.first_chunk() {
            Some(&[a, b, c, b':']) => Value::Verbatim { format: [a, b, c], text: bytes.split_off(4) },
            _ => return Err(ProtocolError::Malformed("a text without a format")),
        },
    })
}

#[cfg(test)]
mod tests;
