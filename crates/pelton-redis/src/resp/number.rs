//! Numbers in lines, parsed strictly.

use super::ProtocolError;

/// Longer than any 64-bit number with its sign.
const LONGEST_INTEGER: usize = 20;

/// Longer than any double that a server prints, and short enough to parse at no cost.
const LONGEST_DOUBLE: usize = 400;

pub(super) fn integer(text: &[u8], what: &'static str) -> Result<i64, ProtocolError> {
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || text.len() > LONGEST_INTEGER || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::Malformed(what));
    }
    // Digits and a sign are ASCII.
    let text = str::from_utf8(text).map_err(|_| ProtocolError::Malformed(what))?;
    text.parse().map_err(|_| ProtocolError::Malformed(what))
}

/// Parses a length. `None` is -1, the null of RESP2.
pub(super) fn length(text: &[u8], what: &'static str) -> Result<Option<usize>, ProtocolError> {
    match text {
        b"-1" => Ok(None),
        b"?" => Err(ProtocolError::Streamed),
        _ if text.iter().all(u8::is_ascii_digit) => {
            let length = integer(text, what)?;
            usize::try_from(length).map(Some).map_err(|_| ProtocolError::Malformed(what))
        }
        _ => Err(ProtocolError::Malformed(what)),
    }
}

pub(super) fn double(text: &[u8]) -> Result<f64, ProtocolError> {
    const WHAT: &str = "a floating-point number";
    match text {
        b"inf" | b"+inf" => return Ok(f64::INFINITY),
        b"-inf" => return Ok(f64::NEG_INFINITY),
        b"nan" | b"-nan" => return Ok(f64::NAN),
        _ => {}
    }
    let fits = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    if text.len() > LONGEST_DOUBLE || !text.iter().all(fits) {
        return Err(ProtocolError::Malformed(WHAT));
    }
    str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(ProtocolError::Malformed(WHAT))
}

/// Checks that the text is a sign and digits.
pub(super) fn is_big_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_strictly() {
        assert_eq!(integer(b"-9223372036854775808", "x"), Ok(i64::MIN));
        assert_eq!(integer(b"+7", "x"), Ok(7));
        let bad: [&[u8]; 7] = [b"", b"-", b"--1", b"1 ", b"0x1", b"9223372036854775808", b"000000000000000000001"];
        for text in bad {
            assert_eq!(integer(text, "x"), Err(ProtocolError::Malformed("x")), "{text:?}");
        }
    }

    #[test]
    fn lengths_are_digits_or_minus_one() {
        assert_eq!(length(b"0", "x"), Ok(Some(0)));
        assert_eq!(length(b"-1", "x"), Ok(None));
        assert_eq!(length(b"?", "x"), Err(ProtocolError::Streamed));
        for text in [&b"-2"[..], b"+1", b"", b"1x", b"99999999999999999999"] {
            assert_eq!(length(text, "x"), Err(ProtocolError::Malformed("x")), "{text:?}");
        }
    }

    #[test]
    fn doubles_are_decimal_or_special() {
        assert_eq!(double(b"-1.5e3"), Ok(-1500.0));
        assert_eq!(double(b"-inf"), Ok(f64::NEG_INFINITY));
        assert!(double(b"nan").unwrap().is_nan());
        for text in [&b""[..], b"1.5x", b"infinity", b"1e", &[b'1'; 500]] {
            assert!(double(text).is_err(), "{text:?}");
        }
    }
}
