//! Socket addresses, in the system's format and in Python's.

use std::ffi::c_int;
use std::fmt::Display;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::slice;

use pyo3::ffi::{self, PyObject};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix};

use pelton_cpython::object::{Owned, Result, none};

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
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn to_python(peer: &Peer) -> Result<Owned> {
    // SAFETY: the caller holds the lock. Text is passed by pointer and length, and the formats match their arguments.
    unsafe {
        let text = |host: &dyn Display| {
            let mut text = [0; LONGEST];
            let mut rest = &mut text[..];
            // `text` has room for any address.
            let _ = write!(rest, "{host}");
            let len = LONGEST - rest.len();
            Owned::returned(ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), len as ffi::Py_ssize_t))
        };
        Owned::returned(match peer {
            Peer::V4(host, port) => {
                let (host, port) = (text(host)?, Owned::returned(ffi::PyLong_FromLong((*port).into()))?);
                ffi::PyTuple_Pack(2, host.as_ptr(), port.as_ptr())
            }
            Peer::V6 { host, port, flow, scope } => {
                let host = text(host)?;
                ffi::Py_BuildValue(c"(OiII)".as_ptr(), host.as_ptr(), c_int::from(*port), *flow, *scope)
            }
            Peer::Unnamed => ffi::PyUnicode_FromStringAndSize(c"".as_ptr(), 0),
            Peer::Other | Peer::Unknown => none(),
        })
    }
}

/// Returns host and port of an address tuple if the host needs no name resolution.
///
/// # Safety
/// `address` is alive.
pub(crate) unsafe fn literal(address: *mut PyObject) -> Result<Option<SocketAddr>> {
    // SAFETY: the caller guarantees that the address is alive. A tuple is immutable and keeps its items alive.
    unsafe {
        if ffi::PyTuple_CheckExact(address) == 0 || ffi::PyTuple_GET_SIZE(address) != 2 {
            return Ok(None);
        }
        host_and_port(ffi::PyTuple_GET_ITEM(address, 0), ffi::PyTuple_GET_ITEM(address, 1))
    }
}

/// Returns the address for a host and a port if the host needs no name resolution.
///
/// # Safety
/// Both are alive.
pub(crate) unsafe fn host_and_port(host: *mut PyObject, port: *mut PyObject) -> Result<Option<SocketAddr>> {
    // SAFETY: the caller guarantees that both are alive. The UTF-8 form lives as long as the string.
    unsafe {
        if ffi::PyUnicode_CheckExact(host) == 0 || ffi::PyLong_CheckExact(port) == 0 {
            return Ok(None);
        }
        let mut len = 0;
        let text = ffi::PyUnicode_AsUTF8AndSize(host, &mut len);
        if text.is_null() {
            // The text cannot be encoded. Name resolution raises the right error.
            ffi::PyErr_Clear();
            return Ok(None);
        }
        let text = slice::from_raw_parts(text.cast::<u8>(), len as usize);
        let Ok(text) = str::from_utf8(text) else { return Ok(None) };
        let host = match text.parse::<Ipv4Addr>() {
            Ok(host) => IpAddr::V4(host),
            Err(_) => match text.parse::<Ipv6Addr>() {
                Ok(host) => IpAddr::V6(host),
                Err(_) => return Ok(None),
            },
        };
        // asyncio raises the error for a port that is out of range.
        let overflow = &mut 0;
        let port = ffi::PyLong_AsLongLongAndOverflow(port, overflow);
        Ok(u16::try_from(port).ok().map(|port| SocketAddr::new(host, port)))
    }
}
