//! Addresses, as the system has them and as Python has them.

use std::ffi::c_int;
use std::fmt::Display;
use std::io::Write;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::slice;

use pyo3::ffi::{self, PyObject};

use crate::object::{Owned, Result, none};

/// Where something comes from or is, as far as that is common.
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
    /// The system does not say.
    Unknown,
}

impl Peer {
    /// What the system has written into `storage`, `len` bytes of it.
    pub(crate) fn new(storage: &libc::sockaddr_storage, len: libc::socklen_t) -> Peer {
        // SAFETY: the storage is large enough, and aligned, for an address of any family.
        unsafe {
            match c_int::from(storage.ss_family) {
                libc::AF_INET => {
                    let address = &*ptr::from_ref(storage).cast::<libc::sockaddr_in>();
                    Peer::V4(u32::from_be(address.sin_addr.s_addr).into(), u16::from_be(address.sin_port))
                }
                libc::AF_INET6 => {
                    let address = &*ptr::from_ref(storage).cast::<libc::sockaddr_in6>();
                    Peer::V6 {
                        host: address.sin6_addr.s6_addr.into(),
                        port: u16::from_be(address.sin6_port),
                        flow: u32::from_be(address.sin6_flowinfo),
                        scope: address.sin6_scope_id,
                    }
                }
                libc::AF_UNIX if len as usize <= mem::offset_of!(libc::sockaddr_un, sun_path) => Peer::Unnamed,
                _ => Peer::Other,
            }
        }
    }
}

/// Characters of the longest address: of IPv6, with the last part written as IPv4.
const LONGEST: usize = 45;

/// An address as Python's sockets have it; `None` if it is of an uncommon kind, and has to be asked for.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn to_python(peer: &Peer) -> Result<Owned> {
    // SAFETY: the text is what its pointer and length say; the formats are right for what follows.
    unsafe {
        let text = |host: &dyn Display| {
            let mut text = [0; LONGEST];
            let mut rest = &mut text[..];
            // There is room for any.
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

/// Host and port of an address of two parts, of which the first needs no looking up.
///
/// # Safety
/// `address` is alive.
pub(crate) unsafe fn literal(address: *mut PyObject) -> Result<Option<SocketAddr>> {
    // SAFETY: the address is alive, and so are its items: a tuple does not change.
    unsafe {
        if ffi::PyTuple_CheckExact(address) == 0 || ffi::PyTuple_GET_SIZE(address) != 2 {
            return Ok(None);
        }
        host_and_port(ffi::PyTuple_GET_ITEM(address, 0), ffi::PyTuple_GET_ITEM(address, 1))
    }
}

/// A host that needs no looking up, and a port.
///
/// # Safety
/// Both are alive.
pub(crate) unsafe fn host_and_port(host: *mut PyObject, port: *mut PyObject) -> Result<Option<SocketAddr>> {
    // SAFETY: as the caller says; the text is the string's own.
    unsafe {
        if ffi::PyUnicode_CheckExact(host) == 0 || ffi::PyLong_CheckExact(port) == 0 {
            return Ok(None);
        }
        let mut len = 0;
        let text = ffi::PyUnicode_AsUTF8AndSize(host, &mut len);
        if text.is_null() {
            // No text that could be encoded: whoever looks it up has something to say about that.
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
        // One that is no port is for asyncio to complain of.
        let overflow = &mut 0;
        let port = ffi::PyLong_AsLongLongAndOverflow(port, overflow);
        Ok(u16::try_from(port).ok().map(|port| SocketAddr::new(host, port)))
    }
}
