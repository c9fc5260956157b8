//! IP datagrams: receiving them, and sending them to addresses that need no name resolution.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use crate::known::known;
use crate::sockets::addresses;
use crate::sockets::guards;
use crate::sockets::syscalls::{self, is_not_now};
use pelton_cpython::fields;
use pelton_cpython::object::{Owned, Raised, Result, raise_io};

/// Maximum number of datagrams received before other callbacks get their turn.
const AT_ONCE: usize = 32;

/// `_receive_datagrams(transport, fd)`: passes datagrams to the transport's protocol until there are none left or the
/// protocol pauses. Returns false if socket methods were replaced and asyncio's own implementation must be used.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn receive(_: *mut PyObject, [transport, fd]: [*mut PyObject; 2]) -> Result<bool> {
    // SAFETY: the caller guarantees that the arguments are alive during the call.
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

/// `_send_datagram(fd, data, address)`: returns whether it was sent. If not, asyncio's own implementation must be used:
/// the socket's buffer is full, the address needs name resolution, sockets are guarded, or there was an error.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn send(_: *mut PyObject, [fd, data, address]: [*mut PyObject; 3]) -> Result<bool> {
    // SAFETY: the caller guarantees that the arguments are alive. A `bytes` object is immutable.
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
        // asyncio's own implementation will see the same error and report it.
        Ok(outcome.is_ok())
    }
}
