//! The header fields of a response.

use std::borrow::Cow;
use std::cell::RefCell;

use crate::wire::token::{is_field_value, is_token_text, trim};

/// The maximum number of field buffers kept for later responses.
const KEPT: usize = 32;

/// The maximum size of a kept buffer, in bytes.
const LARGEST_KEPT: usize = 4096;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The header fields of a response, stored as header lines.
///
/// Fields cannot be split: an invalid name or value is rejected and makes the response a [fault](ResponseFields::fault), so the
/// client gets a 500. The server controls framing: it ignores `Transfer-Encoding`, requires a correct `Content-Length`, closes
/// the connection on `Connection: close` and ignores other options. A `Date` replaces the server's own.
#[derive(Debug)]
pub struct ResponseFields {
    /// Many responses have a single constant field, which is not copied until another is added.
    lines: Cow<'static, [u8]>,
    content_length: Option<u64>,
    closes: bool,
    has_date: bool,
    fault: Option<Box<str>>,
}

impl Default for ResponseFields {
    #[inline]
    fn default() -> ResponseFields {
        ResponseFields { lines: Cow::Borrowed(&[]), content_length: None, closes: false, has_date: false, fault: None }
    }
}

impl ResponseFields {
    /// Adds a field; there may be others with this name.
    pub fn append(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.as_ref(), trim(value.as_ref()));
        if !is_token_text(name) {
            return self.set_fault(format!("invalid header name {:?}", String::from_utf8_lossy(name)));
        }
        if !is_value(value) {
            return self.set_fault(format!("invalid value of the header {:?}", String::from_utf8_lossy(name)));
        }
        if self.is_servers(name, value) {
            return;
        }
        let lines = self.lines_mut();
        lines.reserve(name.len() + value.len() + 4);
        lines.extend_from_slice(name);
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value);
        lines.extend_from_slice(b"\r\n");
    }

    /// Adds a field of a message that was parsed, and so is valid.
    #[inline]
    pub(crate) fn append_parsed(&mut self, name: &[u8], value: &[u8]) {
        if !self.is_servers(name, value) {
            let lines = self.lines_mut();
            lines.reserve(name.len() + value.len() + 4);
            for part in [name, b": ", value, b"\r\n"] {
                lines.extend_from_slice(part);
            }
        }
    }

    /// Adds a valid field as a header line.
    #[inline]
    pub(crate) fn append_line(&mut self, line: &'static str) {
        if self.lines.is_empty() {
            self.lines = Cow::Borrowed(line.as_bytes());
        } else {
            self.append_lines(line.as_bytes());
        }
    }

    fn lines_mut(&mut self) -> &mut Vec<u8> {
        if let Cow::Borrowed(line) = self.lines {
            let mut lines = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default();
            lines.extend_from_slice(line);
            self.lines = Cow::Owned(lines);
        }
        self.lines.to_mut()
    }

    /// Adds complete header lines, which must be valid and not controlled by the server.
    pub(crate) fn append_lines(&mut self, lines: &[u8]) {
        self.lines_mut().extend_from_slice(lines);
    }

    /// Handles a field that the server controls. Returns whether it is one.
    fn is_servers(&mut self, name: &[u8], value: &[u8]) -> bool {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            4 if is("date") => self.has_date = true,
            10 if is("connection") => {
                self.closes |= crate::wire::token::list(value).any(|option| option.eq_ignore_ascii_case(b"close"));
                return true;
            }
            10 if is("keep-alive") => return true,
            14 if is("content-length") => {
                match crate::wire::decimal(value) {
                    Some(length) => self.content_length = Some(length),
                    None => self.set_fault("the Content-Length is not a number".to_owned()),
                }
                return true;
            }
            17 if is("transfer-encoding") => return true,
            _ => {}
        }
        false
    }

    /// Sets a field, replacing any with this name.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.remove(name.as_ref());
        self.append(name, value);
    }

    /// Removes all fields with this name.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) {
        let name = name.as_ref();
        if name.eq_ignore_ascii_case(b"content-length") {
            self.content_length = None;
        }
        if name.eq_ignore_ascii_case(b"date") {
            self.has_date = false;
        }
        if self.get(name).is_some() {
            let lines = std::mem::take(&mut self.lines);
            let kept = lines.split_inclusive(|byte| *byte == b'\n').filter(|line| value_of(line, name).is_none());
            self.lines = kept.collect::<Vec<_>>().concat().into();
        }
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.lines.split_inclusive(|byte| *byte == b'\n').find_map(|line| value_of(line, name.as_ref()))
    }

    /// The `Content-Length`, if one was set.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    pub(crate) fn set_content_length(&mut self, length: u64) {
        self.content_length = Some(length);
    }

    /// Why the fields are invalid, if they are.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The fields as header lines.
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }

    pub(crate) fn close(&mut self) {
        self.closes = true;
    }

    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    pub(crate) fn has_date(&self) -> bool {
        self.has_date
    }

    pub(crate) fn set_fault(&mut self, what: String) {
        self.fault.get_or_insert(what.into());
    }
}

/// Whether this is a valid field value. The loop has no early exit, so that it vectorizes.
fn is_value(value: &[u8]) -> bool {
    value.iter().fold(true, |fine, byte| fine & is_field_value(*byte))
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (found, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b": ")?.strip_suffix(b"\r\n")?;
    found.eq_ignore_ascii_case(name).then_some(value)
}

impl Drop for ResponseFields {
    #[inline]
    fn drop(&mut self) {
        if let Cow::Owned(lines) = &mut self.lines
            && (1..=LARGEST_KEPT).contains(&lines.capacity())
        {
            let mut lines = std::mem::take(lines);
            lines.clear();
            // A thread that is ending needs no buffer.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < KEPT {
                    spare.push(lines);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_set_and_removed() {
        let mut fields = ResponseFields::default();
        fields.append("A", "1");
        fields.append("a", " 2 ");
        fields.append("AB", "3");
        assert_eq!(fields.lines(), b"A: 1\r\na: 2\r\nAB: 3\r\n");
        fields.set("A", "4");
        assert_eq!(fields.lines(), b"AB: 3\r\nA: 4\r\n");
        assert_eq!((fields.get("ab"), fields.get("b")), (Some(&b"3"[..]), None));
        assert_eq!(fields.fault(), None);
    }

    #[test]
    fn invalid_fields_are_rejected() {
        for (name, value) in [
            ("A", "b\r\nSet-Cookie: c"),
            ("A", "b\n"),
            ("A", "b\rc"),
            ("A", "\0"),
            ("A: b\r\nC", "d"),
            ("", "b"),
            ("A b", "c"),
            ("A:", "b"),
            ("ä", "b"),
            ("A", "\x7f"),
        ] {
            let mut fields = ResponseFields::default();
            fields.append(name, value);
            assert_eq!(fields.lines(), b"", "{name:?}: {value:?}");
            assert!(fields.fault().is_some(), "{name:?}: {value:?}");
        }
    }

    #[test]
    fn framing_fields_are_controlled_by_the_server() {
        let mut fields = ResponseFields::default();
        fields.append("Transfer-Encoding", "chunked");
        fields.append("Content-Length", "5");
        fields.append("Connection", "foo, Close");
        fields.append("Keep-Alive", "timeout=5");
        assert_eq!((fields.lines(), fields.content_length(), fields.closes()), (&b""[..], Some(5), true));
        fields.append("Content-Length", "5, 5");
        assert!(fields.fault().is_some());
    }
}
