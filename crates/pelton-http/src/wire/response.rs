//! Reads responses piece by piece, strictly: anything ambiguous is an error (RFC 9112, sections 2.2, 4 and 6.3).
//!
//! The result depends on the bytes alone, not on how they are split.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::fields::locate;
use super::framing::Framed;
use super::options::Options;
use super::{ChunkLimits, Chunked, Decoded, Field, Fields, Framing, Version};

/// The start of every head with a supported version.
const BEGINNING: &[u8] = b"HTTP/1.";

/// Why a response is malformed. Nothing after it on the connection can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The kind of request that is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// A `HEAD` request: the response has no body.
    Head,
    /// Any other request.
    Other,
    /// A request that offers another protocol: 101 ends HTTP on the connection.
    Upgrade,
    /// A `CONNECT` request: a status from 200 to 299 ends HTTP on the connection.
    Connect,
}

/// Limits on the size of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponseLimits {
    /// Bytes of a head, at most [`ResponseLimits::MOST_BYTES`].
    pub head: usize,
    /// Number of fields, at most [`ResponseLimits::MOST_FIELDS`].
    pub fields: usize,
    /// Number of interim responses (1xx) before the final one.
    pub interim: usize,
    /// Limits on the overhead of a chunked body.
    pub chunks: ChunkLimits,
}

impl ResponseLimits {
    /// The upper bound for `head`, 1 MiB: every connection may hold an incomplete head in memory.
    pub const MOST_BYTES: usize = 1 << 20;

    /// The upper bound for `fields`: httparse stores them on the stack.
    pub const MOST_FIELDS: usize = 256;
}

impl Default for ResponseLimits {
    fn default() -> ResponseLimits {
        ResponseLimits { head: 64 * 1024, fields: 128, interim: 16, chunks: ChunkLimits::default() }
    }
}

/// The head of a response, borrowed from the received bytes.
#[derive(Clone, Copy)]
pub struct ResponseHead<'a> {
    status: u16,
    version: Version,
    length: Option<u64>,
    bytes: &'a [u8],
    reason: (u32, u32),
    fields: &'a [Field],
}

impl<'a> ResponseHead<'a> {
    /// The status, from 100 to 599.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The reason phrase, if it is ASCII.
    pub fn reason(&self) -> &'a str {
        let (start, end) = self.reason;
        str::from_utf8(self.bytes.get(start as usize..end as usize).unwrap_or_default()).unwrap_or_default()
    }

    /// The header fields.
    pub fn fields(&self) -> Fields<'a> {
        Fields::new(self.bytes, self.fields)
    }

    /// The length of the body if it is announced. A response to `HEAD` announces that of the corresponding `GET`.
    pub fn content_length(&self) -> Option<u64> {
        self.length
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn table(&self) -> &'a [Field] {
        self.fields
    }
}

impl std::fmt::Debug for ResponseHead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseHead").field("status", &self.status).field("fields", &self.fields()).finish()
    }
}

