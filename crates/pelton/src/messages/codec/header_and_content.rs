//! Header lines, an empty line, and content.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use super::{Buffer, Codec, FRAME_LIMIT, Found, FrameError, Search, TEXT_LIMIT, finished_after};

/// Header lines up to an empty line, then content whose length a header names, as many protocols of the Internet have it.
/// Without that header there is no content.
///
/// The header that names the length (`Content-Length`, unless told otherwise) is the codec's own: it is not among those of a
/// message, and is written for each. Lines that come in may end in LF or CRLF; those that go out end in CRLF.
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
    /// The message at hand.
    headers: Headers,
    /// How long its content is, if a header has named that.
    length: Option<usize>,
    /// How many bytes of its header have been taken out.
    header_taken: usize,
    /// The empty line has come.
    header_complete: bool,
}

impl HeaderAndContent {
    /// Messages with a header of at most [`TEXT_LIMIT`] bytes and content of at most [`FRAME_LIMIT`] bytes.
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

    /// Has another header name the length of the content. Names differ by more than upper and lower case.
    ///
    /// # Panics
    ///
    /// If this cannot be a header's name.
    #[must_use]
    pub fn length_header(mut self, name: impl Into<Cow<'static, str>>) -> HeaderAndContent {
        self.length_header = name.into();
        assert!(is_name(&self.length_header), "{:?} cannot be the name of a header", self.length_header);
        self
    }

    /// Refuses headers of more than so many bytes, all lines with their ends counted.
    #[must_use]
    pub fn header_limit(mut self, bytes: usize) -> HeaderAndContent {
        self.header_limit = bytes;
        self
    }

    /// Refuses content of more than so many bytes.
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

    /// Takes out the next line of the header, without its end.
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
            return Err(FrameError::Malformed { what: "a length of content that is not a number" });
        }
        // All digits: what does not fit is too long for any limit.
        let length = value.parse().unwrap_or(usize::MAX);
        if length > self.content_limit {
            return Err(self.content_too_long());
        }
        match self.length.replace(length) {
            None => Ok(()),
            // Whoever relays this may go by the other one: then the two see different messages.
            Some(_) => Err(FrameError::Malformed { what: "a second length of the same content" }),
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
            return Err(FrameError::Malformed { what: "a length of content, which is for the codec to write" });
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

/// What [`HeaderAndContent`] decodes and encodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headed {
    /// Its headers, but for the one that names the length of the content.
    pub headers: Headers,
    /// Its content.
    pub content: Bytes,
}

impl Headed {
    /// Content without any header.
    pub fn new(content: impl Into<Bytes>) -> Headed {
        Headed { headers: Headers::default(), content: content.into() }
    }

    /// Adds a header, unless its name or value cannot be written as one.
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

/// Headers, in the order in which they came. Upper and lower case make no difference in their names.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers {
    /// `name:value\n` for each, so that all of them take one allocation.
    text: String,
}

impl Headers {
    /// The value of a header; of the first, if several have this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.split_terminator('\n').filter_map(|line| line.split_once(':'))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Adds a header. Spaces around its value are dropped. A name with anything but visible ASCII characters in it, or a
    /// value with control characters, is refused.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FrameError> {
        if !is_name(name) {
            return Err(FrameError::Malformed { what: "a header whose name is not one" });
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
