//! Where a connection or a datagram comes from, as Python has it.

use std::ffi::c_int;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;

use pyo3::ffi;

use crate::object::{Owned, Result, none};

/// Where something comes from, as far as that is common.
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

/// An address as Python's sockets have it; `None` if it is of an uncommon kind, and has to be asked for.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn to_python(peer: &Peer) -> Result<Owned> {
    // SAFETY: the formats are right for what follows, and the strings are terminated.
    unsafe {
        Owned::returned(match peer {
            Peer::V4(host, port) => {
                let host = format!("{host}\0");
                ffi::Py_BuildValue(c"(si)".as_ptr(), host.as_ptr(), c_int::from(*port))
            }
            Peer::V6 { host, port, flow, scope } => {
                let host = format!("{host}\0");
                ffi::Py_BuildValue(c"(siII)".as_ptr(), host.as_ptr(), c_int::from(*port), *flow, *scope)
            }
            Peer::Unnamed => ffi::PyUnicode_FromStringAndSize(c"".as_ptr(), 0),
            Peer::Other => none(),
        })
    }
}
