//! Makes client input safe to log.
//!
//! A client chooses the bytes of its request, and some of them end up in logs. There they must not start a new line, move the
//! cursor of a terminal, or reorder or hide neighbouring text. One rule applies to every log, text or JSON:
//! [`may_appear_unescaped`]. Only printable ASCII is logged unescaped. The rule needs no Unicode tables, so it also covers
//! characters that a later version of Unicode adds.

use std::fmt::{self, Write};

/// Whether a byte may appear in a log unescaped: printable ASCII and the space. Everything else must be escaped, including
/// every byte of a non-ASCII character.
///
/// A format that quotes or escapes must also escape its own quotes and backslashes.
///
/// ```
/// use pelton_http::log::may_appear_unescaped;
///
/// assert!(may_appear_unescaped(b'a') && may_appear_unescaped(b' '));
/// assert!(![b'\n', 0x1b, 0x7f, 0x9b].into_iter().any(may_appear_unescaped));
/// ```
pub const fn may_appear_unescaped(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Untrusted bytes, escaped for a line of text.
///
/// Quotes, backslashes and all bytes that [must be escaped](may_appear_unescaped) are written as `\xhh`, so the text can be quoted
/// and decoded without loss. `Debug` adds the quotes.
///
/// ```
/// use pelton_http::log::Printable;
///
/// assert_eq!(Printable::new("a\n\u{202e}b").to_string(), r"a\x0a\xe2\x80\xaeb");
/// assert_eq!(format!("{:?}", Printable::new(b"\"\xff")), r#""\x22\xff""#);
/// ```
#[derive(Clone, Copy)]
pub struct Printable<'a>(&'a [u8]);

impl<'a> Printable<'a> {
    /// Wraps bytes or text.
    pub fn new<T: AsRef<[u8]> + ?Sized>(bytes: &'a T) -> Printable<'a> {
        Printable(bytes.as_ref())
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, |byte| may_appear_unescaped(byte) && !matches!(byte, b'"' | b'\\'))
    }
}

impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Passes text on and escapes the bytes that [must be escaped](may_appear_unescaped) in a log.
///
/// Quotes and backslashes pass unchanged, because it is meant for text that is already quoted or composed by the program. A log
/// that writes every value through this is safe even if the logging code forgot to escape.
///
/// ```
/// use pelton_http::log::Escaping;
/// use std::fmt::Write;
///
/// let mut line = String::new();
/// write!(Escaping(&mut line), "no such file: {}", "x\nERROR forged")?;
/// assert_eq!(line, r"no such file: x\x0aERROR forged");
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Debug)]
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        write_escaped(&mut self.0, text.as_bytes(), may_appear_unescaped)
    }
}

/// Writes the bytes for which `stand` returns true unchanged, and the others as `\xhh`.
fn write_escaped(to: &mut impl Write, bytes: &[u8], stand: impl Fn(u8) -> bool) -> fmt::Result {
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = rest.iter().position(|byte| !stand(*byte)).unwrap_or(rest.len());
        // Unescaped bytes are ASCII, so this is always valid text.
        to.write_str(str::from_utf8(&rest[..run]).map_err(|_| fmt::Error)?)?;
        rest = &rest[run..];
        if let Some((byte, others)) = rest.split_first() {
            let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
            to.write_str("\\x")?;
            to.write_char(digit(byte >> 4))?;
            to.write_char(digit(byte & 15))?;
            rest = others;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_clean(text: &str) -> bool {
        text.bytes().all(may_appear_unescaped)
    }

    #[test]
    fn only_printable_ascii_is_unescaped() {
        let ascii: String = (' '..='~').collect();
        // The planes in between contain ideographs or nothing.
        let planes = ('\u{7f}'..'\u{20000}').chain('\u{e0000}'..'\u{e1000}');
        let others: String = ('\0'..' ').chain(planes).chain([char::MAX]).collect();
        let passed = |text: &str| {
            let mut passed = String::new();
            Escaping(&mut passed).write_str(text).unwrap();
            passed
        };
        assert_eq!(passed(&ascii), ascii);
        assert_eq!(Printable::new(&ascii).to_string(), ascii.replace('\\', r"\x5c").replace('"', r"\x22"));
        for escaped in [Printable::new(&others).to_string(), passed(&others)] {
            assert!(is_clean(&escaped));
            // Each byte becomes four characters.
            assert_eq!(escaped.len(), others.len() * r"\x00".len());
        }
    }

    #[test]
    fn invalid_utf8_is_escaped() {
        for byte in 0..=255 {
            let shown = Printable::new(&[b'<', byte, b'>']).to_string();
            assert!(is_clean(&shown) && shown.starts_with('<') && shown.ends_with('>'), "{byte:#x}: {shown}");
        }
    }

    #[test]
    fn different_bytes_look_different() {
        let mut seen = std::collections::HashSet::new();
        for bytes in [&b"\n"[..], br"\x0a", br"\\x0a", b"\\\n", b"\"", br"\x22", b"", b"\xc2\x85", b"\x85"] {
            assert!(seen.insert(Printable::new(bytes).to_string()), "{bytes:?}");
        }
    }
}