/// A piece of a response.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Nothing yet: more input is needed.
    More,
    /// An interim response. Another head follows.
    Interim(ResponseHead<'a>),
    /// The head of the response.
    Head(ResponseHead<'a>),
    /// A part of the body, without its framing.
    Data(&'a [u8]),
    /// The response is complete.
    End,
    /// The head of a response after which the connection speaks another protocol.
    Switched(ResponseHead<'a>),
}

/// Reads one response. Call [`reset`](ResponseReader::reset) before the next.
///
/// ```
/// use pelton_http::wire::{Piece, ResponseReader, To};
///
/// let mut reader = ResponseReader::default();
/// let input = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// let (used, piece) = reader.next(To::Other, input)?;
/// assert!(matches!(piece, Piece::Head(head) if head.status() == 200));
/// let (_, piece) = reader.next(To::Other, &input[used..])?;
/// assert!(matches!(piece, Piece::Data(b"hello")));
/// assert!(matches!(reader.next(To::Other, b"")?, (0, Piece::End)));
/// # Ok::<(), pelton_http::wire::Malformed>(())
/// ```
#[derive(Default)]
pub struct ResponseReader {
    limits: ResponseLimits,
    /// The received part of an incomplete head; or a complete one that was returned by the last call.
    partial: Vec<u8>,
    /// The head in `partial` was returned.
    returned: bool,
    lines: Lines,
    fields: Vec<Field>,
    interim: usize,
    keep_alive: bool,
    state: State,
    chunked: Chunked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Head,
    /// This many bytes remain.
    Length(u64),
    Chunked,
    UntilClose,
    Ended,
    Switched,
}

/// How much of a head has been scanned, so that each byte is scanned once.
#[derive(Clone, Copy, Default)]
struct Lines {
    looked_at: usize,
    /// Where the current line begins.
    line: usize,
}

impl Lines {
    /// Finds the end of the head at the beginning of `bytes`.
    fn end_of_head(&mut self, bytes: &[u8], longest: usize) -> Result<Option<usize>, Malformed> {
        let begun = bytes.len().min(BEGINNING.len());
        if bytes[..begun] != BEGINNING[..begun] {
            return Err(Malformed("the response does not begin with HTTP/1."));
        }
        while let Some(found) = memchr::memchr(b'\n', &bytes[self.looked_at..]) {
            let end = self.looked_at + found;
            if bytes[..end].last() != Some(&b'\r') {
                return Err(Malformed("a line of the head does not end in CRLF"));
            }
            let is_empty = end - self.line == 1;
            (self.looked_at, self.line) = (end + 1, end + 1);
            if self.line > longest {
                break;
            } else if is_empty {
                return Ok(Some(self.line));
            }
        }
        self.looked_at = bytes.len();
        if bytes.len() > longest { Err(Malformed("the head is too long")) } else { Ok(None) }
    }
}

/// The essential parts of a head. The fields are in a table.
struct Parsed {
    status: u16,
    version: Version,
    said: Option<Framing>,
    options: Options,
    reason: Range<u32>,
    length: usize,
}

impl ResponseReader {
    /// Creates a reader with these limits.
    pub fn new(limits: ResponseLimits) -> ResponseReader {
        ResponseReader { limits, ..ResponseReader::default() }
    }

    /// Reads the start of `input`. Returns the number of bytes consumed and what they are. If that is not
    /// [`Piece::More`], call it again with the rest, even if that is empty.
    pub fn next<'a>(&'a mut self, to: To, input: &'a [u8]) -> Result<(usize, Piece<'a>), Malformed> {
        match self.state {
            State::Head => self.head(to, input),
            State::Length(0) => {
                self.state = State::Ended;
                Ok((0, Piece::End))
            }
            State::Length(missing) => {
                let used = usize::try_from(missing).unwrap_or(usize::MAX).min(input.len());
                self.state = State::Length(missing - used as u64);
                Ok((used, if used == 0 { Piece::More } else { Piece::Data(&input[..used]) }))
            }
            State::Chunked => {
                let decoded = self.chunked.decode(input, &self.limits.chunks);
                let (used, decoded) = decoded.map_err(|refusal| Malformed(refusal.why))?;
                Ok(match decoded {
                    Decoded::Data(data) => (used, Piece::Data(data)),
                    Decoded::More => (used, Piece::More),
                    Decoded::End => {
                        self.state = State::Ended;
                        (used, Piece::End)
                    }
                })
            }
            State::UntilClose if input.is_empty() => Ok((0, Piece::More)),
            State::UntilClose => Ok((input.len(), Piece::Data(input))),
            State::Ended => Ok((0, Piece::End)),
            State::Switched => Ok((0, Piece::More)),
        }
    }

    /// Ends the input. Returns whether the response is complete: some end with the connection.
    pub fn end(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::Ended;
        }
        self.state == State::Ended
    }

    /// Whether any byte of a response, interim or final, has been received.
    pub fn has_begun(&self) -> bool {
        self.state != State::Head || self.interim > 0 || !self.partial.is_empty()
    }

    /// Whether the response is complete and another request may follow on the connection.
    pub fn is_reusable(&self) -> bool {
        self.state == State::Ended && self.keep_alive
    }

    /// The fields after a chunked body.
    pub fn trailers(&self) -> Fields<'_> {
        self.chunked.trailers()
    }

    /// Prepares for the next response.
    pub fn reset(&mut self) {
        (self.state, self.interim, self.returned, self.lines) = (State::Head, 0, false, Lines::default());
        self.partial.clear();
        self.fields.clear();
        self.chunked.reset();
    }

    fn head<'a>(&'a mut self, to: To, input: &'a [u8]) -> Result<(usize, Piece<'a>), Malformed> {
        if std::mem::take(&mut self.returned) {
            self.partial.clear();
        }
        if input.is_empty() {
            return Ok((0, Piece::More));
        }
        let longest = self.limits.head.min(ResponseLimits::MOST_BYTES);
        let before = self.partial.len();
        if before == 0 {
            // Fast path: the head is complete and needs no search for its end.
            if let Some(parsed) = parse(input, longest, &self.limits, &mut self.fields) {
                return self.parsed(to, parsed, input);
            }
            if let Some(end) = self.lines.end_of_head(input, longest)? {
                return Err(self.why_not(&input[..end]));
            }
        }
        self.partial.extend_from_slice(input);
        if before > 0
            && let Some(end) = self.lines.end_of_head(&self.partial, longest)?
        {
            let Some(parsed) = parse(&self.partial[..end], longest, &self.limits, &mut self.fields) else {
                return Err(self.why_not(&self.partial[..end]));
            };
            (self.returned, self.lines) = (true, Lines::default());
            self.partial.truncate(end);
            let partial = std::mem::take(&mut self.partial);
            // The head is borrowed from where it stays until the next call.
            let kind = self.decide(to, &parsed)?;
            self.partial = partial;
            return Ok((end - before, self.piece(kind, parsed, &self.partial)));
        }
        Ok((input.len(), Piece::More))
    }

    fn parsed<'a>(&'a mut self, to: To, parsed: Parsed, input: &'a [u8]) -> Result<(usize, Piece<'a>), Malformed> {
        let kind = self.decide(to, &parsed)?;
        let used = parsed.length;
        Ok((used, self.piece(kind, parsed, &input[..used])))
    }

    fn piece<'a>(&'a self, kind: Kind, parsed: Parsed, bytes: &'a [u8]) -> Piece<'a> {
        let length = match parsed.said {
            Some(Framing::Length(length)) => Some(length),
            _ => None,
        };
        let Parsed { status, version, reason, .. } = parsed;
        let head =
            ResponseHead { status, version, length, bytes, reason: (reason.start, reason.end), fields: &self.fields };
        match kind {
            Kind::Interim => Piece::Interim(head),
            Kind::Final => Piece::Head(head),
            Kind::Switched => Piece::Switched(head),
        }
    }

    /// Says why a head, which ends where it should, was not parsed.
    #[cold]
    fn why_not(&self, bytes: &[u8]) -> Malformed {
        let mut fields = [httparse::EMPTY_HEADER; ResponseLimits::MOST_FIELDS];
        let most = self.limits.fields.min(ResponseLimits::MOST_FIELDS);
        let mut head = httparse::Response::new(&mut fields[..most]);
        match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Ok(_) => return Malformed("the head does not end at its empty line"),
            Err(httparse::Error::TooManyHeaders) => return Malformed("too many header fields"),
            Err(_) => return Malformed("the head is not valid HTTP"),
        }
        let version = if head.version == Some(0) { Version::Http10 } else { Version::Http11 };
        let mut framed = Framed::default();
        for field in head.headers.iter() {
            if let Err(refusal) = note(field, &mut framed, &mut Options::default()) {
                return Malformed(refusal.why);
            }
        }
        match framed.said(version) {
            Err(refusal) => Malformed(refusal.why),
            Ok(_) => Malformed("the head is not valid HTTP"),
        }
    }

    /// Determines what follows a head.
    fn decide(&mut self, to: To, parsed: &Parsed) -> Result<Kind, Malformed> {
        let status = parsed.status;
        let has_body = !matches!(parsed.said, None | Some(Framing::Length(0)));
        match status {
            101 if to == To::Upgrade && parsed.options.names_upgrade() => {
                self.state = State::Switched;
                return Ok(Kind::Switched);
            }
            101 => return Err(Malformed("unexpected switch to another protocol")),
            100..200 | 204 if has_body => return Err(Malformed("the status does not allow a body")),
            100..200 => {
                self.interim += 1;
                if self.interim > self.limits.interim {
                    return Err(Malformed("too many interim responses"));
                }
                return Ok(Kind::Interim);
            }
            200..300 if to == To::Connect => {
                self.state = State::Switched;
                return Ok(Kind::Switched);
            }
            200..600 => {}
            _ => return Err(Malformed("the status is out of range")),
        }
        self.state = match parsed.said {
            _ if to == To::Head || matches!(status, 204 | 304) => State::Length(0),
            Some(Framing::Chunked) => State::Chunked,
            Some(Framing::Length(length)) => State::Length(length),
            Some(Framing::None) | None => State::UntilClose,
        };
        self.keep_alive = parsed.options.stays_open(parsed.version) && self.state != State::UntilClose;
        Ok(Kind::Final)
    }
}

