//! URLs: `http`, `https`, and `http+unix` for Unix sockets.
//!
//! Only what every reader understands in the same way is accepted. Hosts are ASCII; internationalized names are written in their
//! `xn--` form. Fragments are dropped, since they are never sent.

mod parse;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use pelton::{Address, Endpoint};

use super::buffer::Buffer;
use parse::{append, parse};

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
