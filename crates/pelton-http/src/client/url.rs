//! URLs: `http`, `https`, and `http+unix` for Unix sockets.
//!
//! Only what every reader understands in the same way is accepted. Hosts are ASCII; internationalized names are written in their
//! `xn--` form. Fragments are dropped, since they are never sent.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use pelton::{Address, Endpoint};

use super::buffer::Buffer;

/// The maximum length of a URL, in bytes. Servers refuse longer request lines anyway.
const LONGEST: usize = 64 * 1024;

/// How a server is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scheme {
    Http,
    Https,
    Unix,
}

impl Scheme {
    fn default_port(self) -> u16 {
        match self {
            Scheme::Http | Scheme::Unix => 80,
            Scheme::Https => 443,
        }
    }
}

/// An absolute URL.
///
/// ```
/// use pelton_http::client::Url;
///
/// let url: Url = "HTTP://Example.org:80/a/../b c?q#here".parse()?;
/// assert_eq!(url.as_str(), "http://example.org/b%20c?q");
/// assert_eq!((url.origin(), url.host(), url.port()), ("http://example.org", "example.org", 80));
/// assert_eq!(url.join("../d?e")?.as_str(), "http://example.org/d?e");
/// assert!("file:///etc/passwd".parse::<Url>().is_err());
///
/// // A request to a server on a Unix socket.
/// let url: Url = "http+unix://%2Frun%2Fapp.sock/status".parse()?;
/// assert_eq!(url.target(), "/status");
/// # Ok::<(), pelton_http::client::BadUrl>(())
/// ```
#[derive(Clone)]
pub struct Url {
    /// The URL, normalized: ASCII, without credentials, default port and fragment.
    text: Buffer,
    scheme: Scheme,
    host: (u32, u32),
    port: u16,
    /// Where the target begins.
    target: u32,
    credentials: Option<Box<str>>,
}

/// The text is not a URL that a client can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?}: {why}")]
pub struct BadUrl {
    /// The URL, without credentials, shortened if it is long.
    pub url: Box<str>,
    /// What is wrong with it.
    pub why: &'static str,
}

impl BadUrl {
    fn new(text: &str, why: &'static str) -> BadUrl {
        const SHOWN: usize = 200;
        let end = text.find(['?', '#']).unwrap_or(text.len());
        // Whatever precedes an @ may be a password.
        let shown = text[..end].rsplit('@').next().unwrap_or_default();
        let shortened: String = shown.chars().take(SHOWN).collect();
        BadUrl { url: shortened.into(), why }
    }

    pub(super) fn unsupported_proxy(text: &str) -> BadUrl {
        BadUrl::new(text, "a proxy is http:// or socks5://")
    }
}

impl Url {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Url, BadUrl> {
        parse(text).map_err(|why| BadUrl::new(text, why))
    }

    /// Resolves a reference, such as that of a redirect, relative to this URL.
    pub fn join(&self, reference: &str) -> Result<Url, BadUrl> {
        self.resolve(reference).map_err(|why| BadUrl::new(reference, why))
    }

    /// The URL, without credentials and fragment.
    pub fn as_str(&self) -> &str {
        self.text.text(0..self.text.len() as u32)
    }

    /// Scheme, host, and the port if it is not the default one: `https://example.org`.
    pub fn origin(&self) -> &str {
        self.text.text(0..self.target)
    }

    /// The host: a name in lower case, or an address. An IPv6 address is in brackets. For a Unix socket, its escaped path.
    pub fn host(&self) -> &str {
        self.text.text(self.host.0..self.host.1)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.text.text(self.target..self.text.len() as u32)
    }

    /// The path.
    pub fn path(&self) -> &str {
        let target = self.target();
        &target[..target.find('?').unwrap_or(target.len())]
    }

