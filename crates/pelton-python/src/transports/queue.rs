//! What a transport has yet to send.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi::{self, PyObject};

/// Pieces that one system call takes: as many as every system does.
const PIECES_AT_ONCE: usize = 64;

/// Bytes that wait for room, in order.
#[derive(Default)]
pub(crate) struct WriteQueue {
    pieces: VecDeque<Piece>,
    /// What of the first piece has been sent.
    sent: usize,
    len: usize,
}

/// A `bytes` object, to which the queue has a reference.
struct Piece {
    bytes: *mut PyObject,
    len: usize,
}

impl WriteQueue {
    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Puts a `bytes` object at the end, of which `sent` bytes have been sent already. The reference becomes the queue's.
    ///
    /// # Safety
    /// `bytes` is a `bytes` object, whose reference is the caller's to give away.
    pub(crate) unsafe fn push(&mut self, bytes: *mut PyObject, sent: usize) {
        // SAFETY: it is a `bytes` object.
        let len = unsafe { ffi::PyBytes_Size(bytes) as usize };
        debug_assert!(sent == 0 || self.pieces.is_empty());
        debug_assert!(sent < len || len == 0);
        if self.pieces.is_empty() {
            self.sent = sent;
        }
        self.len += len - sent;
        self.pieces.push_back(Piece { bytes, len });
    }

    /// Sends what there is room for. What is done with goes to `done`, for the caller to let go of.
    pub(crate) fn send(&mut self, fd: RawFd, done: &mut Vec<*mut PyObject>) -> io::Result<usize> {
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_AT_ONCE];
        let mut skip = self.sent;
        let mut count = 0;
        for (vector, piece) in vectors.iter_mut().zip(&self.pieces) {
            // SAFETY: the piece is a `bytes` object of that length, of which less than all has been sent.
            vector.iov_base = unsafe { ffi::PyBytes_AsString(piece.bytes).add(skip) }.cast();
            vector.iov_len = piece.len - skip;
            skip = 0;
            count += 1;
        }
        let sent = send_vectors(fd, &mut vectors[..count])?;
        self.advance(sent, done);
        Ok(sent)
    }

    fn advance(&mut self, sent: usize, done: &mut Vec<*mut PyObject>) {
        self.len -= sent;
        self.sent += sent;
        while let Some(first) = self.pieces.front() {
            if self.sent < first.len {
                return;
            }
            self.sent -= first.len;
            done.extend(self.pieces.pop_front().map(|piece| piece.bytes));
        }
        self.sent = 0;
    }

    /// Takes everything out, for the caller to let go of.
    pub(crate) fn take(&mut self) -> Vec<*mut PyObject> {
        self.len = 0;
        self.sent = 0;
        self.pieces.drain(..).map(|piece| piece.bytes).collect()
    }
}

/// Sends several pieces with one system call, without raising a signal if nobody is there to receive them.
pub(crate) fn send_vectors(fd: RawFd, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: all zeroes are a message header without anything in it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: the vectors describe memory that lives, and that nobody changes, while the lock is held.
    returned(unsafe { libc::sendmsg(fd, &message, SILENTLY) })
}

/// Sends one piece, likewise.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the slice is what its pointer and length say.
    returned(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), SILENTLY) })
}

/// Receives what fits.
pub(crate) fn receive(fd: RawFd, into: *mut u8, len: usize) -> io::Result<usize> {
    // SAFETY: the callers have a buffer of that length, which nobody else uses while the lock is held.
    returned(unsafe { libc::recv(fd, into.cast(), len, 0) })
}

#[cfg(not(target_vendor = "apple"))]
const SILENTLY: libc::c_int = libc::MSG_NOSIGNAL;
/// Python ignores the signal anyway; only a program that hosts it may not.
#[cfg(target_vendor = "apple")]
const SILENTLY: libc::c_int = 0;

fn returned(count: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Whether an operation is just to be tried again when the descriptor is ready.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
