//! Calls the methods of a stream transport's socket object while methods of `socket.socket` are replaced, as asyncio does.
//!
//! Sockets of a class that overrides such methods have asyncio's own transport.

use std::io;
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use super::extra_info;
use super::stream::Stream;
use crate::known::known;
use crate::sockets::guards;
use crate::sockets::syscalls::RECEIVE;
use pelton_cpython::fields;
use pelton_cpython::object::{Owned, Raised, Result, raise};

/// Returns the socket object if its methods must be called. A transport that is closed has none.
///
/// # Safety
/// `stream` is the state of a live transport.
#[inline]
pub(crate) unsafe fn replaced(stream: *mut Stream) -> Result<Option<Owned>> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport.
    unsafe {
        if guards::methods_are_original()? {
            return Ok(None);
        }
        if (*stream).own.is_none() && ((*stream).gone || (*stream).sock.is_null()) {
            return Ok(None);
        }
        extra_info::socket_object(stream).map(Some)
    }
}

/// Calls a method. Turns the exceptions for a socket that is not ready into `WouldBlock`.
unsafe fn call(sock: &Owned, method: *mut PyObject, argument: *mut PyObject) -> Result<io::Result<Owned>> {
    // SAFETY: `sock` is an owned reference, method names are never freed, and the callers guarantee that `argument`
    // is alive.
    unsafe {
        let arguments = [sock.as_ptr(), argument];
        let answer = ffi::PyObject_VectorcallMethod(method, arguments.as_ptr(), 2, null_mut());
        Owned::returned(answer).map(Ok).or_else(|Raised| {
            if ffi::PyErr_ExceptionMatches(ffi::PyExc_BlockingIOError) == 0
                && ffi::PyErr_ExceptionMatches(ffi::PyExc_InterruptedError) == 0
            {
                return Err(Raised);
            }
            ffi::PyErr_Clear();
            Ok(Err(io::ErrorKind::WouldBlock.into()))
        })
    }
}

/// Converts the result of such a call to a number of bytes. A number out of range, which only a broken method
/// returns, is clamped.
unsafe fn count(answer: Result<io::Result<Owned>>, most: usize) -> Result<io::Result<usize>> {
    let answer = match answer? {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    // SAFETY: `answer` is an owned reference.
    let count = unsafe { fields::whole(answer.as_ptr())? };
    Ok(Ok((count.max(0) as usize).min(most)))
}

/// `sock.recv(size)`: returns its result unchanged.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive(sock: &Owned) -> Result<io::Result<Owned>> {
    // SAFETY: both are owned references, and the caller holds the lock.
    unsafe {
        let size = Owned::returned(ffi::PyLong_FromSize_t(RECEIVE))?;
        call(sock, known().names.recv, size.as_ptr())
    }
}

/// `sock.recv_into(buffer)` for a buffer of `len` bytes: returns how many were received.
///
/// # Safety
/// `buffer` is alive.
pub(crate) unsafe fn receive_into(sock: &Owned, buffer: *mut PyObject, len: usize) -> Result<io::Result<usize>> {
    // SAFETY: the caller guarantees that `buffer` is alive.
    unsafe { count(call(sock, known().names.recv_into, buffer), len) }
}

/// Receives into a buffer, as asyncio does for TLS, and returns a `bytes` object.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_copy(sock: &Owned) -> Result<io::Result<Owned>> {
    // SAFETY: the method may have done anything with the buffer, so its size is checked again after the call and
    // before its bytes are copied.
    unsafe {
        let buffer = Owned::returned(ffi::PyByteArray_FromStringAndSize(std::ptr::null(), RECEIVE as Py_ssize_t))?;
        let received = match receive_into(sock, buffer.as_ptr(), RECEIVE)? {
            Ok(received) => received,
            Err(error) => return Ok(Err(error)),
        };
        if received as Py_ssize_t > ffi::PyByteArray_Size(buffer.as_ptr()) {
            return Err(raise(ffi::PyExc_BufferError, c"recv_into() changed the size of its buffer"));
        }
        let start = ffi::PyByteArray_AsString(buffer.as_ptr());
        Owned::returned(ffi::PyBytes_FromStringAndSize(start, received as Py_ssize_t)).map(Ok)
    }
}

/// `sock.send(data)` for `len` bytes: returns how many were sent.
///
/// # Safety
/// `data` is alive.
pub(crate) unsafe fn send(sock: &Owned, data: *mut PyObject, len: usize) -> Result<io::Result<usize>> {
    // SAFETY: the caller guarantees that `data` is alive.
    unsafe { count(call(sock, known().names.send, data), len) }
}
