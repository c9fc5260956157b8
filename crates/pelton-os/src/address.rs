//! Socket addresses.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use socket2::{Domain, SockAddr};

/// An address to listen on or to connect to: `127.0.0.1:80`, `[::1]:80`, `unix:/run/some.sock`, `unix:@abstract`.
///
/// ```
/// use pelton_os::Address;
///
/// let address: Address = "unix:/run/some.sock".parse()?;
/// assert_eq!(address.to_string(), "unix:/run/some.sock");
/// assert!("localhost".parse::<Address>().is_err());
/// # Ok::<(), pelton_os::BadAddress>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// An IPv4 or IPv6 address and port: TCP for connections, UDP for datagrams.
    Tcp(SocketAddr),
    /// A Unix socket with a path in the file system.
    Unix(PathBuf),
    /// A Unix socket in the abstract namespace. The name disappears with its last user. Linux only.
    Abstract(Vec<u8>),
    /// A Unix socket without a name, usually the end that connected.
    Unnamed,
}

/// Text that is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address; write 127.0.0.1:80, [::1]:80, unix:/path or unix:@name")]
pub struct BadAddress(String);

impl Address {
    /// Returns the port of an IP address.
    ///
    /// ```
    /// use pelton_os::Address;
    ///
    /// assert_eq!("[::1]:8080".parse::<Address>()?.port(), Some(8080));
    /// assert_eq!("unix:/run/some.sock".parse::<Address>()?.port(), None);
    /// # Ok::<(), pelton_os::BadAddress>(())
    /// ```
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Tcp(address) => Some(address.port()),
            _ => None,
        }
    }

    pub(crate) fn to_socket(&self) -> io::Result<(Domain, SockAddr)> {
        match self {
            Address::Tcp(address) => Ok((Domain::for_address(*address), SockAddr::from(*address))),
            Address::Unix(path) => Ok((Domain::UNIX, SockAddr::unix(path)?)),
            Address::Abstract(name) => {
                use std::os::unix::ffi::OsStrExt;
                let name = [b"\0", &name[..]].concat();
                Ok((Domain::UNIX, SockAddr::unix(std::ffi::OsStr::from_bytes(&name))?))
            }
            Address::Unnamed => Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket has no name")),
        }
    }

    /// Converts an address that a system call has returned. Returns `None` for another kind of address.
    pub(crate) fn from_any(address: &rustix::net::SocketAddrAny) -> Option<Address> {
        use rustix::net::{AddressFamily, SocketAddrUnix};
        use std::os::unix::ffi::OsStrExt;

        match address.address_family() {
            AddressFamily::INET | AddressFamily::INET6 => SocketAddr::try_from(address.clone()).ok().map(Address::Tcp),
            AddressFamily::UNIX => {
                let address = SocketAddrUnix::try_from(address.clone()).ok()?;
                #[cfg(any(target_os = "linux", target_os = "android"))]
                if let Some(name) = address.abstract_name().filter(|name| !name.is_empty()) {
                    return Some(Address::Abstract(name.to_owned()));
                }
                let path = address.path_bytes().filter(|path| !path.is_empty());
                Some(path.map_or(Address::Unnamed, |path| Address::Unix(std::ffi::OsStr::from_bytes(path).into())))
            }
            _ => None,
        }
    }

    pub(crate) fn from_socket(address: &SockAddr) -> Address {
        if let Some(address) = address.as_socket() {
            return Address::Tcp(address);
        }
        if let Some(path) = address.as_pathname() {
            return Address::Unix(path.to_owned());
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(name) = address.as_abstract_namespace() {
            return Address::Abstract(name.to_owned());
        }
        Address::Unnamed
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Address {
        address.clone()
    }
}

impl TryFrom<&str> for Address {
    type Error = BadAddress;

    fn try_from(text: &str) -> Result<Address, BadAddress> {
        text.parse()
    }
}

impl TryFrom<&String> for Address {
    type Error = BadAddress;

    fn try_from(text: &String) -> Result<Address, BadAddress> {
        text.parse()
    }
}

impl TryFrom<String> for Address {
    type Error = BadAddress;

    fn try_from(text: String) -> Result<Address, BadAddress> {
        text.parse()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address)
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        match text.strip_prefix("unix:") {
            Some("" | "@") => Err(BadAddress(text.to_owned())),
            Some(name) => Ok(match name.strip_prefix('@') {
                Some(name) => Address::Abstract(name.as_bytes().to_owned()),
                None => Address::Unix(name.into()),
            }),
            None => text.parse().map(Address::Tcp).map_err(|_| BadAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Abstract(name) => write!(f, "unix:@{}", String::from_utf8_lossy(name)),
            Address::Unnamed => f.write_str("unix:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_as_text() {
        for text in ["127.0.0.1:80", "[::1]:443", "unix:/tmp/a.sock", "unix:@name"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "80", "localhost:80", "unix:", "unix:@", "1.2.3.4"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
