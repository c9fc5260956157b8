//! What is in a request's head.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::framing::Framed;
use super::options::Options;
use super::{Field, Fields, Form, Framing, HeadLimits, Refusal, fields, host, target};
use crate::Method;

/// The version of a request. Others than these are refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// What a head says. It is places in bytes, and does not hold these.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method, if it is one of the registered ones.
    pub method: Method,
    /// The version.
    pub version: Version,
    /// The form of the target.
    pub form: Form,
    /// How long the body is.
    pub framing: Framing,
    /// Whether the connection may stay open after it.
    pub keep_alive: bool,
    /// Whether the client waits to be asked for the body.
    pub expects_continue: bool,
    /// Whether the client would like to speak another protocol.
    pub wants_upgrade: bool,
    pub(crate) method_name: Range<u32>,
    pub(crate) target: Range<u32>,
    pub(crate) path: Range<u32>,
    pub(crate) query: Option<Range<u32>>,
    pub(crate) host: Option<Range<u32>>,
}

impl Head {
    /// Parses a head that a [`Scan`](super::Scan) has found, all of it and nothing else. Where the fields are goes to `table`,
    /// whose memory is used again and again.
    pub fn parse(bytes: &[u8], table: &mut Vec<Field>, limits: &HeadLimits) -> Result<Head, Refusal> {
        match Head::parse_start(bytes, table, limits)? {
            Some((head, length)) if length == bytes.len() => Ok(head),
            // It ends where an empty line is, and nowhere else: httparse and the scan agree on that, or it is refused.
            _ => Err(Refusal::bad("the head does not end at its empty line")),
        }
    }

    /// Parses a head at the beginning of `input`, and says how long it is, if all of it is there and nothing is wrong or even unusual
    /// with it: then there is no need to look for its end first. What is wrong, if something is, a scan has to find out.
    pub fn parse_whole(input: &[u8], table: &mut Vec<Field>, limits: &HeadLimits) -> Option<(Head, usize)> {
        let (head, length) = Head::parse_start(input, table, limits).ok()??;
        let fields = head.target.end as usize + " HTTP/1.1\r\n".len();
        if fields - 2 > limits.request_line || length - fields > limits.header_bytes {
            return None;
        }
        // A line ends where the next one begins, so there is no need to look at what is in between.
        let ends_before = |next: usize| input.get(next - 2..next) == Some(b"\r\n");
        for field in &*table {
            if !ends_before(field.name.0 as usize) {
                return None;
            }
        }
        if ends_before(length - 2) && ends_before(length) { Some((head, length)) } else { None }
    }

    #[inline(always)]
    fn parse_start(
        bytes: &[u8],
        table: &mut Vec<Field>,
        limits: &HeadLimits,
    ) -> Result<Option<(Head, usize)>, Refusal> {
        let mut headers = [const { MaybeUninit::uninit() }; HeadLimits::MOST_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let most = limits.headers.min(HeadLimits::MOST_HEADERS);
        let length = match request.parse_with_uninit_headers(bytes, &mut headers[..most]) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(refusal(error, bytes)),
        };
        let (Some(method_name), Some(target), Some(version)) = (request.method, request.path, request.version) else {
            return Err(Refusal::bad("the request line is not complete"));
        };
        if method_name.as_ptr() != bytes.as_ptr() {
            return Err(Refusal::bad("there is something before the request line"));
        }
        let version = if version == 0 { Version::Http10 } else { Version::Http11 };
        let method = Method::of(method_name.as_bytes());
        let said = Said::by(request.headers, version, bytes, table)?;
        let parts = target::split(target.as_bytes(), method)?;
        if version == Version::Http11 && said.host.is_none() {
            return Err(Refusal::bad("there is no Host"));
        }
        let start = target.as_ptr() as usize - bytes.as_ptr() as usize;
        let place = |range: Range<usize>| (start + range.start) as u32..(start + range.end) as u32;
        let head = Head {
            method,
            version,
            form: parts.form,
            framing: said.framed.framing(version)?,
            keep_alive: said.options.stays_open(version),
            expects_continue: said.options.expects_continue(),
            wants_upgrade: said.options.wants_upgrade(version),
            method_name: 0..method_name.len() as u32,
            target: place(0..target.len()),
            path: place(parts.path),
            query: parts.query.map(place),
            host: parts.authority.map(place).or(said.host),
        };
        Ok(Some((head, length)))
    }

