//! Parses responses, for clients, strictly: anything ambiguous is an error (RFC 9112, sections 2.2, 4 and 6.3).

use super::framing::Framed;
use super::options::Options;
use super::{ChunkLimits, Chunked, Decoded, Framing, Version};

/// The maximum length of a head, in bytes.
const LONGEST_HEAD: usize = 64 * 1024;

/// The maximum number of fields, more than any server needs.
const MOST_FIELDS: usize = 128;

/// The start of every head with a supported version.
const BEGINNING: &[u8] = b"HTTP/1.";

/// Why a response is malformed. Nothing after it on the connection can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A complete response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// Its status, from 200 to 599.
    pub status: u16,
    /// Another request may follow on the connection.
    pub keep_alive: bool,
    /// The length of its body.
    pub body: u64,
}

/// The kind of request that is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// A `HEAD` request.
    Head,
    /// Any other request, except `CONNECT`.
    Other,
}

/// Parses a sequence of responses, however they are split. Interim responses are skipped.
///
/// ```
/// use pelton_http::wire::responses::{Finished, Responses, To};
///
/// let mut responses = Responses::default();
/// let (used, finished) = responses.advance(To::Other, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")?;
/// assert_eq!((used, finished), (41, None));
/// let (used, finished) = responses.advance(To::Other, b"lo")?;
/// assert_eq!((used, finished), (2, Some(Finished { status: 200, keep_alive: true, body: 5 })));
/// # Ok::<(), pelton_http::wire::responses::Malformed>(())
/// ```
#[derive(Default)]
pub struct Responses {
    /// The received part of an incomplete head.
    partial: Vec<u8>,
    lines: Lines,
    body: Option<Body>,
}

struct Body {
    finished: Finished,
    kind: Kind,
}

enum Kind {
    /// This many bytes remain.
    Length(u64),
    Chunked(Box<Chunked>),
    UntilClose,
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
    fn end_of_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
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
            if self.line > LONGEST_HEAD {
                break;
            } else if is_empty {
                return Ok(Some(self.line));
            }
        }
        self.looked_at = bytes.len();
        if bytes.len() > LONGEST_HEAD { Err(Malformed("the head is too long")) } else { Ok(None) }
    }
}

impl Responses {
    /// Parses the start of `input`. Returns the number of bytes consumed, and the response if it is complete.
    pub fn advance(&mut self, to: To, input: &[u8]) -> Result<(usize, Option<Finished>), Malformed> {
        let mut at = 0;
        while self.body.is_none() {
            if at == input.len() {
                return Ok((at, None));
            }
            at += self.head(to, &input[at..])?;
        }
        let (used, finished) = self.body(&input[at..])?;
        Ok((at + used, finished))
    }

    /// Ends the input. Some responses end with the connection.
    pub fn end(&mut self) -> Option<Finished> {
        let body = self.body.take()?;
        matches!(body.kind, Kind::UntilClose).then_some(body.finished)
    }

    fn head(&mut self, to: To, input: &[u8]) -> Result<usize, Malformed> {
        let before = self.partial.len();
        if before == 0
            && let Some(end) = self.lines.end_of_head(input)?
        {
            self.lines = Lines::default();
            self.body = parse(to, &input[..end])?;
            return Ok(end);
        }
        self.partial.extend_from_slice(input);
        if before > 0
            && let Some(end) = self.lines.end_of_head(&self.partial)?
        {
            self.lines = Lines::default();
            self.body = parse(to, &self.partial[..end])?;
            self.partial.clear();
            return Ok(end - before);
        }
        Ok(input.len())
    }

