//! Hosts, as the `Host` field and request targets name them (RFC 3986, section 3.2).

/// Whether `text` is `host` or `host:port`. It may be empty, as a `Host` field may.
#[inline]
pub(super) fn is_authority(text: &[u8]) -> bool {
    split(text).is_some()
}

/// Whether `text` is `host:port`, and neither is empty.
pub(super) fn is_host_and_port(text: &[u8]) -> bool {
    matches!(split(text), Some((host, Some(port))) if !host.is_empty() && !port.is_empty())
}

type HostAndPort<'a> = (&'a [u8], Option<&'a [u8]>);

#[inline]
fn split(text: &[u8]) -> Option<HostAndPort<'_>> {
    let (host, rest) = match text {
        [b'[', literal @ ..] => {
            let end = literal.iter().position(|byte| *byte == b']')?;
            let (inside, rest) = (&literal[..end], &literal[end + 1..]);
            if !is_ip_literal(inside) {
                return None;
            }
            (&text[..end + 2], rest)
        }
        _ => {
            // Names and IPv4 addresses, up to the port. Commas are left out, though RFC 3986 has them: two fields that somebody has
            // joined look so.
            let end = text.iter().position(|byte| !NAME[usize::from(*byte)]).unwrap_or(text.len());
            text.split_at(end)
        }
    };
    match rest {
        [] => Some((host, None)),
        [b':', port @ ..] if is_port(port) => Some((host, Some(port))),
        _ => None,
    }
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

fn is_ip_literal(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

#[inline]
fn is_port(text: &[u8]) -> bool {
    // Five digits do not overflow.
    let digits = text.len() <= 5 && text.iter().all(u8::is_ascii_digit);
    digits && text.iter().fold(0, |number, byte| number * 10 + u32::from(byte - b'0')) <= 65_535
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