    /// The fields, from the bytes and the table that this was parsed with.
    pub fn fields<'a>(&self, bytes: &'a [u8], table: &'a [Field]) -> Fields<'a> {
        Fields::new(bytes, table)
    }
}

/// What the fields say that concern the server.
#[derive(Default)]
struct Said {
    host: Option<Range<u32>>,
    framed: Framed,
    options: Options,
}

impl Said {
    /// Goes through the fields, and notes where they are.
    #[inline]
    fn by(
        headers: &[httparse::Header<'_>],
        version: Version,
        bytes: &[u8],
        table: &mut Vec<Field>,
    ) -> Result<Said, Refusal> {
        let mut said = Said::default();
        table.clear();
        table.extend(headers.iter().map(|header| fields::place(bytes, header)));
        for header in headers {
            let (name, value) = (header.name.as_bytes(), header.value);
            // Few names have the length and the first letter of one of these, so most fields cost one comparison.
            match (name.len(), name.first().map_or(0, u8::to_ascii_lowercase)) {
                (4, b'h') if name.eq_ignore_ascii_case(b"host") => said.host(value, bytes)?,
                (6, b'e') if name.eq_ignore_ascii_case(b"expect") => said.options.expect(value, version)?,
                (7, b'u') if name.eq_ignore_ascii_case(b"upgrade") => said.options.upgrade_to(),
                (10, b'c') if name.eq_ignore_ascii_case(b"connection") => said.options.connection(value),
                (14, b'c') if name.eq_ignore_ascii_case(b"content-length") => said.framed.content_length(value)?,
                (17, b't') if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                    said.framed.transfer_encoding(value)?
                }
                _ => {}
            }
        }
        Ok(said)
    }

    #[inline]
    fn host(&mut self, value: &[u8], bytes: &[u8]) -> Result<(), Refusal> {
        if self.host.is_some() {
            return Err(Refusal::bad("there are two Hosts"));
        }
        if !host::is_authority(value) {
            return Err(Refusal::bad("the Host is not valid"));
        }
        let start = (value.as_ptr() as usize - bytes.as_ptr() as usize) as u32;
        self.host = Some(start..start + value.len() as u32);
        Ok(())
    }
}

/// What to answer to a head that httparse does not take.
#[cold]
fn refusal(error: httparse::Error, bytes: &[u8]) -> Refusal {
    match error {
        httparse::Error::HeaderName => Refusal::bad("the name of a header field is not valid"),
        httparse::Error::HeaderValue => Refusal::bad("the value of a header field is not valid"),
        httparse::Error::TooManyHeaders => Refusal::new(431, "too many header fields"),
        httparse::Error::Version if is_other_version(bytes) => Refusal::new(505, "neither HTTP/1.0 nor HTTP/1.1"),
        _ => Refusal::bad("the request line is not valid"),
    }
}