/// What a head begins.
#[derive(Clone, Copy)]
enum Kind {
    Interim,
    Final,
    Switched,
}

/// Parses a head at the beginning of `input`. Returns `None` if it is incomplete or invalid.
fn parse(input: &[u8], longest: usize, limits: &ResponseLimits, table: &mut Vec<Field>) -> Option<Parsed> {
    if !input.starts_with(BEGINNING) {
        return None;
    }
    let mut fields = [const { MaybeUninit::uninit() }; ResponseLimits::MOST_FIELDS];
    let most = limits.fields.min(ResponseLimits::MOST_FIELDS);
    let mut head = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let outcome = config.parse_response_with_uninit_headers(&mut head, input, &mut fields[..most]);
    let length = match outcome {
        Ok(httparse::Status::Complete(length)) if length <= longest => length,
        _ => return None,
    };
    // httparse also accepts a bare LF at the end of a line. A line ends where the next one begins.
    let ends_before = |next: usize| input.get(..next).is_some_and(|lines| lines.ends_with(b"\r\n"));
    if !ends_before(length) || !ends_before(length - 2) {
        return None;
    }
    let (status, version) = (head.code?, head.version?);
    let version = if version == 0 { Version::Http10 } else { Version::Http11 };
    let (mut framed, mut options) = (Framed::default(), Options::default());
    table.clear();
    for header in &*head.headers {
        let field = locate(input, header);
        if !ends_before(field.start()) {
            return None;
        }
        table.push(field);
        note(header, &mut framed, &mut options).ok()?;
    }
    let said = framed.said(version).ok()?;
    let reason = head.reason.filter(|reason| !reason.is_empty()).map_or(0..0, |reason| {
        let start = (reason.as_ptr() as usize - input.as_ptr() as usize) as u32;
        start..start + reason.len() as u32
    });
    Some(Parsed { status, version, said, options, reason, length })
}

