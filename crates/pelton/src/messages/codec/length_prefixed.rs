//! Bytes, after their number.

use bytes::Bytes;

use super::{Buffer, Codec, FRAME_LIMIT, FrameError, finished_after};

/// How long a varint can be: 7 bits in each byte make 64.
const LONGEST_VARINT: usize = 10;

/// How the length of a message is written before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefix {
    /// One byte.
    U8,
    /// Two bytes, the higher one first.
    U16Be,
    /// Two bytes, the lower one first.
    U16Le,
    /// Four bytes, the highest one first.
    U32Be,
    /// Four bytes, the lowest one first.
    U32Le,
    /// Eight bytes, the highest one first.
    U64Be,
    /// Eight bytes, the lowest one first.
    U64Le,
    /// LEB128: seven bits in each byte, the lowest ones first, and the eighth says whether more follow. As protocol buffers
    /// write it.
    Varint,
}

impl Prefix {
    /// Reads a length off the beginning of `bytes`, and says how many of them it took. `None` if there are too few.
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

    /// How many bytes it takes at most.
    fn longest(self) -> usize {
        match self {
            Prefix::U8 => 1,
            Prefix::U16Be | Prefix::U16Le => 2,
            Prefix::U32Be | Prefix::U32Le => 4,
            Prefix::U64Be | Prefix::U64Le => 8,
            Prefix::Varint => LONGEST_VARINT,
        }
    }

    /// The highest number that it can say.
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
        // Nine bytes hold 63 bits, so the tenth has one.
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

/// Bytes, after their number in one of the usual encodings. One that is over the limit is refused from its prefix, before
/// anything of it is kept.
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
    /// The prefix has been taken out.
    content: Option<Content>,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    length: usize,
    /// How many bytes the prefix took.
    prefix: usize,
}

impl LengthPrefixed {
    /// Messages of at most [`FRAME_LIMIT`] bytes, whose length is written as `prefix` says.
    pub fn new(prefix: Prefix) -> LengthPrefixed {
        LengthPrefixed { prefix, limit: FRAME_LIMIT, content: None }
    }

    /// Refuses messages of more than so many bytes, not counting the prefix.
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
