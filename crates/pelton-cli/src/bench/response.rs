//! Responses out of bytes, strictly: what two clients could read differently is an error here.

use pelton_http::wire::{ChunkLimits, Chunked, Decoded};

/// Heads that are longer than this are no heads.
const LONGEST_HEAD: usize = 64 * 1024;

/// More fields than a server has a reason to send.
const MOST_FIELDS: usize = 128;

/// What is wrong with a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

/// A response that has come in in full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    pub status: u16,
    /// Another request may follow on the connection.
    pub keep_alive: bool,
    pub body: u64,
}

/// Whether the response is to a request that asks for the head alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    Head,
    Other,
}

/// Reads one response after the other.
#[derive(Default)]
pub struct Responses {
    /// What has come of a head that is not complete.
    partial: Vec<u8>,
    body: Option<Body>,
}

struct Body {
    finished: Finished,
    kind: Kind,
}

enum Kind {
    /// So many bytes are missing.
    Length(u64),
    Chunked(Box<Chunked>),
    UntilClose,
}

impl Responses {
    /// Looks at the beginning of `input`. Says how much of it is done with, and whether that was the end of a response.
    pub fn advance(&mut self, to: To, input: &[u8]) -> Result<(usize, Option<Finished>), Malformed> {
        let mut at = 0;
        loop {
            if self.body.is_none() {
                if at == input.len() {
                    return Ok((at, None));
                }
                at += self.head(to, &input[at..])?;
                if self.body.is_none() {
                    continue;
                }
            }
            let (used, finished) = self.body(&input[at..])?;
            return Ok((at + used, finished));
        }
    }

    /// Nothing more comes. For some responses that is the end.
    pub fn end(&mut self) -> Option<Finished> {
        let body = self.body.take()?;
        matches!(body.kind, Kind::UntilClose).then_some(body.finished)
    }

    fn head(&mut self, to: To, input: &[u8]) -> Result<usize, Malformed> {
        if self.partial.is_empty() {
            return match parse(to, input)? {
                Some((length, body)) => {
                    self.body = body;
                    Ok(length)
                }
                None => self.keep(input),
            };
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(input);
        let partial = std::mem::take(&mut self.partial);
        match parse(to, &partial)? {
            Some((length, body)) => {
                self.body = body;
                Ok(length - before)
            }
            None => {
                self.partial = partial;
                self.keep(&[]).map(|_| input.len())
            }
        }
    }

    fn keep(&mut self, input: &[u8]) -> Result<usize, Malformed> {
        self.partial.extend_from_slice(input);
        if self.partial.len() > LONGEST_HEAD { Err(Malformed("its head is too long")) } else { Ok(input.len()) }
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

/// Parses a head, if it is complete: its length, and what follows; nothing follows an interim response.
fn parse(to: To, input: &[u8]) -> Result<Option<(usize, Option<Body>)>, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let length = match head.parse(input) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed("its head is no HTTP")),
    };
    let status = head.code.unwrap_or_default();
    match status {
        101 => return Err(Malformed("it changes to another protocol, unasked")),
        100..200 => return Ok(Some((length, None))),
        200..600 => {}
        _ => return Err(Malformed("its status is out of range")),
    }
    let mut keep_alive = head.version == Some(1);
    let (mut content_length, mut chunked) = (None, false);
    for field in head.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let said = decimal(field.value).ok_or(Malformed("its Content-Length is no number"))?;
            if content_length.replace(said).is_some_and(|before| before != said) {
                return Err(Malformed("it has two lengths"));
            }
        } else if is("transfer-encoding") {
            if chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                return Err(Malformed("its Transfer-Encoding is not chunked"));
            }
            chunked = true;
        } else if is("connection") {
            let options = field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            for option in options {
                if option.eq_ignore_ascii_case(b"close") {
                    keep_alive = false;
                } else if option.eq_ignore_ascii_case(b"keep-alive") {
                    keep_alive = true;
                }
            }
        }
    }
    let kind = match (content_length, chunked) {
        (Some(_), true) => return Err(Malformed("it has both a length and chunks")),
        _ if to == To::Head || matches!(status, 204 | 304) => Kind::Length(0),
        (None, true) => Kind::Chunked(Box::default()),
        (Some(length), false) => Kind::Length(length),
        (None, false) => Kind::UntilClose,
    };
    let keep_alive = keep_alive && !matches!(kind, Kind::UntilClose);
    Ok(Some((length, Some(Body { finished: Finished { status, keep_alive, body: 0 }, kind }))))
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| str::from_utf8(text).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All responses in `bytes`, which come in pieces of this size, and then end.
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
    fn responses_are_told_apart_however_they_are_cut() {
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
    fn what_could_be_read_in_two_ways_is_refused() {
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 999 What\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            for size in [1, 1000] {
                assert!(read(To::Other, head.as_bytes(), size).is_err(), "{head}");
            }
        }
        assert!(read(To::Other, &[b"HTTP/1.1 200 OK\r\nA: ".to_vec(), vec![b'x'; 70_000]].concat(), 4096).is_err());
    }
}