/// Notes a field that concerns the framing or the connection. Few fields have the length of one of these names.
#[inline]
fn note(header: &httparse::Header<'_>, framed: &mut Framed, options: &mut Options) -> Result<(), super::Refusal> {
    let is = |name: &str| header.name.eq_ignore_ascii_case(name);
    match header.name.len() {
        7 if is("upgrade") => options.upgrade_to(),
        10 if is("connection") => options.connection(header.value),
        14 if is("content-length") => framed.content_length(header.value)?,
        17 if is("transfer-encoding") => framed.transfer_encoding(header.value)?,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_of_a_head_is_scanned_once() {
        let head = format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(1000));
        let mut lines = Lines::default();
        for end in 1..head.len() {
            assert_eq!(lines.end_of_head(&head.as_bytes()[..end], 2000), Ok(None));
            assert_eq!(lines.looked_at, end);
        }
        assert_eq!(lines.end_of_head(head.as_bytes(), 2000), Ok(Some(head.len())));
    }

    #[test]
    fn interim_responses_are_counted() {
        let mut reader = ResponseReader::default();
        let interim = b"HTTP/1.1 102 Processing\r\n\r\n";
        for _ in 0..16 {
            assert!(matches!(reader.next(To::Other, interim), Ok((27, Piece::Interim(_)))));
        }
        assert!(reader.next(To::Other, interim).is_err());
    }

    /// Reads a head and returns whether it switches protocols, and what follows it.
    fn switches(to: To, head: &str) -> Option<bool> {
        for size in [1, 1000] {
            let mut reader = ResponseReader::default();
            for piece in head.as_bytes().chunks(size) {
                match reader.next(to, piece) {
                    Ok((used, Piece::More)) => assert_eq!(used, piece.len()),
                    Ok((_, Piece::Switched(_))) if size == 1000 => return Some(true),
                    Ok((_, Piece::Head(_))) if size == 1000 => return Some(false),
                    Ok(_) => {}
                    Err(_) => return None,
                }
            }
        }
        None
    }

    #[test]
    fn protocols_are_switched_only_on_request() {
        let upgrade = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        assert_eq!(switches(To::Upgrade, upgrade), Some(true));
        assert_eq!(switches(To::Other, upgrade), None);
        assert_eq!(switches(To::Connect, upgrade), None);
        assert_eq!(switches(To::Upgrade, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\n\r\n"), None);
        assert_eq!(switches(To::Upgrade, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), Some(false));
        assert_eq!(switches(To::Connect, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), Some(true));
        assert_eq!(switches(To::Connect, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"), Some(false));
    }

    #[test]
    fn reasons_and_fields_are_found() {
        let head = b"HTTP/1.1 404 Not Found\r\nA: b\r\nContent-Length: 3\r\n\r\n";
        for split in [0, 5, 20, 30] {
            let mut reader = ResponseReader::default();
            let mut at = 0;
            if split > 0 {
                assert!(matches!(reader.next(To::Other, &head[..split]), Ok((_, Piece::More))));
                at = split;
            }
            let Ok((_, Piece::Head(found))) = reader.next(To::Other, &head[at..]) else { panic!("no head") };
            assert_eq!((found.status(), found.reason()), (404, "Not Found"));
            assert_eq!(found.fields().get("a"), Some(&b"b"[..]));
            assert_eq!(found.content_length(), Some(3));
        }
    }
}
