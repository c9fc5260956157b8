//! Finds the end of a request head.
//!
//! The bytes may arrive in any number of pieces, and each is scanned once. The head is parsed only when it is complete. The
//! result depends on the bytes alone, not on how they were split.

use memchr::{memchr, memchr_iter};

use super::Refusal;
use super::token::is_token;

/// Limits on the size of a request head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadLimits {
    /// Bytes of the request line without its line break, at most [`HeadLimits::MOST_BYTES`]. More are refused with 414.
    pub request_line: usize,
    /// Bytes of all fields together with their line breaks, at most [`HeadLimits::MOST_BYTES`]. More are refused with 431.
    pub header_bytes: usize,
    /// Number of fields, at most [`HeadLimits::MOST_HEADERS`]. More are refused with 431.
    pub headers: usize,
}

impl HeadLimits {
    /// The upper bound for `headers`: httparse stores the fields on the stack.
    pub const MOST_HEADERS: usize = 256;

    /// The upper bound for `request_line` and `header_bytes`, 1 MiB: every connection may hold an incomplete head in memory.
    pub const MOST_BYTES: usize = 1 << 20;

    /// Returns the limits, clamped to their upper bounds.
    fn request_line(&self) -> usize {
        self.request_line.min(HeadLimits::MOST_BYTES)
    }

    pub(super) fn header_bytes(&self) -> usize {
        self.header_bytes.min(HeadLimits::MOST_BYTES)
    }
}

impl Default for HeadLimits {
    fn default() -> HeadLimits {
        HeadLimits { request_line: 8 * 1024, header_bytes: 16 * 1024, headers: 100 }
    }
}

/// How much of a head has been scanned.
#[derive(Clone, Copy, Default, Debug)]
pub struct Scan {
    /// Where the request line begins. One empty line may precede it.
    start: usize,
    /// Everything before this has been scanned.
    at: usize,
    /// Where the current line begins.
    line: usize,
    /// Where the request line ends, once known.
    fields: Option<usize>,
    /// The number of fields so far.
    count: usize,
}

impl Scan {
    /// Whether anything has been scanned.
    pub fn has_begun(&self) -> bool {
        self.at > 0
    }

    /// Scans the new part of `input`, which begins at the start of the head. Returns the range of the head if it is complete.
    pub fn advance(&mut self, input: &[u8], limits: &HeadLimits) -> Result<Option<std::ops::Range<usize>>, Refusal> {
        if self.at == 0 && !self.begin(input)? {
            return Ok(None);
        }
        let fields = match self.fields {
            Some(fields) => fields,
            None => match self.request_line(input, limits)? {
                Some(fields) => fields,
                None => return Ok(None),
            },
        };
        let most = fields + limits.header_bytes();
        let end = input.len().min(most);
        for found in memchr_iter(b'\n', &input[self.at..end]) {
            let lf = self.at + found;
            if input[lf - 1] != b'\r' {
                return Err(Refusal::bad("a line ends in LF without CR"));
            }
            if lf == self.line + 1 {
                return Ok(Some(self.start..lf + 1));
            }
            self.count += 1;
            if self.count > limits.headers.min(HeadLimits::MOST_HEADERS) {
                return Err(Refusal::new(431, "too many header fields"));
            }
            self.line = lf + 1;
        }
        self.at = end;
        if input.len() >= most { Err(Refusal::new(431, "the header fields are too long")) } else { Ok(None) }
    }

    /// Finds the first byte of the request line. Skips one empty line before it, as RFC 9112 recommends. Returns whether it has
    /// arrived.
    fn begin(&mut self, input: &[u8]) -> Result<bool, Refusal> {
        let start = match input {
            [] | [b'\r'] => return Ok(false),
            [b'\r', b'\n', ..] => 2,
            _ => 0,
        };
        match input.get(start) {
            None => Ok(false),
            Some(first) if is_token(*first) => {
                (self.start, self.at, self.line) = (start, start, start);
                // Skip this check from now on: the first byte is not a line break.
                self.at += 1;
                Ok(true)
            }
            // Not HTTP, such as TLS: refuse it now instead of waiting for the timeout.
            Some(_) => Err(Refusal::bad("the request does not begin with a method")),
        }
    }

