//! How a stream transport gets at its socket: by the descriptor, or through the methods of a socket object that has its own.
//!
//! A program may pass a socket of a class that overrides `recv` or `send`, or replace these methods of `socket.socket`. As in
//! asyncio, they are called then.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use super::asking;
use super::queue::WriteQueue;
use super::stream::Stream;
use crate::fields;
use crate::guards;
use crate::known::known;
use crate::object::{Owned, Raised, Result, raise};
use crate::syscalls::RECEIVE;

/// What to receive from and send to.
pub(crate) enum Way {
    Descriptor(RawFd),
    /// Its methods are to be called.
    Socket(Owned),
}

/// What to receive from and send to. If the socket is closed, the system's error for it: its number may be another file's by now.
///
/// # Safety
/// `stream` is the state of a live transport.
#[inline]
pub(crate) unsafe fn way(stream: *mut Stream) -> Result<io::Result<Way>> {
    // SAFETY: as the caller says.
    unsafe {
        let original = !(*stream).overridden && guards::methods_are_original()?;
        if let (true, Some(own)) = (original, &(*stream).own) {
            return Ok(Ok(Way::Descriptor(own.as_raw_fd())));
        }
        if (*stream).own.is_none() && ((*stream).gone || (*stream).sock.is_null()) {
            return Ok(Err(io::Error::from_raw_os_error(libc::EBADF)));
        }
        let sock = asking::socket_object(stream)?;
        if !original {
            return Ok(Ok(Way::Socket(sock)));
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock.as_ptr(), known().names.fileno))?;
        let fd = fields::whole(fd.as_ptr())?;
        Ok(if fd < 0 { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(Way::Descriptor(fd as RawFd)) })
    }
}

/// Calls a method. That the socket is not ready is an exception in Python, and an error here.
unsafe fn call(sock: &Owned, method: *mut PyObject, argument: *mut PyObject) -> Result<io::Result<Owned>> {
    // SAFETY: all are alive.
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

/// Likewise, if what it answers is a number of bytes. One that is out of range, which no honest method answers, is brought into it.
unsafe fn count(answer: Result<io::Result<Owned>>, most: usize) -> Result<io::Result<usize>> {
    let answer = match answer? {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    // SAFETY: it is alive.
    let count = unsafe { fields::whole(answer.as_ptr())? };
    Ok(Ok((count.max(0) as usize).min(most)))
}

/// `sock.recv(size)`: whatever it returns.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive(sock: &Owned) -> Result<io::Result<Owned>> {
    // SAFETY: all are alive.
    unsafe {
        let size = Owned::returned(ffi::PyLong_FromSize_t(RECEIVE))?;
        call(sock, known().names.recv, size.as_ptr())
    }
}

/// `sock.recv_into(buffer)`, which has room for `len` bytes: how many were received.
///
/// # Safety
/// `buffer` is alive.
pub(crate) unsafe fn receive_into(sock: &Owned, buffer: *mut PyObject, len: usize) -> Result<io::Result<usize>> {
    // SAFETY: as the caller says.
    unsafe { count(call(sock, known().names.recv_into, buffer), len) }
}

/// Receives as a transport with TLS does in asyncio, which has a buffer for it: a `bytes` object.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_copy(sock: &Owned) -> Result<io::Result<Owned>> {
    // SAFETY: the object is asked for its bytes after the method, which may have done anything with it, has returned.
    unsafe {
        let buffer = Owned::returned(ffi::PyByteArray_FromStringAndSize(std::ptr::null(), RECEIVE as Py_ssize_t))?;
        let received = match receive_into(sock, buffer.as_ptr(), RECEIVE)? {
            Ok(received) => received,
            Err(error) => return Ok(Err(error)),
        };
        if received as Py_ssize_t > ffi::PyByteArray_Size(buffer.as_ptr()) {
            return Err(raise(ffi::PyExc_BufferError, c"recv_into() has changed the size of its buffer"));
        }
        let start = ffi::PyByteArray_AsString(buffer.as_ptr());
        Owned::returned(ffi::PyBytes_FromStringAndSize(start, received as Py_ssize_t)).map(Ok)
    }
}

/// `sock.send(data)`, of `len` bytes: how many were sent.
///
/// # Safety
/// `data` is alive.
pub(crate) unsafe fn send(sock: &Owned, data: *mut PyObject, len: usize) -> Result<io::Result<usize>> {
    // SAFETY: as the caller says.
    unsafe { count(call(sock, known().names.send, data), len) }
}

/// Sends what waits, by the method that asyncio calls in this version of Python: how many bytes.
///
/// # Safety
/// `queue` is part of the state of a live transport, and not empty.
pub(crate) unsafe fn send_queued(sock: &Owned, queue: *const WriteQueue) -> Result<io::Result<usize>> {
    // SAFETY: as the caller says. What is sent is kept by a list of its own, whatever the method does to the queue.
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
    // SAFETY: all are alive.
    unsafe {
        let how = Owned::returned(ffi::PyLong_FromLong(libc::SHUT_WR.into()))?;
        let arguments = [sock.as_ptr(), how.as_ptr()];
        let name = known().names.shutdown;
        Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}