    /// The query, without the question mark.
    pub fn query(&self) -> Option<&str> {
        self.target().split_once('?').map(|(_, query)| query)
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// User and password, separated by a colon, if the URL has them.
    pub(super) fn credentials(&self) -> Option<&str> {
        self.credentials.as_deref()
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    pub(super) fn is_same_origin(&self, other: &Url) -> bool {
        self.origin() == other.origin()
    }

    /// The value of the `Host` field.
    pub(super) fn authority(&self) -> &str {
        match self.scheme {
            Scheme::Unix => "localhost",
            _ => self.text.text(self.host.0..self.target),
        }
    }

    /// Whom to connect to.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let host = self.host();
        if self.scheme == Scheme::Unix {
            let path: Vec<u8> = percent_encoding::percent_decode_str(host).collect();
            let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&path);
            return Endpoint::Address(Address::Unix(PathBuf::from(path)));
        }
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => (address, self.port).into(),
            Err(_) => Endpoint::name(host, self.port),
        }
    }

    /// The URL of another target of the same server. Its path and query are valid in a request line.
    pub(crate) fn with_target(&self, parts: [&str; 4]) -> Url {
        let mut text = Buffer::new();
        text.extend_from_slice(&self.text[..self.target as usize]);
        parts.iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
        Url { text, credentials: None, ..*self }
    }

    /// Replaces the query.
    pub(super) fn set_query(&mut self, query: &str) -> Result<(), BadUrl> {
        let path = self.path().len();
        self.text.truncate(self.target as usize + path);
        self.text.push(b'?');
        append(&mut self.text, query).map_err(|why| BadUrl::new(query, why))
    }

    fn resolve(&self, reference: &str) -> Result<Url, &'static str> {
        let end = reference.find(['/', '?', '#']).unwrap_or(reference.len());
        if reference[..end].contains(':') {
            return parse(reference);
        }
        let reference = &reference[..reference.find('#').unwrap_or(reference.len())];
        let text = if reference.starts_with("//") {
            let scheme = match self.scheme {
                Scheme::Http => "http:",
                Scheme::Https => "https:",
                Scheme::Unix => return Err("a server on a Unix socket has no relative hosts"),
            };
            format!("{scheme}{reference}")
        } else if reference.starts_with('/') {
            format!("{}{reference}", self.origin())
        } else if reference.is_empty() {
            return Ok(self.clone());
        } else if reference.starts_with('?') {
            format!("{}{}{reference}", self.origin(), self.path())
        } else {
            let path = self.path();
            let directory = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
            format!("{}{directory}{reference}", self.origin())
        };
        parse(&text)
    }
}

fn parse(text: &str) -> Result<Url, &'static str> {
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
fn append(buffer: &mut Buffer, text: &str) -> Result<(), &'static str> {
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

impl std::str::FromStr for Url {
    type Err = BadUrl;
    fn from_str(text: &str) -> Result<Url, BadUrl> {
        Url::parse(text)
    }
}

impl TryFrom<&str> for Url {
    type Error = BadUrl;
    fn try_from(text: &str) -> Result<Url, BadUrl> {
        Url::parse(text)
    }
}

impl TryFrom<&String> for Url {
    type Error = BadUrl;
    fn try_from(text: &String) -> Result<Url, BadUrl> {
        Url::parse(text)
    }
}

impl TryFrom<String> for Url {
    type Error = BadUrl;
    fn try_from(text: String) -> Result<Url, BadUrl> {
        Url::parse(&text)
    }
}