    fn request_line(&mut self, input: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Refusal> {
        let most = self.start + limits.request_line() + 2;
        let end = input.len().min(most);
        match memchr(b'\n', &input[self.at..end]) {
            Some(found) => {
                let lf = self.at + found;
                if input[lf - 1] != b'\r' {
                    return Err(Refusal::bad("the request line ends in LF without CR"));
                }
                (self.at, self.line, self.fields) = (lf + 1, lf + 1, Some(lf + 1));
                Ok(self.fields)
            }
            None if input.len() >= most => Err(Refusal::new(414, "the request line is too long")),
            None => {
                self.at = end;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { request_line: 14, header_bytes: 12, headers: 2 };

    /// Scans the input both at once and byte by byte, and checks that the results are the same.
    fn scan(input: &[u8]) -> Result<Option<std::ops::Range<usize>>, u16> {
        let whole = Scan::default().advance(input, &LIMITS).map_err(|refusal| refusal.status);
        let mut scan = Scan::default();
        let bytewise = (0..=input.len()).map(|end| scan.advance(&input[..end], &LIMITS));
        let first = bytewise.map(|found| found.map_err(|refusal| refusal.status)).find(|found| *found != Ok(None));
        assert_eq!(first.unwrap_or(Ok(None)), whole, "{:?}", String::from_utf8_lossy(input));
        whole
    }

    #[test]
    fn heads_end_at_the_first_empty_line() {
        assert_eq!(scan(b"GET / HTTP/1.1\r\nA: 1\r\n\r\nmore\r\n\r\n"), Ok(Some(0..24)));
        assert_eq!(scan(b"GET / HTTP/1.1\r\n\r\n"), Ok(Some(0..18)));
        assert_eq!(scan(b"GET / HTTP/1.1\r\nA: 1\r\n\r"), Ok(None));
        assert_eq!(scan(b""), Ok(None));
    }

    #[test]
    fn one_leading_empty_line_is_skipped() {
        assert_eq!(scan(b"\r\nGET / HTTP/1.1\r\n\r\n"), Ok(Some(2..20)));
        assert_eq!(scan(b"\r\n"), Ok(None));
        for input in [&b"\r\n\r\nGET"[..], b"\nGET", b"\rGET", b" GET", b"\x16\x03\x01"] {
            assert_eq!(scan(input), Err(400));
        }
    }

    #[test]
    fn lines_must_end_in_crlf() {
        for input in [&b"GET / HTTP/1.1\n"[..], b"GET / HTTP/1.1\r\nA\n", b"GET / HTTP/1.1\r\n\n", b"G\n"] {
            assert_eq!(scan(input), Err(400));
        }
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(scan(b"GET /1 HTTP/1.1\r\n"), Err(414), "one byte too long");
        assert_eq!(scan(b"GET /123456789012"), Err(414), "before the line is complete");
        assert_eq!(scan(b"GET / HTTP/1.1\r\nA: 12345\r\n\r\n"), Ok(Some(0..28)), "exactly at the limit");
        assert_eq!(scan(b"GET / HTTP/1.1\r\nA: 123456\r\n\r\n"), Err(431), "one byte too long");
        assert_eq!(scan(b"GET / HTTP/1.1\r\nA:\r\nB:\r\nC:\r\n\r\n"), Err(431), "one field too many");
    }

    #[test]
    fn excessive_limits_are_clamped() {
        const BOUNDLESS: HeadLimits =
            HeadLimits { request_line: usize::MAX, header_bytes: usize::MAX, headers: usize::MAX };
        let status = |input: &[u8]| Scan::default().advance(input, &BOUNDLESS).map_err(|refusal| refusal.status);
        let mut scan = Scan::default();
        for end in 0..18 {
            assert_eq!(scan.advance(&b"GET / HTTP/1.1\r\nA"[..end.min(17)], &BOUNDLESS).unwrap(), None);
        }
        let line = [b"GET /", &vec![b'a'; HeadLimits::MOST_BYTES][..]].concat();
        assert_eq!(status(&line), Err(414));
        let field = [b"GET / HTTP/1.1\r\nA: ", &vec![b'a'; HeadLimits::MOST_BYTES][..]].concat();
        assert_eq!(status(&field), Err(431));
    }
}
