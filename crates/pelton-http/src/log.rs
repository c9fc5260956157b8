//! Makes client input safe to log.
//!
//! A client chooses the bytes of its request, and some of them end up in logs. There they must not begin a line of their own, move
//! the cursor of a terminal, or reorder or hide what stands next to them. One rule decides this for every log, text or JSON:
//! [`may_stand`]. Only printable ASCII stands in a log as it is. The rule needs no Unicode tables, so it also covers characters that a
//! later version of Unicode adds.

use std::fmt::{self, Write};

/// Whether a byte may stand in a log as it is: printable ASCII and the space. Everything else has to be escaped, which includes
/// every byte of a character that is not ASCII.
///
/// A format that quotes or escapes has to escape its own quotes and backslashes, too.
///
/// ```
/// use pelton_http::log::may_stand;
///
/// assert!(may_stand(b'a') && may_stand(b' '));
/// assert!(!may_stand(b'\n') && !may_stand(0x1b) && !may_stand(0x7f) && !may_stand(0x9b));
/// ```
pub const fn may_stand(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Bytes that somebody else has chosen, as they may stand in a line of text.
///
/// What [may not stand](may_stand) there, quotes and backslashes are written as `\xhh`, so the text can be quoted, and can be read
/// back without loss. `Debug` adds the quotes.
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
    /// Wraps bytes, or text.
    pub fn new<T: AsRef<[u8]> + ?Sized>(bytes: &'a T) -> Printable<'a> {
        Printable(bytes.as_ref())
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, |byte| may_stand(byte) && !matches!(byte, b'"' | b'\\'))
    }
}

impl fmt::Debug for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Passes text on, and escapes what [may not stand](may_stand) in a log.
///
/// It is meant for text that is quoted already, or that the program itself has put together: quotes and backslashes pass. A log
/// that writes every value through this is safe, whatever the code that logs has forgotten.
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
        write_escaped(&mut self.0, text.as_bytes(), may_stand)
    }
}

/// Writes runs of bytes that `stand` as they are, and the others as `\xhh`.
fn write_escaped(to: &mut impl Write, bytes: &[u8], stand: impl Fn(u8) -> bool) -> fmt::Result {
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = rest.iter().position(|byte| !stand(*byte)).unwrap_or(rest.len());
        // Only ASCII stands, so this is always text.
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
        text.bytes().all(may_stand)
    }

    #[test]
    fn no_character_but_printable_ascii_stands_as_it_is() {
        let ascii: String = (' '..='~').collect();
        // The planes between have ideographs, or nothing.
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
            // Each byte has become four.
            assert_eq!(escaped.len(), others.len() * r"\x00".len());
        }
    }

    #[test]
    fn no_byte_stands_as_it_is_that_is_no_text() {
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
