//! Determines the length of a body (RFC 9112, section 6.3). Anything ambiguous is refused, because it enables request smuggling.

use super::Refusal;
use super::head::Version;

/// How a body is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body is chunked.
    Chunked,
}

/// The framing fields seen so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Framed {
    length: Option<u64>,
    chunked: bool,
}

impl Framed {
    /// Adds a `Content-Length`. A second one is refused even if it is equal: no client sends it, and implementations may disagree
    /// on what is equal.
    pub(super) fn content_length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.length.is_some() {
            return Err(Refusal::bad("duplicate Content-Length"));
        }
        let length = decimal(value).ok_or(Refusal::bad("the Content-Length is not a number"))?;
        self.length = Some(length);
        Ok(())
    }

    /// Adds a `Transfer-Encoding`. Only a single `chunked` is supported.
    pub(super) fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Refusal::bad("unsupported Transfer-Encoding"));
        }
        self.chunked = true;
        Ok(())
    }

    /// The framing of a request with these fields.
    #[inline]
    pub(super) fn framing(self, version: Version) -> Result<Framing, Refusal> {
        Ok(match self.said(version)? {
            Some(Framing::Length(0)) | None => Framing::None,
            Some(framing) => framing,
        })
    }

    /// The framing that the fields announce, if any.
    #[inline]
    pub(super) fn said(self, version: Version) -> Result<Option<Framing>, Refusal> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Refusal::bad("both Content-Length and Transfer-Encoding")),
            (None, true) if version == Version::Http10 => Err(Refusal::bad("HTTP/1.0 has no Transfer-Encoding")),
            (None, true) => Ok(Some(Framing::Chunked)),
            (Some(length), false) => Ok(Some(Framing::Length(length))),
            (None, false) => Ok(None),
        }
    }
}

/// Parses a number that consists only of digits.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_digits_that_fit() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"007"), Some(7));
        for bad in [&b""[..], b"18446744073709551616", b"+1", b"-1", b"1 ", b"1,1", b"0x1", b"1_0", b"\xc2\xb2"] {
            assert_eq!(decimal(bad), None, "{bad:?}");
        }
    }
}
