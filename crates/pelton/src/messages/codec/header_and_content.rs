//! Header lines, an empty line, and content.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use super::{Buffer, Codec, FRAME_LIMIT, Found, FrameError, Search, TEXT_LIMIT, finished_after};

/// Header lines up to an empty line, then content whose length a header names, as in many Internet protocols. Without
/// that header there is no content.
///
/// The codec handles the length header (`Content-Length` by default): it is not among the headers of a message, and it
/// is written for every message. Received lines may end in LF or CRLF; sent lines end in CRLF.
///
/// ```
/// use pelton::codec::{Buffer, Codec, HeaderAndContent};
///
/// let mut buffer = Buffer::new();
/// buffer.feed(b"Action: greet\r\ncontent-length: 5\r\n\r\nhello".to_vec().into());
/// let message = HeaderAndContent::new().decode(&mut buffer)?.unwrap();
/// assert_eq!(message.headers.get("action"), Some("greet"));
/// assert_eq!(message.content, "hello");
/// # Ok::<(), pelton::codec::FrameError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeaderAndContent {
    line_end: Search,
    length_header: Cow<'static, str>,
    header_limit: usize,
    content_limit: usize,
    /// The headers of the current message.
    headers: Headers,
    /// The length of its content, if a header has named it.
    length: Option<usize>,
    /// How many bytes of its header have been taken.
    header_taken: usize,
    /// The empty line has arrived.
    header_complete: bool,
}

impl HeaderAndContent {
    /// Creates a codec for messages with headers of at most [`TEXT_LIMIT`] bytes and content of at most [`FRAME_LIMIT`]
    /// bytes.
    pub fn new() -> HeaderAndContent {
        HeaderAndContent {
            line_end: Search::new("\n"),
            length_header: "Content-Length".into(),
            header_limit: TEXT_LIMIT,
            content_limit: FRAME_LIMIT,
            headers: Headers::default(),
            length: None,
            header_taken: 0,
            header_complete: false,
        }
    }

    /// Sets the name of the header that holds the content length. Names are compared ignoring ASCII case.
    ///
    /// # Panics
    ///
    /// If this is not a valid header name.
    #[must_use]
    pub fn length_header(mut self, name: impl Into<Cow<'static, str>>) -> HeaderAndContent {
        self.length_header = name.into();
        assert!(is_name(&self.length_header), "{:?} is not a valid header name", self.length_header);
        self
    }

    /// Limits the header to this many bytes, counting all lines and their ends.
    #[must_use]
    pub fn header_limit(mut self, bytes: usize) -> HeaderAndContent {
        self.header_limit = bytes;
        self
    }

    /// Limits the content to this many bytes.
    #[must_use]
    pub fn content_limit(mut self, bytes: usize) -> HeaderAndContent {
        self.content_limit = bytes;
        self
    }

    fn header_too_long(&self) -> FrameError {
        FrameError::TooLong { what: "a header", limit: self.header_limit }
    }

    fn content_too_long(&self) -> FrameError {
        FrameError::TooLong { what: "content", limit: self.content_limit }
    }

    /// Takes the next header line, without its end.
    fn decode_line(&mut self, buffer: &mut Buffer) -> Result<Option<String>, FrameError> {
        if buffer.is_empty() {
            return Ok(None);
        }
        let room = self.header_limit - self.header_taken;
        let end = match room.checked_sub(1).map(|before| self.line_end.find(buffer, before)) {
            Some(Found::At(end)) => end,
            Some(Found::NotYet) => return Ok(None),
            Some(Found::Nowhere) | None => return Err(self.header_too_long()),
        };
        let Some(mut line) = buffer.take(end) else { return Ok(None) };
        buffer.skip(1);
        self.header_taken += end + 1;
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(FrameError::Malformed { what: "a header that is not UTF-8" }),
        }
    }

    fn decode_header(&mut self, line: &str) -> Result<(), FrameError> {
        let Some((name, value)) = line.split_once(':') else {
            return Err(FrameError::Malformed { what: "a header without a colon" });
        };
        if !name.eq_ignore_ascii_case(&self.length_header) {
            return self.headers.add(name, value);
        }
        let value = trimmed(value);
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(FrameError::Malformed { what: "a content length that is not a number" });
        }
        // It has only digits: a number that does not fit exceeds any limit.
        let length = value.parse().unwrap_or(usize::MAX);
        if length > self.content_limit {
            return Err(self.content_too_long());
        }
        match self.length.replace(length) {
            None => Ok(()),
            // A relay may use the other one, and then the two see different messages.
            Some(_) => Err(FrameError::Malformed { what: "a second content length" }),
        }
    }
}