impl From<&Url> for Url {
    fn from(url: &Url) -> Url {
        url.clone()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl PartialEq for Url {
    fn eq(&self, other: &Url) -> bool {
        self.text.as_slice() == other.text.as_slice()
    }
}

impl Eq for Url {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_normalized() {
        for (text, normal) in [
            ("http://a", "http://a/"),
            ("http://a:80?x", "http://a/?x"),
            ("https://A.b:443/", "https://a.b/"),
            ("https://a:80/", "https://a:80/"),
            ("http://a:/b", "http://a/b"),
            ("http://[::0001]:8080/x", "http://[::1]:8080/x"),
            ("http://127.0.0.1/ä", "http://127.0.0.1/%C3%A4"),
            ("http://a/b#c?d", "http://a/b"),
            ("http://a/./b/../../c/.", "http://a/c/"),
            ("http://a/b/..", "http://a/"),
            ("http://a/.b/..c", "http://a/.b/..c"),
            ("http://a/b//../c", "http://a/b/c"),
            ("http://user:pass@a/b", "http://a/b"),
            ("http://a/?q=\"x y\"", "http://a/?q=%22x%20y%22"),
        ] {
            assert_eq!(Url::parse(text).unwrap().as_str(), normal, "{text}");
        }
    }

    #[test]
    fn ambiguous_urls_are_refused() {
        for text in [
            "",
            "a",
            "/a",
            "http:/a",
            "http://",
            "http:///a",
            "http://:80",
            "http://a:0",
            "http://a:65536",
            "http://a:+80",
            "http://a:80:80",
            "http://a b",
            "http://a\\b",
            "http://ä",
            "http://.a",
            "http://a..b",
            "http://127.1",
            "http://0x7f.1",
            "http://127.0.0.01",
            "http://256.0.0.1",
            "http://[::1",
            "http://[::1]x",
            "http://::1",
            "http://[fe80::1%25eth0]/",
            "http://a@b@c",
            "http://a%0a@b",
            "http://a/\r\nX: y",
            "http://a/\0",
            " http://a",
            "http://a/%",
            "http://a/%zz",
            "file:///etc/passwd",
            "ftp://a",
            "javascript://a",
            "http+unix://run/x",
            "http+unix:///run/x",
            "http+unix://%2Fa%00b/",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
        assert!(Url::parse(&format!("http://a/{}", "x".repeat(LONGEST))).is_err());
        let error = Url::parse("ftp://user:secret@a/b?token=x").unwrap_err().to_string();
        assert_eq!(error, "\"a/b\": the scheme is neither http nor https");
    }

    /// RFC 3986, section 5.4.
    #[test]
    fn references_are_resolved() {
        let base = Url::parse("http://a/b/c/d;p?q").unwrap();
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            (";x", "http://a/b/c/;x"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g/./h", "http://a/b/c/g/h"),
            ("g/../h", "http://a/b/c/h"),
            ("https://b/x", "https://b/x"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
        ] {
            assert_eq!(base.join(reference).unwrap().as_str(), expected, "{reference}");
        }
        for reference in ["file:///etc/passwd", "mailto:a@b", "data:,x", "http:g", "//", "/\n"] {
            assert!(base.join(reference).is_err(), "{reference}");
        }
    }

    #[test]
    fn endpoints_are_addresses_or_names() {
        let endpoint = |text: &str| Url::parse(text).unwrap().endpoint().to_string();
        assert_eq!(endpoint("http://127.0.0.1/"), "127.0.0.1:80");
        assert_eq!(endpoint("https://[::1]/"), "[::1]:443");
        assert_eq!(endpoint("http://example.org:8080/"), "example.org:8080");
        assert_eq!(endpoint("http+unix://%2Frun%2Fa.sock/b"), "unix:/run/a.sock");
        let url = Url::parse("http+unix://%2Frun%2Fa.sock/b").unwrap();
        assert_eq!((url.authority(), url.target()), ("localhost", "/b"));
        assert!(url.join("//example.org/").is_err());
        assert_eq!(url.join("/c").unwrap().as_str(), "http+unix://%2Frun%2Fa.sock/c");
    }

    #[test]
    fn credentials_are_decoded_and_never_shown() {
        let url = Url::parse("http://us%20er:p%3Ass@a/").unwrap();
        assert_eq!(url.credentials(), Some("us er:p:ss"));
        assert!(!format!("{url} {url:?}").contains("ss@"));
        assert!(Url::parse("http://a%3Ab:c@d/").is_err());
    }
}
