//! Splits input into lines. Unlike `pelton::codec::Lines`, it reports a line that is too long instead of ending the connection.

/// The longest line, in bytes. It bounds memory, and the space one guest can take on everybody's screen.
pub const LONGEST: usize = 1024;

#[derive(PartialEq, Eq, Debug)]
pub enum Line {
    /// A line without its line ending. Invalid UTF-8 is replaced, and control characters, which could take over a terminal,
    /// are removed.
    Text(String),
    /// A line longer than [`LONGEST`], which was discarded.
    TooLong,
}

/// Splits input into lines, however it is chunked.
#[derive(Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// How many of these bytes have been returned.
    taken: usize,
    /// The current line is too long, and its beginning was discarded.
    skipping: bool,
}

impl Lines {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line.
    pub fn next(&mut self) -> Option<Line> {
        let rest = &self.bytes[self.taken..];
        let Some(len) = rest.iter().position(|byte| *byte == b'\n') else {
            self.skipping |= rest.len() > LONGEST;
            let start = if self.skipping { self.bytes.len() } else { self.taken };
            self.bytes.drain(..start);
            self.taken = 0;
            return None;
        };
        self.taken += len + 1;
        let too_long = std::mem::take(&mut self.skipping) || len > LONGEST;
        Some(if too_long { Line::TooLong } else { Line::Text(clean(&rest[..len])) })
    }
}

fn clean(bytes: &[u8]) -> String {
    // This removes the carriage return of a line ending too.
    String::from_utf8_lossy(bytes).replace('\t', " ").chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &mut Lines) -> Vec<Line> {
        std::iter::from_fn(|| lines.next()).collect()
    }

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[test]
    fn lines_are_complete_however_the_input_is_chunked() {
        let bytes = "one\r\ntwo\n\nüñí\r\nrest".as_bytes();
        for size in 1..=bytes.len() {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for part in bytes.chunks(size) {
                lines.push(part);
                got.extend(all(&mut lines));
            }
            assert_eq!(got, [text("one"), text("two"), text(""), text("üñí")]);
        }
    }

    #[test]
    fn overlong_line_is_dropped_and_the_next_is_kept() {
        for size in [1, 700, 5000] {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            let mut bytes = vec![b'x'; LONGEST];
            bytes.push(b'\n');
            bytes.extend(vec![b'y'; LONGEST + 1]);
            bytes.extend(b"\nshort\n");
            for part in bytes.chunks(size) {
                lines.push(part);
                got.extend(all(&mut lines));
                assert!(lines.bytes.len() <= LONGEST, "{} bytes are kept", lines.bytes.len());
            }
            assert_eq!(got, [text(&"x".repeat(LONGEST)), Line::TooLong, text("short")]);
        }
    }

    #[test]
    fn invalid_text_is_replaced_or_removed() {
        let mut lines = Lines::default();
        lines.push(b"a\xffb\n\x1b[2Jclear\x07\n\ttab\n");
        assert_eq!(all(&mut lines), [text("a\u{fffd}b"), text("[2Jclear"), text(" tab")]);
    }
}
