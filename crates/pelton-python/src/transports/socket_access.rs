//! Access to a stream transport's socket: by descriptor, or through the methods of a socket object that overrides them.
//!
//! A program may pass a socket of a class that overrides `recv` or `send`, or replace these methods of
//! `socket.socket`. As in asyncio, the overriding methods are called.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use super::extra_info;
use super::queue::WriteQueue;
use super::stream::Stream;
use crate::fields;
use crate::guards;
use crate::known::known;
use crate::object::{Owned, Raised, Result, raise};
use crate::syscalls::RECEIVE;

/// How to receive from and send to a socket.
pub(crate) enum Access {
    Descriptor(RawFd),
    /// Call the methods of this object.
    Socket(Owned),
}

/// Returns how to access the socket. If it is closed, returns `EBADF`, because its descriptor number may already
/// belong to another file.
///
/// # Safety
/// `stream` is the state of a live transport.
#[inline]
pub(crate) unsafe fn access(stream: *mut Stream) -> Result<io::Result<Access>> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport.
    unsafe {
        let original = !(*stream).overridden && guards::methods_are_original()?;
        if let (true, Some(own)) = (original, &(*stream).own) {
            return Ok(Ok(Access::Descriptor(own.as_raw_fd())));
        }
        if (*stream).own.is_none() && ((*stream).gone || (*stream).sock.is_null()) {
            return Ok(Err(io::Error::from_raw_os_error(libc::EBADF)));
        }
        let sock = extra_info::socket_object(stream)?;
        if !original {
            return Ok(Ok(Access::Socket(sock)));
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock.as_ptr(), known().names.fileno))?;
        let fd = fields::whole(fd.as_ptr())?;
        Ok(if fd < 0 { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(Access::Descriptor(fd as RawFd)) })
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

/// Sends queued bytes by the method that asyncio calls in this version of Python. Returns how many were sent.
///
/// # Safety
/// `queue` is part of the state of a live transport, and not empty.
pub(crate) unsafe fn send_queued(sock: &Owned, queue: *const WriteQueue) -> Result<io::Result<usize>> {
    // SAFETY: the caller guarantees that `queue` is in a live state and not empty. The list owns references to the
    // pieces, so the method may change the queue.
    unsafe {
        let len = (*queue).len();
        let pieces = (*queue).pieces()?;
        if known().transports_send_pieces {
            return count(call(sock, known().names.sendmsg, pieces.as_ptr()), len);
        }
        send(sock, ffi::PyList_GET_ITEM(pieces.as_ptr(), 0), len)
    }
}

/// `sock.shutdown(socket.SHUT_WR)`
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn shut_down(sock: &Owned) -> Result<()> {
    // SAFETY: both are owned references, and the caller holds the lock.
    unsafe {
        let how = Owned::returned(ffi::PyLong_FromLong(libc::SHUT_WR.into()))?;
        let arguments = [sock.as_ptr(), how.as_ptr()];
        let name = known().names.shutdown;
        Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}