/// Whether the request line ends in the name of a version that is not spoken here.
fn is_other_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    matches!((words.next(), words.next()), (Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<Head, u16> {
        Head::parse(head.as_bytes(), &mut Vec::new(), &HeadLimits::default()).map_err(|refusal| refusal.status)
    }

    fn with(fields: &str) -> Result<Head, u16> {
        parse(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    }

    #[test]
    fn a_head_is_taken_apart() {
        let text = "GET /a?b HTTP/1.1\r\nHost: example.org \r\nX-One:  1\t\r\nx-one: 2\r\nEmpty:\r\n\r\n";
        let mut table = Vec::new();
        let head = Head::parse(text.as_bytes(), &mut table, &HeadLimits::default()).unwrap();
        let part = |range: &Range<u32>| &text[range.start as usize..range.end as usize];
        assert_eq!((head.method, part(&head.method_name)), (Method::Get, "GET"));
        assert_eq!((part(&head.target), part(&head.path)), ("/a?b", "/a"));
        assert_eq!((head.query.as_ref().map(part), head.host.as_ref().map(part)), (Some("b"), Some("example.org")));
        let fields = head.fields(text.as_bytes(), &table);
        assert_eq!(fields.len(), 4);
        assert_eq!(fields.all("X-ONE").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!((fields.text("empty"), fields.text("absent")), (Some(""), None));
    }

    #[test]
    fn a_head_that_is_there_as_usual_needs_no_scan() {
        let limits = HeadLimits { request_line: 16, header_bytes: 12, headers: 1 };
        let whole = |head: &str| Head::parse_whole(head.as_bytes(), &mut Vec::new(), &limits).map(|(_, length)| length);
        assert_eq!(whole("GET /12 HTTP/1.1\r\nHost: ab\r\n\r\nGET"), Some(30));
        assert_eq!(whole("GET / HTTP/1.0\r\n\r\n"), Some(18));
        for other in [
            "GET /12 HTTP/1.1\r\nHost: ab\r\n\r",
            "GET /123 HTTP/1.1\r\nHost: ab\r\n\r\n",
            "GET /12 HTTP/1.1\r\nHost: abc\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nB:\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET / HTTP/1.0\r\n\n",
            "GET / HTTP/1.0\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\n",
        ] {
            assert_eq!(whole(other), None, "{other:?}");
        }
    }

    #[test]
    fn framing_is_never_ambiguous() {
        assert_eq!(with("").unwrap().framing, Framing::None);
        assert_eq!(with("Content-Length: 5\r\n").unwrap().framing, Framing::Length(5));
        assert_eq!(with("TRANSFER-encoding: Chunked\r\n").unwrap().framing, Framing::Chunked);
        for fields in [
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding:\r\n",
            "Transfer-Encoding: \"chunked\"\r\n",
            "Transfer-Encoding: chunked;q=1\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: -5\r\n",
            "Content-Length:\r\n",
            "Content-Length : 5\r\n",
            "Content-Length: 5\r\n 6\r\n",
            "Transfer-Encoding:\x0bchunked\r\n",
        ] {
            assert_eq!(with(fields).map(|head| head.framing), Err(400), "{fields:?}");
        }
        assert_eq!(parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").map(drop), Err(400));
    }

    #[test]
    fn a_host_is_there_once_and_valid_except_in_http_1_0() {
        assert!(parse("GET / HTTP/1.0\r\n\r\n").is_ok());
        assert_eq!(parse("GET / HTTP/1.1\r\n\r\n").map(drop), Err(400));
        assert_eq!(with("Host: a\r\n").map(drop), Err(400));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a b\r\n\r\n").map(drop), Err(400));
    }

    #[test]
    fn connections_stay_open_by_the_rules_of_their_version() {
        let stays = |version: &str, value: &str| {
            parse(&format!("GET / HTTP/1.{version}\r\nHost: a\r\n{value}\r\n")).unwrap().keep_alive
        };
        assert!(stays("1", "") && stays("1", "Connection: foo\r\n") && stays("0", "Connection: Keep-Alive\r\n"));
        assert!(
            !stays("0", "")
                && !stays("1", "Connection: a, CLOSE\r\n")
                && !stays("1", "Connection: a\r\nConnection: close\r\n")
        );
        assert!(!stays("0", "Connection: keep-alive, close\r\n"));
    }

    #[test]
    fn expectations_are_met_or_refused() {
        assert!(with("Expect: 100-Continue\r\n").unwrap().expects_continue);
        assert_eq!(with("Expect: tea\r\n").map(drop), Err(417));
        assert!(!parse("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").unwrap().expects_continue);
    }

    #[test]
    fn request_lines_are_three_words_with_one_space_between() {
        for (line, status) in [
            ("GET / HTTP/2.0", 505),
            ("GET / HTTP/1.2", 505),
            ("GET / HTTP/1.10", 400),
            ("GET / http/1.1", 400),
            ("GET /", 400),
            ("GET", 400),
            ("GET  / HTTP/1.1", 400),
            ("GET /  HTTP/1.1", 400),
            ("GET /  HTTP/2.0", 400),
            ("GET / HTTP/1.1 ", 400),
            ("GET /\tHTTP/1.1", 400),
            ("GET\t/ HTTP/1.1", 400),
            ("GET /a b HTTP/1.1", 400),
            ("G\x01T / HTTP/1.1", 400),
            ("GET /\0 HTTP/1.1", 400),
            ("GET /\x7f HTTP/1.1", 400),
            ("G(T / HTTP/1.1", 400),
        ] {
            assert_eq!(parse(&format!("{line}\r\nHost: a\r\n\r\n")).map(drop), Err(status), "{line:?}");
        }
    }

    #[test]
    fn fields_are_names_and_values_on_one_line() {
        for fields in [
            "a : b\r\n",
            ": b\r\n",
            " a: b\r\n",
            "a: b\r\n c\r\n",
            "a\r\n",
            "a: \0\r\n",
            "a: b\rc: d\r\n",
            "a: b\x7f\r\n",
            "ä: b\r\n",
        ] {
            assert_eq!(with(fields).map(drop), Err(400), "{fields:?}");
        }
        // Not ASCII, but allowed as opaque.
        assert!(with("a: ä\r\n").is_ok());
    }
}
