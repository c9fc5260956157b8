//! Classes of bytes.

/// Whether `byte` may stand in a token: a method, the name of a field (RFC 9110, section 5.6.2).
pub(crate) const fn is_token(byte: u8) -> bool {
    matches!(byte,
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'
        | b'_' | b'`' | b'|' | b'~')
}

/// Whether `byte` may stand in the value of a field: anything visible, blanks, and what is not ASCII.
pub(crate) const fn is_field_value(byte: u8) -> bool {
    (byte >= b' ') & (byte != 0x7f) | (byte == b'\t')
}

/// A table of [`is_token`], for names that are looked at often.
static TOKENS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_token(byte as u8);
        byte += 1;
    }
    table
};

/// Whether this is a token.
pub(crate) fn is_token_text(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| TOKENS[usize::from(*byte)])
}

/// Without the blanks around it.
pub(crate) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// The members of a list that are separated by commas. Empty ones are left out.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(trim).filter(|member| !member.is_empty())
}