impl Default for HeaderAndContent {
    fn default() -> HeaderAndContent {
        HeaderAndContent::new()
    }
}

impl Codec for HeaderAndContent {
    type Message = Headed;

    fn decode(&mut self, buffer: &mut Buffer) -> Result<Option<Headed>, FrameError> {
        while !self.header_complete {
            let Some(line) = self.decode_line(buffer)? else { return Ok(None) };
            if line.is_empty() {
                self.header_complete = true;
            } else {
                self.decode_header(&line)?;
            }
        }
        let Some(content) = buffer.take(self.length.unwrap_or(0)) else { return Ok(None) };
        self.length = None;
        self.header_taken = 0;
        self.header_complete = false;
        Ok(Some(Headed { headers: std::mem::take(&mut self.headers), content: content.into() }))
    }

    fn encode(&mut self, message: &Headed, out: &mut Vec<u8>) -> Result<(), FrameError> {
        if message.content.len() > self.content_limit {
            return Err(self.content_too_long());
        }
        if message.headers.get(&self.length_header).is_some() {
            return Err(FrameError::Malformed { what: "a content length header, which only the codec may write" });
        }
        let start = out.len();
        let length = message.content.len().to_string();
        for (name, value) in message.headers.iter().chain([(&*self.length_header, length.as_str())]) {
            for part in [name, ": ", value, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
        if out.len() - start > self.header_limit {
            out.truncate(start);
            return Err(self.header_too_long());
        }
        out.extend_from_slice(&message.content);
        Ok(())
    }

    fn finished(&mut self, buffer: &mut Buffer) -> Result<Option<Headed>, FrameError> {
        finished_after(self.header_taken, buffer)
    }
}

/// The message type of [`HeaderAndContent`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headed {
    /// The headers, without the one for the content length.
    pub headers: Headers,
    /// The content.
    pub content: Bytes,
}

impl Headed {
    /// Creates a message without headers.
    pub fn new(content: impl Into<Bytes>) -> Headed {
        Headed { headers: Headers::default(), content: content.into() }
    }

    /// Adds a header. Fails if its name or value cannot be encoded.
    ///
    /// ```
    /// # use pelton::codec::Headed;
    /// let message = Headed::new("hello").with("Action", "greet")?;
    /// assert!(Headed::default().with("Action", "greet\r\nAdmin: yes").is_err());
    /// # Ok::<(), pelton::codec::FrameError>(())
    /// ```
    pub fn with(mut self, name: &str, value: &str) -> Result<Headed, FrameError> {
        self.headers.add(name, value)?;
        Ok(self)
    }
}

/// Headers, in the order in which they arrived. Names are compared ignoring ASCII case.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers {
    /// `name:value\n` for each header, so that all of them need one allocation.
    text: String,
}

impl Headers {
    /// Returns the value of the first header with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns an iterator over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.split_terminator('\n').filter_map(|line| line.split_once(':'))
    }

    /// Returns whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Adds a header. Spaces around its value are trimmed. Fails if the name contains anything but visible ASCII
    /// characters, or if the value contains control characters.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FrameError> {
        if !is_name(name) {
            return Err(FrameError::Malformed { what: "a header with an invalid name" });
        }
        let value = trimmed(value);
        if value.chars().any(|char| char.is_ascii_control() && char != '\t') {
            return Err(FrameError::Malformed { what: "a header with a control character in its value" });
        }
        for part in [name, ":", value, "\n"] {
            self.text.push_str(part);
        }
        Ok(())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

fn trimmed(value: &str) -> &str {
    value.trim_matches([' ', '\t'])
}
