//! Calls the methods of a stream transport's socket object while methods of `socket.socket` are replaced, as asyncio does.
//!
//! Sockets of a class that overrides such methods have asyncio's own transport.

use std::io;

use pyo3::exceptions::{PyBlockingIOError, PyBufferError, PyInterruptedError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use super::extra_info;
use super::stream::Stream;
use crate::known::name;
use crate::sockets::guards;
use crate::sockets::syscalls::RECEIVE;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise, raised_a};
use pelton_cpython::object::{Raised, Result};

/// Returns the socket object if its methods must be called. A transport that is closed has none.
#[inline]
pub(crate) fn replaced<'py>(py: Python<'py>, stream: &Stream) -> Result<Option<Bound<'py, PyAny>>> {
    if guards::methods_are_original(py)? {
        return Ok(None);
    }
    if stream.own.borrow().is_none() && (stream.gone.get() || stream.sock.is_empty()) {
        return Ok(None);
    }
    extra_info::socket_object(py, stream).map(Some)
}

/// Calls a method. Turns the exceptions for a socket that is not ready into `WouldBlock`.
fn call<'py>(
    sock: &Bound<'py, PyAny>,
    method: &Bound<'py, PyString>,
    argument: &Bound<'py, PyAny>,
) -> Result<io::Result<Bound<'py, PyAny>>> {
    let py = sock.py();
    sock.method_one(method, argument).map(Ok).or_else(|Raised| {
        if !raised_a::<PyBlockingIOError>(py) && !raised_a::<PyInterruptedError>(py) {
            return Err(Raised);
        }
        clear_raised(py);
        Ok(Err(io::ErrorKind::WouldBlock.into()))
    })
}

/// Converts the result of such a call to a number of bytes. A number out of range, which only a broken method
/// returns, is clamped.
fn count(answer: Result<io::Result<Bound<'_, PyAny>>>, most: usize) -> Result<io::Result<usize>> {
    match answer? {
        Ok(answer) => Ok(Ok((answer.whole()?.max(0) as usize).min(most))),
        Err(error) => Ok(Err(error)),
    }
}

/// `sock.recv(size)`: returns its result unchanged.
pub(crate) fn receive<'py>(sock: &Bound<'py, PyAny>) -> Result<io::Result<Bound<'py, PyAny>>> {
    let py = sock.py();
    let size = RECEIVE.into_pyobject(py).or_raise(py)?;
    call(sock, name!(py, recv), &size)
}

/// `sock.recv_into(buffer)` for a buffer of `len` bytes: returns how many were received.
pub(crate) fn receive_into<'py>(
    sock: &Bound<'py, PyAny>,
    buffer: &Bound<'py, PyAny>,
    len: usize,
) -> Result<io::Result<usize>> {
    count(call(sock, name!(sock.py(), recv_into), buffer), len)
}

/// Receives into a buffer, as asyncio does for TLS, and returns a `bytes` object.
pub(crate) fn receive_copy<'py>(sock: &Bound<'py, PyAny>) -> Result<io::Result<Bound<'py, PyBytes>>> {
    let py = sock.py();
    let buffer = PyByteArray::new(py, &vec![0; RECEIVE]);
    let received = match receive_into(sock, &buffer, RECEIVE)? {
        Ok(received) => received,
        Err(error) => return Ok(Err(error)),
    };
    // The method may have done anything with the buffer.
    match buffer.to_vec().get(..received) {
        Some(received) => Ok(Ok(PyBytes::new(py, received))),
        None => Err(raise::<PyBufferError>(py, "recv_into() changed the size of its buffer")),
    }
}

/// `sock.send(data)` for `len` bytes: returns how many were sent.
pub(crate) fn send<'py>(sock: &Bound<'py, PyAny>, data: &Bound<'py, PyAny>, len: usize) -> Result<io::Result<usize>> {
    count(call(sock, name!(sock.py(), send), data), len)
}
