//! Parses request heads.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::framing::Framed;
use super::options::Options;
use super::{Field, Fields, Form, Framing, HeadLimits, Refusal, fields, host, target};
use crate::Method;

/// The version of a request. All others are refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// A parsed head. It holds ranges into the bytes, not the bytes.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method, if it is one of the registered ones.
    pub method: Method,
    /// The version.
    pub version: Version,
    /// The form of the target.
    pub form: Form,
    /// The framing of the body.
    pub framing: Framing,
    /// Whether the connection may stay open afterwards.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue`.
    pub expects_continue: bool,
    /// Whether the client asks for another protocol.
    pub wants_upgrade: bool,
    pub(crate) method_name: Range<u32>,
    pub(crate) target: Range<u32>,
    pub(crate) host: Option<Range<u32>>,
    /// The ranges of the path and the query in the target.
    pub(crate) path: Range<u32>,
    pub(crate) query: Option<Range<u32>>,
}

/// A head parsed in place.
#[derive(Clone, Debug)]
pub struct Parsed<'a> {
    /// The parsed head.
    pub head: Head,
    /// The target as sent, validated as text.
    pub target: &'a str,
    /// The length of the head in bytes.
    pub length: usize,
}

/// Scratch memory for parsing, reused for every head.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// The ranges of the fields of the latest head.
    pub fields: Vec<Field>,
    /// The latest valid host. Nearly all clients send the same one in all requests, so it need not be validated again.
    host: Vec<u8>,
}

impl Head {
    /// Parses exactly one head, which a [`Scan`](super::Scan) has found.
    pub fn parse<'a>(bytes: &'a [u8], notes: &mut Notes, limits: &HeadLimits) -> Result<Parsed<'a>, Refusal> {
        match Head::parse_whole(bytes, notes, limits)? {
            Some(parsed) if parsed.length == bytes.len() => Ok(parsed),
            // Refuse a head if httparse finds its end elsewhere than the scan.
            _ => Err(Refusal::bad("the head does not end at its empty line")),
        }
    }

    /// Parses a complete, ordinary head at the start of `input` without first searching for its end. If this fails for any
    /// reason, a scan decides what to answer.
    pub fn parse_whole<'a>(
        input: &'a [u8],
        notes: &mut Notes,
        limits: &HeadLimits,
    ) -> Result<Option<Parsed<'a>>, Refusal> {
        let mut headers = [const { MaybeUninit::uninit() }; HeadLimits::MOST_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        let most = limits.headers.min(HeadLimits::MOST_HEADERS);
        let length = match request.parse_with_uninit_headers(input, &mut headers[..most]) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(refusal(error, input)),
        };
        let (Some(method_name), Some(target), Some(version)) = (request.method, request.path, request.version) else {
            return Err(Refusal::bad("the request line is incomplete"));
        };
        if method_name.as_ptr() != input.as_ptr() {
            return Err(Refusal::bad("unexpected bytes before the request line"));
        }
        let start = target.as_ptr() as usize - input.as_ptr() as usize;
        let fields = start + target.len() + " HTTP/1.1\r\n".len();
        if fields - 2 > limits.request_line || length - fields > limits.header_bytes {
            return Ok(None);
        }
        // httparse also accepts a bare LF at the end of a line. A line ends where the next one begins, so the text in between
        // need not be searched.
        let ends_before = |next: usize| input.get(..next).is_some_and(|lines| lines.ends_with(b"\r\n"));
        if !ends_before(length) || !ends_before(length - 2) {
            return Ok(None);
        }
        let version = if version == 0 { Version::Http10 } else { Version::Http11 };
        let mut said = Said::default();
        notes.fields.clear();
        for header in &*request.headers {
            let field = fields::locate(input, header);
            if !ends_before(field.name.0 as usize) {
                return Ok(None);
            }
            notes.fields.push(field);
            said.note(header, field, version, &mut notes.host)?;
        }
        let method = Method::of(method_name.as_bytes());
        let parts = target::split(target.as_bytes(), method)?;
        if version == Version::Http11 && said.host.is_none() {
            return Err(Refusal::bad("the Host is missing"));
        }
        let in_head = |range: Range<usize>| (start + range.start) as u32..(start + range.end) as u32;
        let head = Head {
            method,
            version,
            form: parts.form,
            framing: said.framed.framing(version)?,
            keep_alive: said.options.stays_open(version),
            expects_continue: said.options.expects_continue(),
            wants_upgrade: said.options.wants_upgrade(version),
            method_name: 0..method_name.len() as u32,
            target: in_head(0..target.len()),
            path: parts.path.start as u32..parts.path.end as u32,
            query: parts.query.map(|range| range.start as u32..range.end as u32),
            host: parts.authority.map(in_head).or(said.host),
        };
        Ok(Some(Parsed { head, target, length }))
    }
}

impl Notes {
    /// The fields of the latest head, which was parsed from `bytes`.
    pub fn fields<'a>(&'a self, bytes: &'a [u8]) -> Fields<'a> {
        Fields::new(bytes, &self.fields)
    }
}

/// The fields that concern the server.
#[derive(Default)]
struct Said {
    host: Option<Range<u32>>,
    framed: Framed,
    options: Options,
}

