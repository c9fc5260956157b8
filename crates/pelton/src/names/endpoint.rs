//! Endpoints to connect to: an address, or a name to look up.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use pelton_os::Address;

/// An endpoint to [connect to](crate::Reactor::connect_to): an address, or a host name and a port.
///
/// ```
/// use pelton::{Address, Endpoint};
///
/// assert!(matches!("127.0.0.1:80".parse()?, Endpoint::Address(Address::Tcp(_))));
/// assert!(matches!("unix:/run/some.sock".parse()?, Endpoint::Address(Address::Unix(_))));
/// assert_eq!("localhost:80".parse::<Endpoint>()?, Endpoint::name("localhost", 80));
/// assert!("localhost".parse::<Endpoint>().is_err());
/// # Ok::<(), pelton::BadEndpoint>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// An address, which needs no lookup.
    Address(Address),
    /// A name, which is looked up when connecting.
    Name {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
}

/// The text is not a valid [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid endpoint; write example.org:80, 127.0.0.1:80, [::1]:80, unix:/path or unix:@name")]
pub struct BadEndpoint(String);

impl Endpoint {
    /// Creates an endpoint from a host name and a port.
    pub fn name(host: impl Into<String>, port: u16) -> Endpoint {
        Endpoint::Name { host: host.into(), port }
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Endpoint, BadEndpoint> {
        if let Ok(address) = text.parse() {
            return Ok(Endpoint::Address(address));
        }
        let name = text.rsplit_once(':').and_then(|(host, port)| Some((host_in(host)?, port.parse().ok()?)));
        name.map(|(host, port)| Endpoint::name(host, port)).ok_or_else(|| BadEndpoint(text.to_owned()))
    }
}

/// Returns the host to look up. A host in brackets is an IPv6 address with an interface name, which only a lookup can
/// resolve.
fn host_in(text: &str) -> Option<&str> {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|inside| inside.contains("::") && inside.contains('%')),
        None => {
            let impossible = |letter: char| letter.is_whitespace() || letter.is_control() || "/:@[]".contains(letter);
            (!text.is_empty() && !text.contains(impossible)).then_some(text)
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Address(address) => write!(f, "{address}"),
            Endpoint::Name { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl From<Address> for Endpoint {
    fn from(address: Address) -> Endpoint {
        Endpoint::Address(address)
    }
}

impl From<&Address> for Endpoint {
    fn from(address: &Address) -> Endpoint {
        Endpoint::Address(address.clone())
    }
}

/// Creates an endpoint from a host name or address and a port.
///
/// ```
/// use pelton::Endpoint;
///
/// assert_eq!(Endpoint::try_from(("localhost", 80))?, "localhost:80".parse()?);
/// assert_eq!(Endpoint::try_from(("::1", 80))?, "[::1]:80".parse()?);
/// assert!(Endpoint::try_from(("localhost:80", 80)).is_err());
/// # Ok::<(), pelton::BadEndpoint>(())
/// ```
impl TryFrom<(&str, u16)> for Endpoint {
    type Error = BadEndpoint;

    fn try_from((host, port): (&str, u16)) -> Result<Endpoint, BadEndpoint> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Endpoint::Address(SocketAddr::new(address, port).into()));
        }
        let is_host = !host.starts_with('[') && host_in(host).is_some();
        if is_host { Ok(Endpoint::name(host, port)) } else { Err(BadEndpoint(format!("{host}:{port}"))) }
    }
}

impl TryFrom<(String, u16)> for Endpoint {
    type Error = BadEndpoint;

    fn try_from((host, port): (String, u16)) -> Result<Endpoint, BadEndpoint> {
        (host.as_str(), port).try_into()
    }
}

impl From<(IpAddr, u16)> for Endpoint {
    fn from((address, port): (IpAddr, u16)) -> Endpoint {
        Endpoint::Address(SocketAddr::new(address, port).into())
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint::Address(address.into())
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Endpoint {
        endpoint.clone()
    }
}

impl TryFrom<&str> for Endpoint {
    type Error = BadEndpoint;

    fn try_from(text: &str) -> Result<Endpoint, BadEndpoint> {
        text.parse()
    }
}

impl TryFrom<&String> for Endpoint {
    type Error = BadEndpoint;

    fn try_from(text: &String) -> Result<Endpoint, BadEndpoint> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_round_trip_as_text() {
        for text in ["example.org:80", "localhost:8080", "xn--bcher-kva.example:1", "[fe80::1%eth0]:80", "127.1:80"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert!(matches!(endpoint, Endpoint::Name { .. }), "{endpoint:?}");
            assert_eq!(endpoint.to_string(), text);
        }
        for text in ["127.0.0.1:80", "[::1]:443", "[fe80::1%2]:80", "unix:/tmp/a.sock", "unix:@name"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert!(matches!(endpoint, Endpoint::Address(_)), "{endpoint:?}");
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn invalid_text_is_included_in_the_error() {
        let texts = [
            "",
            "80",
            ":80",
            "localhost",
            "localhost:",
            "localhost:http",
            "localhost:65536",
            "::1:80",
            "[::1]",
            "[localhost]:80",
            "[fe80::1%eth0:80",
            "http://example.org:80",
            "two words:80",
            "unix:",
            "unix:@",
        ];
        for text in texts {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} ")), "{error}");
        }
    }
}
