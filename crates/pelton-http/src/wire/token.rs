//! Character classes.

/// Whether `byte` may appear in a token, such as a method or a field name (RFC 9110, section 5.6.2).
pub(crate) const fn is_token(byte: u8) -> bool {
    matches!(byte,
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'
        | b'_' | b'`' | b'|' | b'~')
}

/// Whether `byte` may appear in a field value: visible characters, blanks, and non-ASCII bytes.
pub(crate) const fn is_field_value(byte: u8) -> bool {
    (byte >= b' ') & (byte != 0x7f) | (byte == b'\t')
}

/// [`is_token`] as a table, for frequent use.
static TOKENS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_token(byte as u8);
        byte += 1;
    }
    table
};

/// Whether `text` is a token.
pub(crate) fn is_token_text(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| TOKENS[usize::from(*byte)])
}

/// Trims blanks.
pub(crate) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// Decodes the percent-escape at the beginning of `text`.
pub(crate) fn escaped(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    u8::try_from(16 * digit(1)? + digit(2)?).ok()
}

/// The members of a comma-separated list. Empty ones are skipped.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trim).filter(|member| !member.is_empty())
}
