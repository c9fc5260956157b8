//! Socket addresses, in the system's format and in Python's.

use std::fmt::Display;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString, PyTuple};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix};

use pelton_cpython::call::OrRaise;
use pelton_cpython::object::Result;

/// An address of one end of a socket, if it is of a common kind.
#[derive(Clone, Copy)]
pub(crate) enum Peer {
    V4(Ipv4Addr, u16),
    V6 {
        host: Ipv6Addr,
        port: u16,
        flow: u32,
        scope: u32,
    },
    /// A Unix socket that is not bound to anything.
    Unnamed,
    Other,
    /// The system does not report it.
    Unknown,
}

impl Peer {
    /// Converts the address that a system call returned. Unix sockets that are not bound to anything may have none.
    pub(crate) fn of(address: Option<&SocketAddrAny>) -> Peer {
        let Some(address) = address else { return Peer::Unnamed };
        match address.address_family() {
            AddressFamily::INET => SocketAddrV4::try_from(address.clone())
                .map_or(Peer::Other, |address| Peer::V4(*address.ip(), address.port())),
            AddressFamily::INET6 => SocketAddrV6::try_from(address.clone()).map_or(Peer::Other, |address| Peer::V6 {
                host: *address.ip(),
                port: address.port(),
                flow: u32::from_be(address.flowinfo()),
                scope: address.scope_id(),
            }),
            AddressFamily::UNIX if has_no_name(address) => Peer::Unnamed,
            _ => Peer::Other,
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        match address {
            SocketAddr::V4(address) => Peer::V4(*address.ip(), address.port()),
            SocketAddr::V6(address) => Peer::V6 {
                host: *address.ip(),
                port: address.port(),
                flow: u32::from_be(address.flowinfo()),
                scope: address.scope_id(),
            },
        }
    }
}

/// Returns whether the address of a Unix socket is empty.
fn has_no_name(address: &SocketAddrAny) -> bool {
    SocketAddrUnix::try_from(address.clone()).is_ok_and(|address| {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if address.abstract_name().is_some_and(|name| !name.is_empty()) {
            return false;
        }
        address.path().is_none()
    })
}

/// Length of the longest address in characters: IPv6 with an embedded IPv4 address.
const LONGEST: usize = 45;

/// Converts an address to Python's format; `None` for an uncommon kind, which Python must look up.
pub(crate) fn to_python<'py>(py: Python<'py>, peer: &Peer) -> Result<Bound<'py, PyAny>> {
    let text = |host: &dyn Display| {
        let mut text = [0; LONGEST];
        let mut rest = &mut text[..];
        // `text` has room for any address.
        let _ = write!(rest, "{host}");
        let len = LONGEST - rest.len();
        PyString::new(py, str::from_utf8(&text[..len]).unwrap_or_default())
    };
    match peer {
        Peer::V4(host, port) => (text(host), *port).into_pyobject(py).map(Bound::into_any).or_raise(py),
        Peer::V6 { host, port, flow, scope } => {
            (text(host), *port, *flow, *scope).into_pyobject(py).map(Bound::into_any).or_raise(py)
        }
        Peer::Unnamed => Ok(PyString::new(py, "").into_any()),
        Peer::Other | Peer::Unknown => Ok(py.None().into_bound(py)),
    }
}

/// Returns host and port of an address tuple if the host needs no name resolution.
pub(crate) fn literal(address: &Bound<'_, PyAny>) -> Option<SocketAddr> {
    let address = address.cast_exact::<PyTuple>().ok().filter(|address| address.len() == 2)?;
    host_and_port(&address.get_item(0).ok()?, &address.get_item(1).ok()?)
}

/// Returns the address for a host and a port if the host needs no name resolution.
pub(crate) fn host_and_port(host: &Bound<'_, PyAny>, port: &Bound<'_, PyAny>) -> Option<SocketAddr> {
    let (host, port) = (host.cast_exact::<PyString>().ok()?, port.cast_exact::<PyInt>().ok()?);
    // If the text cannot be encoded, name resolution raises the right error.
    let host = host.to_str().ok()?.parse::<IpAddr>().ok()?;
    // asyncio raises the error for a port that is out of range.
    Some(SocketAddr::new(host, port.extract::<u16>().ok()?))
}
