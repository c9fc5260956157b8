//! Parses streams of events.

use std::time::Duration;

use super::Message;

/// The maximum length of a line, and of the data of an event, in bytes.
const LONGEST: usize = 1 << 20;

/// Parses a stream of events, however it is split.
#[derive(Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    /// The last byte was a CR: a LF that follows belongs to the same line break.
    after_cr: bool,
    /// Something was received: a byte order mark can only be first.
    begun: bool,
    name: String,
    data: String,
    has_data: bool,
    /// The ID of the event in progress, and of the latest one.
    id: String,
    last_id: String,
    retry: Option<Duration>,
}

impl Parser {
    /// Parses up to the end of the next event. Returns how much was used, and whether an event is complete.
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<(usize, bool), &'static str> {
        let mut at = 0;
        while at < input.len() {
            if std::mem::take(&mut self.after_cr) && input[at] == b'\n' {
                at += 1;
                continue;
            }
            let Some(found) = memchr::memchr2(b'\r', b'\n', &input[at..]) else {
                self.extend(&input[at..])?;
                return Ok((input.len(), false));
            };
            self.extend(&input[at..at + found])?;
            self.after_cr = input[at + found] == b'\r';
            at += found + 1;
            if self.end_line()? {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if self.line.len() + bytes.len() > LONGEST {
            return Err("a line of the event stream is too long");
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Handles a complete line. Returns whether an event is complete.
    fn end_line(&mut self) -> Result<bool, &'static str> {
        let mut line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line).into_owned();
        let text = if std::mem::replace(&mut self.begun, true) { &text } else { text.trim_start_matches('\u{feff}') };
        let is_complete = if text.is_empty() {
            self.last_id.clone_from(&self.id);
            let has_data = self.has_data;
            if !has_data {
                self.next();
            }
            has_data
        } else {
            let (field, value) = text.split_once(':').unwrap_or((text, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            self.field(field, value)?;
            false
        };
        line.clear();
        self.line = line;
        Ok(is_complete)
    }

    fn field(&mut self, field: &str, value: &str) -> Result<(), &'static str> {
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if self.data.len() + value.len() > LONGEST {
                    return Err("the data of an event is too long");
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            // The ID is sent in a header field later. Those that would not fit there are ignored.
            "id" if !value.bytes().any(|byte| byte < b' ' || byte == 0x7f) && value.len() <= 1024 => {
                value.clone_into(&mut self.id);
            }
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                // A day is more than anybody waits.
                let milliseconds = value.parse().unwrap_or(u64::MAX).min(86_400_000);
                self.retry = Some(Duration::from_millis(milliseconds));
            }
            _ => {}
        }
        Ok(())
    }

    /// The complete event.
    pub(super) fn message(&self) -> Message<'_> {
        let name = if self.name.is_empty() { "message" } else { &self.name };
        Message { name, data: &self.data, id: &self.last_id }
    }

    /// Begins another event.
    pub(super) fn next(&mut self) {
        self.name.clear();
        self.data.clear();
        self.has_data = false;
    }

    /// Begins another stream. An incomplete event is dropped.
    pub(super) fn restart(&mut self) {
        self.next();
        self.line.clear();
        (self.after_cr, self.begun) = (false, false);
        self.id.clone_from(&self.last_id);
    }

    pub(super) fn last_id(&self) -> &str {
        &self.last_id
    }

    /// How long the server asks to wait before the stream is opened again.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8], size: usize) -> Vec<String> {
        let mut parser = Parser::default();
        let mut all = Vec::new();
        for mut piece in input.chunks(size) {
            while !piece.is_empty() {
                let (used, is_complete) = parser.advance(piece).unwrap();
                piece = &piece[used..];
                if is_complete {
                    let Message { name, data, id } = parser.message();
                    all.push(format!("{name}|{data}|{id}"));
                    parser.next();
                }
            }
        }
        all
    }

    #[test]
    fn events_are_parsed_however_they_are_split() {
        let stream = b"\xef\xbb\xbf: comment\n\ndata: one\n\nevent: add\r\ndata:two\r\ndata:  three\r\nid: 7\r\n\r\n\
            data\rid\r\rretry: 5\nunknown: x\nevent: nothing\n\ndata: last, incomplete\n";
        let expected = ["message|one|", "add|two\n three|7", "message||"];
        for size in 1..stream.len() {
            assert_eq!(parse(stream, size), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn limits_are_kept() {
        let mut parser = Parser::default();
        assert!(parser.advance(&vec![b'x'; LONGEST + 1]).is_err());
        let mut parser = Parser::default();
        let line = [b"data: ", &vec![b'x'; LONGEST / 2][..], b"\n"].concat();
        assert!((0..3).try_for_each(|_| parser.advance(&line).map(drop)).is_err());
        let mut parser = Parser::default();
        parser.advance(b"id: a\0b\nretry: 99999999999999999999\ndata: x\n\n").unwrap();
        assert_eq!((parser.message().id, parser.retry()), ("", Some(Duration::from_secs(86_400))));
    }
}
