//! Datagrams over IP: receiving them, and sending them to addresses that need no looking up.

use std::os::fd::RawFd;

use pyo3::ffi::{self, PyObject};

use crate::addresses;
use crate::fields;
use crate::object::{Owned, Result, none, raise_io};
use crate::syscalls::{self, is_not_now};

/// `_recv_datagram(fd)`: a datagram and the address that it comes from, or `None`.
///
/// # Safety
/// The argument is alive.
pub(crate) unsafe fn receive(_: *mut PyObject, fd: *mut PyObject) -> Result<Owned> {
    // SAFETY: as the caller says.
    unsafe {
        match syscalls::receive_datagram(fields::whole(fd)? as RawFd, syscalls::RECEIVE) {
            Ok((data, peer)) => {
                let (data, address) = (data?, addresses::to_python(&peer)?);
                Owned::returned(ffi::PyTuple_Pack(2, data.as_ptr(), address.as_ptr()))
            }
            Err(error) if is_not_now(&error) => Owned::returned(none()),
            Err(error) => Err(raise_io(&error)),
        }
    }
}

/// `_send_datagram(fd, data, address)`: whether it was sent. If not, because there is no room, because the address has to be looked
/// up, or for an error, asyncio's own way has to be gone.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn send(_: *mut PyObject, [fd, data, address]: [*mut PyObject; 3]) -> Result<bool> {
    // SAFETY: as the caller says. Data that is `bytes` stays where it is.
    unsafe {
        if ffi::PyBytes_CheckExact(data) == 0 {
            return Ok(false);
        }
        let fd = fields::whole(fd)? as RawFd;
        let len = ffi::PyBytes_Size(data) as usize;
        let bytes = std::slice::from_raw_parts(ffi::PyBytes_AsString(data).cast::<u8>(), len);
        let outcome = if address == ffi::Py_None() {
            syscalls::send(fd, bytes)
        } else {
            match addresses::literal(address)? {
                Some(address) => syscalls::send_to(fd, bytes, address),
                None => return Ok(false),
            }
        };
        // Who goes asyncio's way will find the same error, and knows whom to tell.
        Ok(outcome.is_ok())
    }
}