    fn body(&mut self, input: &[u8]) -> Result<(usize, Option<Finished>), Malformed> {
        let Some(body) = &mut self.body else { return Ok((0, None)) };
        let mut at = 0;
        let is_complete = match &mut body.kind {
            Kind::Length(missing) => {
                at = usize::try_from(*missing).unwrap_or(usize::MAX).min(input.len());
                *missing -= at as u64;
                body.finished.body += at as u64;
                *missing == 0
            }
            Kind::Chunked(chunked) => loop {
                let decoded = chunked.decode(&input[at..], &ChunkLimits::default());
                let (used, decoded) = decoded.map_err(|refusal| Malformed(refusal.why))?;
                at += used;
                match decoded {
                    Decoded::Data(data) => body.finished.body += data.len() as u64,
                    Decoded::More => break false,
                    Decoded::End => break true,
                }
            },
            Kind::UntilClose => {
                at = input.len();
                body.finished.body += at as u64;
                false
            }
        };
        Ok((at, if is_complete { self.body.take().map(|body| body.finished) } else { None }))
    }
}

/// Parses a head and determines its body. An interim response is followed only by another head.
fn parse(to: To, bytes: &[u8]) -> Result<Option<Body>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(Malformed("the head does not end at its empty line")),
        Err(_) => return Err(Malformed("the head is not valid HTTP")),
    }
    let (Some(status), Some(version)) = (head.code, head.version) else {
        return Err(Malformed("the status line is incomplete"));
    };
    let version = if version == 0 { Version::Http10 } else { Version::Http11 };
    let (mut framed, mut options) = (Framed::default(), Options::default());
    for field in head.headers.iter() {
        let outcome = match field.name {
            name if name.eq_ignore_ascii_case("content-length") => framed.content_length(field.value),
            name if name.eq_ignore_ascii_case("transfer-encoding") => framed.transfer_encoding(field.value),
            name if name.eq_ignore_ascii_case("connection") => {
                options.connection(field.value);
                Ok(())
            }
            _ => Ok(()),
        };
        outcome.map_err(|refusal| Malformed(refusal.why))?;
    }
    let said = framed.said(version).map_err(|refusal| Malformed(refusal.why))?;
    let is_interim = match status {
        101 => return Err(Malformed("unexpected switch to another protocol")),
        100..200 => true,
        200..600 => false,
        _ => return Err(Malformed("the status is out of range")),
    };
    if (is_interim || status == 204) && !matches!(said, None | Some(Framing::Length(0))) {
        return Err(Malformed("the status does not allow a body"));
    }
    if is_interim {
        return Ok(None);
    }
    let kind = match said {
        _ if to == To::Head || matches!(status, 204 | 304) => Kind::Length(0),
        Some(Framing::Chunked) => Kind::Chunked(Box::default()),
        Some(Framing::Length(length)) => Kind::Length(length),
        Some(Framing::None) | None => Kind::UntilClose,
    };
    let keep_alive = options.stays_open(version) && !matches!(kind, Kind::UntilClose);
    Ok(Some(Body { finished: Finished { status, keep_alive, body: 0 }, kind }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `bytes` in pieces of this size, then ends the input.
    fn read(to: To, bytes: &[u8], size: usize) -> Result<Vec<Finished>, Malformed> {
        let mut responses = Responses::default();
        let mut all = Vec::new();
        for mut piece in bytes.chunks(size) {
            while !piece.is_empty() {
                let (used, finished) = responses.advance(to, piece)?;
                piece = &piece[used..];
                all.extend(finished);
            }
        }
        all.extend(responses.end());
        Ok(all)
    }

    const OK: Finished = Finished { status: 200, keep_alive: true, body: 0 };

    #[test]
    fn responses_are_parsed_however_they_are_split() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
            HTTP/1.1 100 Continue\r\n\r\n\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\n\
            HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n\
            HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n\
            HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n\
            HTTP/1.1 200 OK\r\n\r\nuntil the end";
        let expected = [
            Finished { body: 5, ..OK },
            Finished { body: 3, ..OK },
            Finished { status: 204, ..OK },
            Finished { status: 304, ..OK },
            OK,
            Finished { status: 404, keep_alive: false, body: 0 },
            Finished { keep_alive: false, body: 13, ..OK },
        ];
        for size in 1..=bytes.len() {
            assert_eq!(read(To::Other, bytes, size).unwrap(), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn answers_to_head_have_no_body() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(read(To::Head, bytes, 7).unwrap(), [OK, OK]);
    }

    #[test]
    fn ambiguous_responses_are_refused() {
        let with = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        let heads = [
            // Other line endings, and folded lines.
            "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: 0\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\n".to_owned(),
            "HTTP/1.1 200 OK\n\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\rContent-Length: 0\r\n\r\n".to_owned(),
            with("A: b\r\n c\r\nContent-Length: 0\r\n"),
            with("A: b\rC: d\r\nContent-Length: 0\r\n"),
            with("Content-Length : 0\r\n"),
            with(" Content-Length: 0\r\n"),
            with("A: \0\r\nContent-Length: 0\r\n"),
            with("A\r\nContent-Length: 0\r\n"),
            // Ambiguous length.
            with("Content-Length: 5\r\nContent-Length: 6\r\n"),
            with("Content-Length: 0\r\nContent-Length: 0\r\n"),
            with("Content-Length: 0, 0\r\n"),
            with("Content-Length: +5\r\n"),
            with("Content-Length: \r\n"),
            with("Content-Length: 18446744073709551616\r\n"),
            with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
            with("Transfer-Encoding: gzip, chunked\r\n"),
            with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            with("Transfer-Encoding: identity\r\n"),
            with("Transfer-Encoding: chunked\r\n\r\nx"),
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n".to_owned(),
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n".to_owned(),
            "HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            // Invalid status line.
            "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            " HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 0200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 2000\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned(),
            "HTTP/1.1 099 What\r\n\r\n".to_owned(),
            "HTTP/1.1 600 What\r\n\r\n".to_owned(),
            "SSH-2.0-OpenSSH".to_owned(),
        ];
        for head in heads {
            for size in [1, 7, 1000] {
                for to in [To::Other, To::Head] {
                    // In an answer to HEAD, the body is not examined.
                    if to == To::Other || !head.ends_with('x') {
                        assert!(read(to, head.as_bytes(), size).is_err(), "{head:?} in pieces of {size}, {to:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn unambiguous_responses_are_accepted() {
        for (head, finished) in [
            ("HTTP/1.1 200 \r\ncontent-LENGTH:0\r\n\r\n", OK),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Finished { status: 204, ..OK }),
            ("HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", OK),
            ("HTTP/1.1 200 ä\r\nA: ä\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", OK),
            // If both are given, close wins.
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close, keep-alive\r\n\r\n",
                Finished { keep_alive: false, ..OK },
            ),
        ] {
            for size in [1, 7, 1000] {
                assert_eq!(read(To::Other, head.as_bytes(), size).unwrap(), [finished], "{head:?}");
            }
        }
    }

    #[test]
    fn head_length_is_limited_and_each_byte_is_scanned_once() {
        let head = |length: usize| {
            let filler = "x".repeat(length - "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: \r\n\r\n".len());
            format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: {filler}\r\n\r\n")
        };
        for size in [1, 4096, 100_000] {
            assert_eq!(read(To::Other, head(LONGEST_HEAD).as_bytes(), size).unwrap(), [OK]);
            assert!(read(To::Other, head(LONGEST_HEAD + 1).as_bytes(), size).is_err());
        }
        // Too many fields.
        let fields = "A: b\r\n".repeat(MOST_FIELDS + 1);
        assert!(read(To::Other, format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes(), 4096).is_err());
        let mut lines = Lines::default();
        let head = head(1000);
        for end in 1..head.len() {
            assert_eq!(lines.end_of_head(&head.as_bytes()[..end]), Ok(None));
            assert_eq!(lines.looked_at, end);
        }
        assert_eq!(lines.end_of_head(head.as_bytes()), Ok(Some(1000)));
    }
}
