//! The [floor](crate::floor) for HTTP: it parses every head, and writes that many copies of the same response at once. No routes,
//! clock, limits or timeouts: the minimum that can be called an HTTP server.

use std::collections::HashMap;

use anyhow::Result;
use httparse::Status;

use super::listener;
use crate::floor::{self, Service};

/// The same number as pelton allows.
const MOST_FIELDS: usize = 100;

/// As long as pelton's.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 14\r\n\
    \r\n\
    Hello, world!\n";

#[derive(Default)]
struct Hello {
    /// Incomplete heads, by descriptor.
    begun: HashMap<usize, Vec<u8>>,
    answers: Vec<u8>,
}

pub fn serve() -> Result<()> {
    floor::serve(listener()?, Hello::default())
}

/// Appends a response for every request in `input`. Returns how much of the input was answered; `None` if it is invalid.
pub fn answer(mut input: &[u8], answers: &mut Vec<u8>) -> Option<usize> {
    let whole = input.len();
    while !input.is_empty() {
        let mut fields = [const { std::mem::MaybeUninit::uninit() }; MOST_FIELDS];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(input, &mut fields) {
            Ok(Status::Complete(length)) => {
                answers.extend_from_slice(ANSWER);
                input = &input[length..];
            }
            Ok(Status::Partial) => break,
            Err(_) => return None,
        }
    }
    Some(whole - input.len())
}

impl Service for Hello {
    fn answer<'a>(&'a mut self, fd: usize, input: &'a [u8]) -> Option<&'a [u8]> {
        self.answers.clear();
        if self.begun.is_empty() {
            let used = answer(input, &mut self.answers)?;
            if used < input.len() {
                self.begun.insert(fd, input[used..].to_vec());
            }
        } else {
            let mut begun = self.begun.remove(&fd).unwrap_or_default();
            begun.extend_from_slice(input);
            let used = answer(&begun, &mut self.answers)?;
            if used < begun.len() {
                begun.drain(..used);
                self.begun.insert(fd, begun);
            }
        }
        Some(&self.answers)
    }

    fn ended(&mut self, fd: usize) {
        self.begun.remove(&fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_complete_request_is_answered_once() {
        let request = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut answers = Vec::new();
        let input = [&request[..], request, &request[..10]].concat();
        assert_eq!(answer(&input, &mut answers), Some(2 * request.len()));
        assert_eq!(answers, [ANSWER, ANSWER].concat());
        assert_eq!(answer(b"\0", &mut answers), None);
    }

    #[test]
    fn a_request_in_two_pieces_is_answered_when_it_is_complete() {
        let mut hello = Hello::default();
        assert_eq!(hello.answer(5, b"GET / HTTP/1.1\r\nHo"), Some(&b""[..]));
        assert_eq!(hello.answer(6, b"GET / HTTP/1.1\r\n\r\n"), Some(ANSWER));
        assert_eq!(hello.answer(5, b"st: a\r\n\r\n"), Some(ANSWER));
        assert!(hello.begun.is_empty());
    }
}
