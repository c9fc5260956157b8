//! Validates hosts in the `Host` field and in request targets (RFC 3986, section 3.2).

/// Whether `text` is `host` or `host:port`. It may be empty, as a `Host` field may.
#[inline]
pub(super) fn is_authority(text: &[u8]) -> bool {
    let rest = after_name(text);
    match rest {
        [] => true,
        [b':', port @ ..] => is_port(port),
        [b'[', literal @ ..] if rest.len() == text.len() => is_literal_and_port(literal),
        _ => false,
    }
}

/// Whether `text` is `host:port`, and neither is empty.
pub(super) fn is_host_and_port(text: &[u8]) -> bool {
    is_authority(text)
        && text.first().is_some_and(|first| *first != b':')
        && text.last().is_some_and(u8::is_ascii_digit)
        && {
            let end = text.iter().rposition(|byte| *byte == b':' || *byte == b']');
            end.is_some_and(|end| text[end] == b':')
        }
}

/// Skips a name or an IPv4 address. Commas in names are refused, although RFC 3986 allows them: they may come from two joined
/// fields.
#[inline]
fn after_name(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !NAME[usize::from(*byte)]).unwrap_or(text.len());
    &text[end..]
}

static NAME: [bool; 256] = {
    let mut table = [false; 256];
    let allowed = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%!$&'()*+;=";
    let mut index = 0;
    while index < allowed.len() {
        table[allowed[index] as usize] = true;
        index += 1;
    }
    table
};

/// Checks the rest of an address in brackets, and an optional port.
fn is_literal_and_port(text: &[u8]) -> bool {
    let Some(end) = text.iter().position(|byte| *byte == b']') else { return false };
    let (address, rest) = (&text[..end], &text[end + 1..]);
    let is_address = str::from_utf8(address).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok());
    is_address && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
}

/// Whether it is a port, which may be empty.
#[inline]
fn is_port(text: &[u8]) -> bool {
    let mut number = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        number = number * 10 + u32::from(digit);
        if digit > 9 || number > 65_535 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_with_or_without_a_port() {
        for good in
            ["", "localhost", "example.org:80", "example.org:", "127.0.0.1:8080", "[::1]", "[::1]:80", "a_b", "%41"]
        {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        let bad = [
            "a b",
            "a,b",
            "user@host",
            "a/b",
            "a:b",
            "a:80:80",
            "a:65536",
            "[::1",
            "[::1]x",
            "[zz]",
            "::1",
            "a?b",
            "a#b",
            "ä",
        ];
        for bad in bad {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn connect_needs_both_host_and_port() {
        assert!(is_host_and_port(b"example.org:443") && is_host_and_port(b"[::1]:443"));
        for bad in ["example.org", "example.org:", ":443", ""] {
            assert!(!is_host_and_port(bad.as_bytes()), "{bad}");
        }
    }
}
