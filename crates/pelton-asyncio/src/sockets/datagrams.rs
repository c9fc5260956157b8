//! IP datagrams: receiving them, and sending them to addresses that need no name resolution.

use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::event_loop::state::Loop;
use crate::known::name;
use crate::sockets::syscalls::{self, is_not_now};
use crate::sockets::{addresses, guards};
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::{Call, raise_io};
use pelton_cpython::class::This;
use pelton_cpython::object::{Raised, Result};

/// Maximum number of datagrams received before other callbacks get their turn.
const AT_ONCE: usize = 32;

/// `_receive_datagrams(transport, fd)`: passes datagrams to the transport's protocol until there are none left or the
/// protocol pauses. Returns false if socket methods were replaced and asyncio's own implementation must be used.
pub(crate) fn receive<'py>(this: This<'_, 'py, Loop>, [transport, fd]: [Argument<'_, 'py>; 2]) -> Result<bool> {
    let py = this.py();
    if !guards::methods_are_original(py)? {
        return Ok(false);
    }
    let fd = fd.whole()? as RawFd;
    for _ in 0..AT_ONCE {
        for flag in [name!(py, _conn_lost), name!(py, _paused)] {
            if transport.attribute(flag)?.truth()? {
                return Ok(true);
            }
        }
        let protocol = transport.attribute(name!(py, _protocol))?;
        match syscalls::receive_datagram(py, fd, syscalls::RECEIVE) {
            Ok((data, peer)) => {
                let address = addresses::to_python(py, &peer)?;
                protocol.method_two(name!(py, datagram_received), &data, &address)?;
            }
            Err(error) if is_not_now(&error) => return Ok(true),
            Err(error) => {
                let Raised = raise_io(py, &error);
                let raised = PyErr::fetch(py);
                return protocol.method_one(name!(py, error_received), raised.value(py)).map(|_| true);
            }
        }
    }
    Ok(true)
}

/// `_send_datagram(fd, data, address)`: returns whether it was sent. If not, asyncio's own implementation must be used:
/// the socket's buffer is full, the address needs name resolution, sockets are guarded, or there was an error.
pub(crate) fn send<'py>(this: This<'_, 'py, Loop>, [fd, data, address]: [Argument<'_, 'py>; 3]) -> Result<bool> {
    let Ok(data) = data.cast_exact::<PyBytes>() else { return Ok(false) };
    if guards::is_guarded(this.py())? {
        return Ok(false);
    }
    let fd = fd.whole()? as RawFd;
    let outcome = if address.is_none() {
        syscalls::send(fd, data.as_bytes())
    } else {
        match addresses::literal(&address) {
            Some(address) => syscalls::send_to(fd, data.as_bytes(), address),
            None => return Ok(false),
        }
    };
    // asyncio's own implementation will see the same error and report it.
    Ok(outcome.is_ok())
}