impl Said {
    /// Checks a field. Always inlined: there is one caller, and the call would be a fifth of the cost.
    #[inline(always)]
    fn note(
        &mut self,
        header: &httparse::Header<'_>,
        field: Field,
        version: Version,
        valid_host: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let (name, value) = (header.name.as_bytes(), header.value);
        // Few names have the length and the first letter of one of these, so most fields cost one comparison.
        match (name.len(), name.first().map_or(0, u8::to_ascii_lowercase)) {
            (4, b'h') if name.eq_ignore_ascii_case(b"host") => {
                if self.host.is_some() {
                    return Err(Refusal::bad("duplicate Host"));
                }
                if value != valid_host {
                    check_host(value, valid_host)?;
                }
                self.host = Some(field.value.0..field.value.1);
            }
            (6, b'e') if name.eq_ignore_ascii_case(b"expect") => self.options.expect(value, version)?,
            (7, b'u') if name.eq_ignore_ascii_case(b"upgrade") => self.options.upgrade_to(),
            (10, b'c') if name.eq_ignore_ascii_case(b"connection") => self.options.connection(value),
            (14, b'c') if name.eq_ignore_ascii_case(b"content-length") => self.framed.content_length(value)?,
            (17, b't') if name.eq_ignore_ascii_case(b"transfer-encoding") => self.framed.transfer_encoding(value)?,
            _ => {}
        }
        Ok(())
    }
}

/// Refuses an invalid host, and remembers a valid one.
#[inline(never)]
fn check_host(host: &[u8], valid: &mut Vec<u8>) -> Result<(), Refusal> {
    if !host::is_authority(host) {
        return Err(Refusal::bad("invalid Host"));
    }
    valid.clear();
    valid.extend_from_slice(host);
    Ok(())
}

/// Returns the refusal for a head that httparse rejects.
#[cold]
fn refusal(error: httparse::Error, bytes: &[u8]) -> Refusal {
    match error {
        httparse::Error::HeaderName => Refusal::bad("invalid header name"),
        httparse::Error::HeaderValue => Refusal::bad("invalid header value"),
        httparse::Error::TooManyHeaders => Refusal::new(431, "too many header fields"),
        httparse::Error::Version if is_other_version(bytes) => Refusal::new(505, "neither HTTP/1.0 nor HTTP/1.1"),
        _ => Refusal::bad("invalid request line"),
    }
}

/// Whether the request line ends in an unsupported version.
fn is_other_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    matches!((words.next(), words.next()), (Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<Head, u16> {
        let parsed = Head::parse(head.as_bytes(), &mut Notes::default(), &HeadLimits::default());
        parsed.map(|parsed| parsed.head).map_err(|refusal| refusal.status)
    }

    fn with(fields: &str) -> Result<Head, u16> {
        parse(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    }

    #[test]
    fn heads_are_parsed() {
        let text = "GET /a?b HTTP/1.1\r\nHost: example.org \r\nX-One:  1\t\r\nx-one: 2\r\nEmpty:\r\n\r\n";
        let mut notes = Notes::default();
        let Parsed { head, target, length } = Head::parse(text.as_bytes(), &mut notes, &HeadLimits::default()).unwrap();
        let part = |range: &Range<u32>| &text[range.start as usize..range.end as usize];
        let of_target = |range: &Range<u32>| &target[range.start as usize..range.end as usize];
        assert_eq!((head.method, part(&head.method_name), length), (Method::Get, "GET", text.len()));
        assert_eq!((target, part(&head.target), of_target(&head.path)), ("/a?b", "/a?b", "/a"));
        assert_eq!(head.query.as_ref().map(of_target), Some("b"));
        assert_eq!(head.host.as_ref().map(part), Some("example.org"));
        let fields = notes.fields(text.as_bytes());
        assert_eq!(fields.len(), 4);
        assert_eq!(fields.all("X-ONE").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!((fields.text("empty"), fields.text("absent")), (Some(""), None));
    }

    #[test]
    fn complete_ordinary_heads_need_no_scan() {
        let limits = HeadLimits { request_line: 16, header_bytes: 12, headers: 1 };
        let whole = |head: &str| {
            let parsed = Head::parse_whole(head.as_bytes(), &mut Notes::default(), &limits);
            parsed.ok().flatten().map(|parsed| parsed.length)
        };
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
    fn one_valid_host_is_required_except_in_http_1_0() {
        assert!(parse("GET / HTTP/1.0\r\n\r\n").is_ok());
        assert_eq!(parse("GET / HTTP/1.1\r\n\r\n").map(drop), Err(400));
        assert_eq!(with("Host: a\r\n").map(drop), Err(400));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a b\r\n\r\n").map(drop), Err(400));
    }

    #[test]
    fn every_host_is_validated_unless_it_is_the_latest_valid_one() {
        let mut notes = Notes::default();
        let mut host_of = |host: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let head = Head::parse(text.as_bytes(), &mut notes, &HeadLimits::default()).ok()?.head;
            head.host.map(|range| text[range.start as usize..range.end as usize].to_owned())
        };
        for host in ["", "a", "a", "a b", "a b", "a:1", "b", "a:x", "b:", "a,b", "b"] {
            let valid = !host.contains([' ', 'x', ',']);
            assert_eq!(host_of(host).as_deref(), valid.then_some(host), "{host:?}");
        }
    }

    #[test]
    fn persistence_depends_on_the_version() {
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
        // Not ASCII, but allowed as opaque data.
        assert!(with("a: ä\r\n").is_ok());
    }
}
