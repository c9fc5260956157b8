//! Lines of text.

use super::{Buffer, Codec, Found, FrameError, Search, TEXT_LIMIT};

/// Lines of text. A message is a line without its line ending.
///
/// Received lines may end in LF or CRLF. Sent lines end in LF, or in CRLF after [`crlf`](Lines::crlf).
///
/// ```
/// use pelton::codec::{Buffer, Codec, Lines};
///
/// let mut buffer = Buffer::new();
/// buffer.feed(b"get a\r\nget b\nget".to_vec().into());
/// let mut lines = Lines::new();
/// assert_eq!(lines.decode(&mut buffer)?.as_deref(), Some("get a"));
/// assert_eq!(lines.decode(&mut buffer)?.as_deref(), Some("get b"));
/// assert_eq!(lines.decode(&mut buffer)?, None);
/// # Ok::<(), pelton::codec::FrameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lines {
    end: Search,
    limit: usize,
    /// The line ending of sent lines.
    ending: &'static str,
}

impl Lines {
    /// Creates a codec for lines of at most [`TEXT_LIMIT`] bytes.
    pub fn new() -> Lines {
        Lines { end: Search::new("\n"), limit: TEXT_LIMIT, ending: "\n" }
    }

    /// Limits lines to this many bytes, not counting the line ending.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Lines {
        self.limit = bytes;
        self
    }

    /// Ends sent lines with CRLF, as most Internet protocols require.
    #[must_use]
    pub fn crlf(mut self) -> Lines {
        self.ending = "\r\n";
        self
    }

    fn too_long(&self) -> FrameError {
        FrameError::TooLong { what: "a line", limit: self.limit }
    }
}

impl Default for Lines {
    fn default() -> Lines {
        Lines::new()
    }
}

impl Codec for Lines {
    type Message = String;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<String>, FrameError> {
        // The byte after the limit may be the CR of the line ending.
        let end = match self.end.find(buffer, self.limit.saturating_add(1)) {
            Found::At(end) => end,
            Found::NotYet if buffer.byte(self.limit).is_none_or(|byte| byte == b'\r') => return Ok(None),
            Found::NotYet | Found::Nowhere => return Err(self.too_long()),
        };
        let line_end = if end > 0 && buffer.byte(end - 1) == Some(b'\r') { 2 } else { 1 };
        let length = end + 1 - line_end;
        if length > self.limit {
            return Err(self.too_long());
        }
        let Some(line) = buffer.take(length) else { return Ok(None) };
        buffer.skip(line_end);
        match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(FrameError::Malformed { what: "a line that is not UTF-8" }),
        }
    }

    fn encode(&mut self, line: &String, out: &mut Vec<u8>) -> Result<(), FrameError> {
        if line.len() > self.limit {
            return Err(self.too_long());
        }
        if line.contains('\n') {
            return Err(FrameError::Malformed { what: "a line with a line break inside" });
        }
        if line.ends_with('\r') && self.ending == "\n" {
            return Err(FrameError::Malformed {
                what: "a line that ends in CR, which would become part of the line ending",
            });
        }
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(self.ending.as_bytes());
        Ok(())
    }
}
