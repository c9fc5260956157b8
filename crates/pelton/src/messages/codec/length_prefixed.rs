//! Messages preceded by their length.

use bytes::Bytes;

use super::{Buffer, Codec, FRAME_LIMIT, FrameError, finished_after};

/// The maximum length of a varint: 64 bits, 7 per byte.
const LONGEST_VARINT: usize = 10;

/// The encoding of a message's length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefix {
    /// One byte.
    U8,
    /// Two bytes, big-endian.
    U16Be,
    /// Two bytes, little-endian.
    U16Le,
    /// Four bytes, big-endian.
    U32Be,
    /// Four bytes, little-endian.
    U32Le,
    /// Eight bytes, big-endian.
    U64Be,
    /// Eight bytes, little-endian.
    U64Le,
    /// LEB128, as in protocol buffers: seven bits per byte, lowest first; the eighth bit is set if more bytes follow.
    Varint,
}

impl Prefix {
    /// Reads a length from the beginning of `bytes`. Returns it with the number of bytes that it occupies, or `None` if
    /// there are too few.
    fn read(self, bytes: &[u8]) -> Result<Option<(u64, usize)>, FrameError> {
        fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
            bytes.first_chunk().copied()
        }
        let fixed = match self {
            Prefix::U8 => bytes.first().map(|byte| (u64::from(*byte), 1)),
            Prefix::U16Be => array(bytes).map(|bytes| (u64::from(u16::from_be_bytes(bytes)), 2)),
            Prefix::U16Le => array(bytes).map(|bytes| (u64::from(u16::from_le_bytes(bytes)), 2)),
            Prefix::U32Be => array(bytes).map(|bytes| (u64::from(u32::from_be_bytes(bytes)), 4)),
            Prefix::U32Le => array(bytes).map(|bytes| (u64::from(u32::from_le_bytes(bytes)), 4)),
            Prefix::U64Be => array(bytes).map(|bytes| (u64::from_be_bytes(bytes), 8)),
            Prefix::U64Le => array(bytes).map(|bytes| (u64::from_le_bytes(bytes), 8)),
            Prefix::Varint => return read_varint(bytes),
        };
        Ok(fixed)
    }

    fn write(self, length: u64, out: &mut Vec<u8>) {
        let be = length.to_be_bytes();
        let le = length.to_le_bytes();
        match self {
            Prefix::U8 => out.extend_from_slice(&le[..1]),
            Prefix::U16Be => out.extend_from_slice(&be[6..]),
            Prefix::U16Le => out.extend_from_slice(&le[..2]),
            Prefix::U32Be => out.extend_from_slice(&be[4..]),
            Prefix::U32Le => out.extend_from_slice(&le[..4]),
            Prefix::U64Be => out.extend_from_slice(&be),
            Prefix::U64Le => out.extend_from_slice(&le),
            Prefix::Varint => write_varint(length, out),
        }
    }

    /// Returns the maximum number of bytes of the prefix.
    fn longest(self) -> usize {
        match self {
            Prefix::U8 => 1,
            Prefix::U16Be | Prefix::U16Le => 2,
            Prefix::U32Be | Prefix::U32Le => 4,
            Prefix::U64Be | Prefix::U64Le => 8,
            Prefix::Varint => LONGEST_VARINT,
        }
    }

    /// Returns the highest length that it can encode.
    fn highest(self) -> u64 {
        match self {
            Prefix::U8 => u8::MAX.into(),
            Prefix::U16Be | Prefix::U16Le => u16::MAX.into(),
            Prefix::U32Be | Prefix::U32Le => u32::MAX.into(),
            Prefix::U64Be | Prefix::U64Le | Prefix::Varint => u64::MAX,
        }
    }
}

fn read_varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, FrameError> {
    let mut length = 0u64;
    for (index, byte) in bytes.iter().enumerate() {
        // Nine bytes hold 63 bits, so the tenth holds one.
        if index == LONGEST_VARINT - 1 && *byte > 1 {
            return Err(FrameError::Malformed { what: "a length that does not fit in 64 bits" });
        }
        length |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((length, index + 1)));
        }
    }
    Ok(None)
}

fn write_varint(mut length: u64, out: &mut Vec<u8>) {
    while length > 0x7f {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

/// Messages preceded by their length in one of the usual encodings. A message over the limit is rejected by its prefix,
/// before any of it is buffered.
///
/// ```
/// use pelton::codec::{Buffer, Codec, FrameError, LengthPrefixed, Prefix};
///
/// let mut codec = LengthPrefixed::new(Prefix::U16Be).limit(1000);
/// let mut buffer = Buffer::new();
/// buffer.feed(b"\0\x05hello\xff\xff".to_vec().into());
/// assert_eq!(codec.decode(&mut buffer)?.unwrap(), "hello");
/// assert_eq!(codec.decode(&mut buffer), Err(FrameError::TooLong { what: "a frame", limit: 1000 }));
/// # Ok::<(), FrameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LengthPrefixed {
    prefix: Prefix,
    limit: usize,
    /// Set once the prefix has been taken.
    content: Option<Content>,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    length: usize,
    /// How many bytes the prefix occupied.
    prefix: usize,
}

impl LengthPrefixed {
    /// Creates a codec for messages of at most [`FRAME_LIMIT`] bytes, whose length is encoded as `prefix`.
    pub fn new(prefix: Prefix) -> LengthPrefixed {
        LengthPrefixed { prefix, limit: FRAME_LIMIT, content: None }
    }

    /// Limits messages to this many bytes, not counting the prefix.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> LengthPrefixed {
        self.limit = bytes;
        self
    }
}

impl Codec for LengthPrefixed {
    type Message = Bytes;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        let content = match self.content {
            Some(content) => content,
            None => {
                let Some((length, prefix)) = self.prefix.read(buffer.first(self.prefix.longest()))? else {
                    return Ok(None);
                };
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if length > self.limit {
                    return Err(FrameError::TooLong { what: "a frame", limit: self.limit });
                }
                buffer.skip(prefix);
                *self.content.insert(Content { length, prefix })
            }
        };
        let Some(message) = buffer.take(content.length) else { return Ok(None) };
        self.content = None;
        Ok(Some(message.into()))
    }

    fn encode(&mut self, message: &Bytes, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let limit = self.limit.min(usize::try_from(self.prefix.highest()).unwrap_or(usize::MAX));
        if message.len() > limit {
            return Err(FrameError::TooLong { what: "a frame", limit });
        }
        self.prefix.write(message.len() as u64, out);
        out.extend_from_slice(message);
        Ok(())
    }

    fn finished(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        finished_after(self.content.map_or(0, |content| content.prefix), buffer)
    }
}
