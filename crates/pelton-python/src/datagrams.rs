//! Datagrams over IP: receiving them, and sending them to addresses that need no looking up.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use crate::addresses;
use crate::fields;
use crate::guards;
use crate::known::known;
use crate::object::{Owned, Raised, Result, raise_io};
use crate::syscalls::{self, is_not_now};

/// Datagrams that are received before others get their turn.
const AT_ONCE: usize = 32;

/// `_receive_datagrams(transport, fd)`: tells the transport's protocol of datagrams, for as long as there are any and it wants them.
/// False if somebody has replaced methods of sockets, and asyncio's own way has to be gone.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn receive(_: *mut PyObject, [transport, fd]: [*mut PyObject; 2]) -> Result<bool> {
    // SAFETY: as the caller says; whoever calls keeps them.
    unsafe {
        if !guards::methods_are_original()? {
            return Ok(false);
        }
        let names = &known().names;
        let fd = fields::whole(fd)? as RawFd;
        for _ in 0..AT_ONCE {
            for flag in [names._conn_lost, names._paused] {
                let flag = Owned::returned(ffi::PyObject_GetAttr(transport, flag))?;
                if fields::truth(flag.as_ptr())? {
                    return Ok(true);
                }
            }
            let protocol = Owned::returned(ffi::PyObject_GetAttr(transport, names._protocol))?;
            match syscalls::receive_datagram(fd, syscalls::RECEIVE) {
                Ok((data, peer)) => {
                    let (data, address) = (data?, addresses::to_python(&peer)?);
                    let arguments = [protocol.as_ptr(), data.as_ptr(), address.as_ptr()];
                    let told =
                        ffi::PyObject_VectorcallMethod(names.datagram_received, arguments.as_ptr(), 3, null_mut());
                    drop(Owned::returned(told)?);
                }
                Err(error) if is_not_now(&error) => return Ok(true),
                Err(error) => {
                    let Raised = raise_io(&error);
                    return Python::attach(|py| {
                        let raised = PyErr::fetch(py);
                        let arguments = [protocol.as_ptr(), raised.value(py).as_ptr()];
                        let told =
                            ffi::PyObject_VectorcallMethod(names.error_received, arguments.as_ptr(), 2, null_mut());
                        Owned::returned(told).map(|_| true)
                    });
                }
            }
        }
        Ok(true)
    }
}

/// `_send_datagram(fd, data, address)`: whether it was sent. If not, because there is no room, because the address has to be looked
/// up, because sockets are guarded, or for an error, asyncio's own way has to be gone.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn send(_: *mut PyObject, [fd, data, address]: [*mut PyObject; 3]) -> Result<bool> {
    // SAFETY: as the caller says. Data that is `bytes` stays where it is.
    unsafe {
        if ffi::PyBytes_CheckExact(data) == 0 || guards::is_guarded()? {
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
