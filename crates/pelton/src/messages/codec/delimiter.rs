//! Bytes up to a delimiter.

use bytes::Bytes;

use super::{Buffer, Codec, FRAME_LIMIT, Found, FrameError, Search};

/// Messages terminated by a delimiter of one or more bytes. The delimiter is not part of the message, which cannot
/// contain it.
///
/// ```
/// use pelton::codec::{Buffer, Codec, Delimiter};
///
/// let mut codec = Delimiter::new("\0");
/// let mut out = Vec::new();
/// codec.encode(&"one".into(), &mut out)?;
/// codec.encode(&"two".into(), &mut out)?;
/// assert_eq!(out, b"one\0two\0");
/// # Ok::<(), pelton::codec::FrameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Delimiter {
    end: Search,
    limit: usize,
}

impl Delimiter {
    /// Creates a codec for messages of at most [`FRAME_LIMIT`] bytes, terminated by `delimiter`.
    ///
    /// # Panics
    ///
    /// If the delimiter is empty.
    pub fn new(delimiter: impl AsRef<[u8]>) -> Delimiter {
        Delimiter { end: Search::new(delimiter), limit: FRAME_LIMIT }
    }

    /// Limits messages to this many bytes, not counting the delimiter.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Delimiter {
        self.limit = bytes;
        self
    }

    fn too_long(&self) -> FrameError {
        FrameError::TooLong { what: "a frame", limit: self.limit }
    }
}

impl Codec for Delimiter {
    type Message = Bytes;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Bytes>, FrameError> {
        let end = match self.end.find(buffer, self.limit) {
            Found::At(end) => end,
            Found::NotYet => return Ok(None),
            Found::Nowhere => return Err(self.too_long()),
        };
        let message = buffer.take(end);
        buffer.skip(self.end.delimiter().len());
        Ok(message.map(Bytes::from))
    }

    fn encode(&mut self, message: &Bytes, out: &mut Vec<u8>) -> Result<(), FrameError> {
        if message.len() > self.limit {
            return Err(self.too_long());
        }
        let start = out.len();
        out.extend_from_slice(message);
        out.extend_from_slice(self.end.delimiter());
        // The end of a message may form a delimiter with the beginning of the delimiter: "a" before "aa".
        if self.end.find_in(&out[start..]) != Some(message.len()) {
            out.truncate(start);
            return Err(FrameError::Malformed { what: "a message that contains the delimiter" });
        }
        Ok(())
    }
}
