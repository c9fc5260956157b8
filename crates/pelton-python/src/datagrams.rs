//! Datagrams over IP: receiving them, and sending them to addresses that need no looking up.

use std::ffi::{CStr, c_int};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::addresses;
use crate::fields;
use crate::object::{Owned, Raised, Result, none, pointer, raise_io};
use crate::panic::guard;
use crate::syscalls::{self, is_not_now};

/// `_recv_datagram(fd)`: a datagram and the address that it comes from, or `None`.
pub(crate) unsafe extern "C" fn receive(_: *mut PyObject, fd: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live argument.
        pointer(unsafe {
            (|| match syscalls::receive_datagram(fields::whole(fd)? as RawFd) {
                Ok((data, peer)) => {
                    let (data, address) = (data?, addresses::to_python(&peer)?);
                    Owned::returned(ffi::PyTuple_Pack(2, data.as_ptr(), address.as_ptr()))
                }
                Err(error) if is_not_now(&error) => Owned::returned(none()),
                Err(error) => Err(raise_io(&error)),
            })()
        })
    })
}

/// `_send_datagram(fd, data, address)`: whether it was sent. If not, because there is no room, because the address has to be looked
/// up, or for an error, asyncio's own way has to be gone.
pub(crate) unsafe extern "C" fn send(
    _: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with that many live arguments. Data that is `bytes` stays where it is.
        unsafe {
            let sent: Result<bool> = (|| {
                debug_assert_eq!(count, 3);
                let (fd, data, address) = (*arguments, *arguments.add(1), *arguments.add(2));
                if ffi::PyBytes_CheckExact(data) == 0 {
                    return Ok(false);
                }
                let fd = fields::whole(fd)? as RawFd;
                let len = ffi::PyBytes_Size(data) as usize;
                let bytes = std::slice::from_raw_parts(ffi::PyBytes_AsString(data).cast::<u8>(), len);
                let outcome = if address == ffi::Py_None() {
                    syscalls::send(fd, bytes)
                } else {
                    match literal(address)? {
                        Some((IpAddr::V4(host), port)) => syscalls::send_to_v4(fd, bytes, host, port),
                        Some((IpAddr::V6(host), port)) => syscalls::send_to_v6(fd, bytes, host, port),
                        None => return Ok(false),
                    }
                };
                Ok(is_sent(outcome))
            })();
            sent.map_or(null_mut(), |sent| ffi::PyBool_FromLong(c_int::from(sent).into()))
        }
    })
}

fn is_sent(outcome: io::Result<usize>) -> bool {
    // Who goes asyncio's way will find the same error, and knows whom to tell.
    outcome.is_ok()
}

/// Host and port of an address of two parts, of which the first needs no looking up.
unsafe fn literal(address: *mut PyObject) -> Result<Option<(IpAddr, u16)>> {
    // SAFETY: the address is alive, and so are its items: a tuple does not change.
    unsafe {
        if ffi::PyTuple_CheckExact(address) == 0 || ffi::PyTuple_GET_SIZE(address) != 2 {
            return Ok(None);
        }
        let (host, port) = (ffi::PyTuple_GET_ITEM(address, 0), ffi::PyTuple_GET_ITEM(address, 1));
        if ffi::PyUnicode_CheckExact(host) == 0 || ffi::PyLong_CheckExact(port) == 0 {
            return Ok(None);
        }
        let text = ffi::PyUnicode_AsUTF8(host);
        if text.is_null() {
            return Err(Raised);
        }
        let Ok(text) = CStr::from_ptr(text).to_str() else { return Ok(None) };
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
        Ok(u16::try_from(port).ok().map(|port| (host, port)))
    }
}
