//! Records where a request came from: `Forwarded` (RFC 7239) and `X-Forwarded-*`.

use std::io::Write as _;
use std::net::IpAddr;

use pelton::Address;

use super::Scheme;
use crate::Request;
use crate::client::Buffer;
use crate::wire::token::is_token_text;

/// The lines for the latest request. Most requests on a machine differ in neither address nor host.
#[derive(Clone, Default)]
pub(super) struct Lines {
    of: Option<(Option<IpAddr>, Box<str>)>,
    text: Vec<u8>,
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// Whether a field says where a request came from. Underscores count as hyphens, because applications that see fields as
/// variables cannot tell them apart.
pub(super) fn is_forwarded(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded";
    let is = |start: &[u8], known: &[u8]| {
        start.iter().zip(known).all(|(byte, known)| match byte {
            b'_' => *known == b'-',
            byte => byte.eq_ignore_ascii_case(known),
        })
    };
    match name.len() {
        9 => is(name, b"forwarded") || is(name, b"x-real-ip"),
        length if length >= PREFIX.len() => matches!(name[0], b'x' | b'X') && is(&name[..PREFIX.len()], PREFIX),
        _ => false,
    }
}

/// Appends the lines for a request whose own ones are not believed.
pub(super) fn append(
    out: &mut Buffer,
    lines: &mut Lines,
    request: &Request<'_>,
    peer: Option<&Address>,
    scheme: Scheme,
) {
    let (ip, host) = (ip_of(peer), request.host().unwrap_or_default());
    if !lines.of.as_ref().is_some_and(|(known, of)| *known == ip && **of == *host) {
        lines.of = Some((ip, host.into()));
        lines.text.clear();
        write(&mut lines.text, Believed::default(), ip, host, scheme);
    }
    out.extend_from_slice(&lines.text);
}

/// What a trusted client says.
#[derive(Default)]
struct Believed<'a> {
    forwarded: Vec<&'a [u8]>,
    addresses: Vec<&'a [u8]>,
    host: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
}

/// Appends the lines for a request of a trusted client: what it says, and the client itself.
pub(super) fn append_trusting(out: &mut Buffer, request: &Request<'_>, peer: Option<&Address>, scheme: Scheme) {
    let fields = request.fields();
    let believed = Believed {
        forwarded: fields.all("forwarded").collect(),
        addresses: fields.all("x-forwarded-for").collect(),
        host: fields.get("x-forwarded-host"),
        scheme: fields.get("x-forwarded-proto"),
    };
    write(out, believed, ip_of(peer), request.host().unwrap_or_default(), scheme);
}

fn ip_of(peer: Option<&Address>) -> Option<IpAddr> {
    match peer {
        Some(Address::Tcp(address)) => Some(address.ip().to_canonical()),
        _ => None,
    }
}

/// Whether [`append_trusting`] writes a field. Others of the kind pass as they are.
pub(super) fn is_written(name: &[u8]) -> bool {
    ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

fn write(out: &mut Vec<u8>, believed: Believed<'_>, ip: Option<IpAddr>, host: &str, scheme: Scheme) {
    let list = |out: &mut Vec<u8>, items: &[&[u8]]| {
        for item in items.iter().filter(|item| !item.is_empty()) {
            out.extend_from_slice(item);
            out.extend_from_slice(b", ");
        }
    };
    // Writing to memory cannot fail.
    out.extend_from_slice(b"Forwarded: ");
    list(out, &believed.forwarded);
    let _ = match ip {
        Some(IpAddr::V4(ip)) => write!(out, "for={ip}"),
        Some(IpAddr::V6(ip)) => write!(out, "for=\"[{ip}]\""),
        None => write!(out, "for=unknown"),
    };
    if is_token_text(host.as_bytes()) {
        let _ = write!(out, ";host={host}");
    } else if !host.is_empty() {
        // Valid hosts have neither quotes nor backslashes.
        let _ = write!(out, ";host=\"{host}\"");
    }
    let _ = write!(out, ";proto={}\r\n", scheme.as_str());
    if ip.is_some() || !believed.addresses.is_empty() {
        out.extend_from_slice(b"X-Forwarded-For: ");
        list(out, &believed.addresses);
        match ip {
            Some(ip) => drop(write!(out, "{ip}")),
            None => out.truncate(out.len() - 2),
        }
        out.extend_from_slice(b"\r\n");
    }
    for (name, value) in [
        ("X-Forwarded-Host", believed.host.unwrap_or(host.as_bytes())),
        ("X-Forwarded-Proto", believed.scheme.unwrap_or(scheme.as_str().as_bytes())),
    ] {
        if !value.is_empty() {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_client_host_and_scheme() {
        let text = |believed, ip: Option<&str>, host, scheme| {
            let mut out = Vec::new();
            write(&mut out, believed, ip.map(|ip| ip.parse().unwrap()), host, scheme);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(Believed::default(), Some("192.0.2.1"), "a:80", Scheme::Http),
            "Forwarded: for=192.0.2.1;host=\"a:80\";proto=http\r\nX-Forwarded-For: 192.0.2.1\r\n\
             X-Forwarded-Host: a:80\r\nX-Forwarded-Proto: http\r\n"
        );
        let believed = Believed {
            forwarded: vec![b"for=x", b"", b"for=y"],
            addresses: vec![b"1.1.1.1, 2.2.2.2"],
            host: Some(b"outer"),
            scheme: Some(b"https"),
        };
        assert_eq!(
            text(believed, Some("2001:db8::1"), "a", Scheme::Http),
            "Forwarded: for=x, for=y, for=\"[2001:db8::1]\";host=a;proto=http\r\n\
             X-Forwarded-For: 1.1.1.1, 2.2.2.2, 2001:db8::1\r\nX-Forwarded-Host: outer\r\nX-Forwarded-Proto: https\r\n"
        );
        let unix = Believed { addresses: vec![b"1.1.1.1"], ..Believed::default() };
        let unix = text(unix, None, "", Scheme::Https);
        assert_eq!(
            unix,
            "Forwarded: for=unknown;proto=https\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\n"
        );
    }

    #[test]
    fn spellings_that_applications_confuse_are_recognised() {
        for name in
            ["Forwarded", "X-Forwarded-For", "x_forwarded_for", "X-FORWARDED-ANYTHING", "X-Real_IP", "X-Forwarded"]
        {
            assert!(is_forwarded(name.as_bytes()), "{name}");
        }
        for name in ["Forward", "X-Forward", "XX-Forwarded-For", "Referer", "X-Real-ID", "", "Y-Forwarded-For"] {
            assert!(!is_forwarded(name.as_bytes()), "{name}");
        }
    }
}
