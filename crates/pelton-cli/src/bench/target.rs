//! The target of a load.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::str::FromStr;

use pelton::Address;

/// A URL that can be requested: `http://host:port/path?query`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    host: String,
    port: u16,
    /// The value of the `Host` field.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        let wrong = || "use http://host:port/path".to_owned();
        if text.starts_with("https://") {
            return Err("TLS is not supported yet; use http://host:port/path".to_owned());
        }
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("percent-encode spaces and non-ASCII characters, as in %20".to_owned());
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("put credentials into a header: -H 'Authorization: …'".to_owned());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(wrong());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Url { host: host.to_owned(), port, authority: authority.to_owned(), target })
    }
}

impl Url {
    /// Returns the address to connect to: the Unix socket if there is one, whatever the URL says.
    pub fn address(&self, unix: Option<&Path>) -> Result<Address, String> {
        if let Some(path) = unix {
            return Ok(Address::Unix(path.to_owned()));
        }
        let mut addresses = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| format!("look up {}: {error}", self.host))?;
        addresses.next().map(Address::Tcp).ok_or_else(|| format!("look up {}: it has no address", self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_their_parts() {
        let url = |text: &str| text.parse::<Url>().unwrap();
        let parts = |text: &str| {
            let url = url(text);
            (url.host, url.port, url.authority, url.target)
        };
        let own = |host: &str, port, authority: &str, target: &str| {
            (host.to_owned(), port, authority.to_owned(), target.to_owned())
        };
        assert_eq!(parts("http://a"), own("a", 80, "a", "/"));
        assert_eq!(parts("http://a:81/b/c?d=e#f"), own("a", 81, "a:81", "/b/c?d=e"));
        assert_eq!(parts("http://[::1]:81?x"), own("::1", 81, "[::1]:81", "/?x"));
        assert_eq!(parts("http://[::1]/"), own("::1", 80, "[::1]", "/"));
        for nonsense in ["", "a", "https://a/", "http://", "http://:80/", "http://a:b/", "http://u@a/", "http://a/ b"] {
            assert!(nonsense.parse::<Url>().is_err(), "{nonsense}");
        }
        assert!("https://a/".parse::<Url>().unwrap_err().contains("TLS"));
    }
}
