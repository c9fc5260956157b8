//! Parses and normalizes URLs.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{LONGEST, Scheme, Url};
use crate::client::buffer::Buffer;

pub(super) fn parse(text: &str) -> Result<Url, &'static str> {
    if text.len() > LONGEST {
        return Err("the URL is too long");
    }
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("the URL has control characters");
    }
    let (scheme, rest) = text.split_once("://").ok_or("not a URL with http:// or https://")?;
    let scheme = match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => Scheme::Http,
        _ if scheme.eq_ignore_ascii_case("https") => Scheme::Https,
        _ if scheme.eq_ignore_ascii_case("http+unix") => Scheme::Unix,
        _ => return Err("the scheme is neither http nor https"),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    let credentials = user.map(credentials).transpose()?;
    let mut buffer = Buffer::new();
    buffer.extend_from_slice(match scheme {
        Scheme::Http => b"http://",
        Scheme::Https => b"https://",
        Scheme::Unix => b"http+unix://",
    });
    let start = buffer.len();
    let port = if scheme == Scheme::Unix {
        socket_path(place, &mut buffer)?;
        scheme.default_port()
    } else {
        let (host, port) = split_port(place)?;
        append_host(host, &mut buffer)?;
        port.unwrap_or(scheme.default_port())
    };
    let host = (start as u32, buffer.len() as u32);
    if port != scheme.default_port() {
        buffer.push(b':');
        buffer.extend_from_slice(itoa::Buffer::new().format(port).as_bytes());
    }
    let begin = buffer.len();
    let target = &target[..target.find('#').unwrap_or(target.len())];
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    if path.is_empty() {
        buffer.push(b'/');
    } else {
        append(&mut buffer, path)?;
        remove_dots(&mut buffer, begin);
    }
    if let Some(query) = query {
        buffer.push(b'?');
        append(&mut buffer, query)?;
    }
    Ok(Url { text: buffer, scheme, host, port, target: begin as u32, credentials })
}

fn credentials(text: &str) -> Result<Box<str>, &'static str> {
    if text.contains('@') {
        return Err("the URL has several @");
    }
    // The first colon separates user and password, and neither may be ambiguous after decoding.
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let decode = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8().map_err(|_| "invalid credentials")?;
        let has_controls = decoded.bytes().any(|byte| byte < b' ' || byte == 0x7f);
        if has_controls { Err("invalid credentials") } else { Ok(decoded.into_owned()) }
    };
    let (user, password) = (decode(user)?, decode(password)?);
    if user.contains(':') { Err("the user has a colon") } else { Ok(format!("{user}:{password}").into()) }
}

fn split_port(place: &str) -> Result<(&str, Option<u16>), &'static str> {
    let after = place.rfind(']').map_or(0, |bracket| bracket + 1);
    match place[after..].rfind(':') {
        None => Ok((place, None)),
        Some(colon) => {
            let (host, port) = (&place[..after + colon], &place[after + colon + 1..]);
            if port.is_empty() {
                return Ok((host, None));
            }
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or("the port is invalid")?;
            Ok((host, Some(port)))
        }
    }
}

fn append_host(host: &str, buffer: &mut Buffer) -> Result<(), &'static str> {
    const LONGEST_NAME: usize = 253;
    if let Some(inside) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let address: Ipv6Addr = inside.parse().map_err(|_| "the IPv6 address is invalid")?;
        buffer.push(b'[');
        buffer.extend_from_slice(address.to_string().as_bytes());
        buffer.push(b']');
        return Ok(());
    }
    if host.is_empty() || host.len() > LONGEST_NAME {
        return Err("the host is missing or too long");
    }
    if !host.is_ascii() {
        return Err("the host is not ASCII; write it in its xn-- form");
    }
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !host.bytes().all(valid) || host.starts_with('.') || host.contains("..") {
        return Err("the host is invalid");
    }
    // Readers disagree on the meaning of 127.1 and 0x7f.0.0.1.
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").or_else(|| last.strip_prefix("0X")).is_some_and(is_hex);
    if is_number && host.parse::<Ipv4Addr>().is_err() {
        return Err("the IPv4 address is invalid");
    }
    buffer.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
    Ok(())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Appends the escaped path of a Unix socket.
fn socket_path(place: &str, buffer: &mut Buffer) -> Result<(), &'static str> {
    let path: Vec<u8> = percent_encoding::percent_decode_str(place).collect();
    if !path.starts_with(b"/") || path.contains(&0) || path.len() > 4096 {
        return Err("the host is not the escaped path of a socket, such as %2Frun%2Fapp.sock");
    }
    append(buffer, place)
}

/// Appends a path or a query. Characters that may not appear in a request line are escaped.
pub(super) fn append(buffer: &mut Buffer, text: &str) -> Result<(), &'static str> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        match byte {
            b'%' if !after.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) => {
                return Err("invalid percent-escape");
            }
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b' ' | 0x80.. => {
                let escaped = [b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
                buffer.extend_from_slice(&escaped);
            }
            _ => buffer.push(byte),
        }
        rest = after;
    }
    Ok(())
}

/// Removes the segments `.` and `..` of the path that begins at `start`.
fn remove_dots(buffer: &mut Buffer, start: usize) {
    if memchr::memmem::find(&buffer[start..], b"/.").is_none() {
        return;
    }
    let path = buffer.split_off(start);
    let mut segments = path[1..].split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." if is_last => buffer.push(b'/'),
            b"." => {}
            b".." => {
                let slash = buffer[start..].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                buffer.truncate(start + slash);
                if is_last {
                    buffer.push(b'/');
                }
            }
            _ => {
                buffer.push(b'/');
                buffer.extend_from_slice(segment);
            }
        }
    }
}
