//! Counts responses, for load generators. What is accepted is decided by [`ResponseReader`].

pub use super::response::{Malformed, To};
use super::response::{Piece, ResponseReader};

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
    reader: ResponseReader,
    /// The response whose head has arrived.
    current: Option<Finished>,
}

impl Responses {
    /// Parses the start of `input`. Returns the number of bytes consumed, and the response if it is complete.
    pub fn advance(&mut self, to: To, input: &[u8]) -> Result<(usize, Option<Finished>), Malformed> {
        let mut at = 0;
        loop {
            let (used, piece) = self.reader.next(to, &input[at..])?;
            at += used;
            match piece {
                Piece::More => return Ok((at, None)),
                Piece::Interim(_) => {}
                Piece::Head(head) => {
                    self.current = Some(Finished { status: head.status(), keep_alive: false, body: 0 });
                }
                Piece::Data(data) => {
                    if let Some(current) = &mut self.current {
                        current.body += data.len() as u64;
                    }
                }
                Piece::End => return Ok((at, self.finish())),
                Piece::Switched(_) => return Err(Malformed("unexpected switch to another protocol")),
            }
        }
    }

    /// Ends the input. Some responses end with the connection.
    pub fn end(&mut self) -> Option<Finished> {
        if self.reader.end() { self.finish() } else { None }
    }

    fn finish(&mut self) -> Option<Finished> {
        let keep_alive = self.reader.is_reusable();
        self.reader.reset();
        self.current.take().map(|finished| Finished { keep_alive, ..finished })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ResponseLimits;

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
    fn heads_are_limited() {
        let head = |length: usize| {
            let filler = "x".repeat(length - "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: \r\n\r\n".len());
            format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nA: {filler}\r\n\r\n")
        };
        for size in [1, 4096, 100_000] {
            assert_eq!(read(To::Other, head(ResponseLimits::default().head).as_bytes(), size).unwrap(), [OK]);
            assert!(read(To::Other, head(ResponseLimits::default().head + 1).as_bytes(), size).is_err());
        }
        // Too many fields.
        let fields = "A: b\r\n".repeat(ResponseLimits::default().fields + 1);
        assert!(read(To::Other, format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes(), 4096).is_err());
    }
}
