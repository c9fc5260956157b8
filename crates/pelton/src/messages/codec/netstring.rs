//! Netstrings.

use bytes::Bytes;

use super::{Buffer, Codec, FRAME_LIMIT, FrameError, finished_after};

/// The number of digits of the longest length.
const MOST_DIGITS: usize = 20;

/// Netstrings: bytes preceded by their length in decimal and a colon, and followed by a comma.
///
/// Decoding is strict: a length has no sign, no spaces and no leading zeros.
///
/// ```
/// use pelton::codec::{Codec, Netstring};
///
/// let mut out = Vec::new();
/// Netstring::new().encode(&"hello".into(), &mut out)?;
/// assert_eq!(out, b"5:hello,");
/// # Ok::<(), pelton::codec::FrameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Netstring {
    limit: usize,
    /// Set once the length and the colon have been taken.
    content: Option<Content>,
}

#[derive(Clone, Copy, Debug)]
struct Content {
    length: usize,
    /// How many bytes the length and the colon occupied.
    prefix: usize,
}

impl Netstring {
    /// Creates a codec for messages of at most [`FRAME_LIMIT`] bytes.
    pub fn new() -> Netstring {
        Netstring { limit: FRAME_LIMIT, content: None }
    }

    /// Limits messages to this many bytes, not counting the framing around them.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Netstring {
        self.limit = bytes;
        self
    }

    fn too_long(&self) -> FrameError {
        FrameError::TooLong { what: "a netstring", limit: self.limit }
    }

    /// Reads the length at the beginning of a frame. Returns `None` if the colon has not arrived yet.
    fn read_length(&self, bytes: &[u8]) -> Result<Option<Content>, FrameError> {
        let mut length = 0usize;
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                b':' if index > 0 => return Ok(Some(Content { length, prefix: index + 1 })),
                b':' => return Err(FrameError::Malformed { what: "a netstring without a length" }),
                b'0'..=b'9' if index > 0 && length == 0 => {
                    return Err(FrameError::Malformed { what: "a netstring whose length begins with 0" });
                }
                b'0'..=b'9' => length = length.saturating_mul(10).saturating_add(usize::from(byte - b'0')),
                _ => return Err(FrameError::Malformed { what: "a netstring whose length is not a number" }),
            }
            if length > self.limit {
                return Err(self.too_long());
            }
        }
        // Only possible if there is effectively no limit.
        if bytes.len() > MOST_DIGITS { Err(self.too_long()) } else { Ok(None) }
    }
}

impl Default for Netstring {
    fn default() -> Netstring {
        Netstring::new()
    }
}

impl Codec for Netstring {
    type Message = Bytes;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        let content = match self.content {
            Some(content) => content,
            None => {
                let Some(content) = self.read_length(buffer.first(MOST_DIGITS + 1))? else { return Ok(None) };
                buffer.skip(content.prefix);
                *self.content.insert(content)
            }
        };
        // Includes the comma.
        let Some(mut message) = buffer.take(content.length.saturating_add(1)) else { return Ok(None) };
        if message.pop() != Some(b',') {
            return Err(FrameError::Malformed { what: "a netstring that does not end in a comma" });
        }
        self.content = None;
        Ok(Some(message.into()))
    }

    fn encode(&mut self, message: &Bytes, out: &mut Vec<u8>) -> Result<(), FrameError> {
        if message.len() > self.limit {
            return Err(self.too_long());
        }
        out.extend_from_slice(message.len().to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(message);
        out.push(b',');
        Ok(())
    }

    fn finished(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        finished_after(self.content.map_or(0, |content| content.prefix), buffer)
    }
}
