//! The write buffer of a transport.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::object::{Owned, Result};
use crate::syscalls::send_vectors;

/// Number of buffers passed to one system call; every supported system accepts this many.
const PIECES_AT_ONCE: usize = 64;

/// Bytes waiting to be sent, in order.
#[derive(Default)]
pub(crate) struct WriteQueue {
    pieces: VecDeque<Piece>,
    /// How much of the first piece has been sent.
    sent: usize,
    len: usize,
}

/// A `bytes` object. The queue owns a reference to it.
struct Piece {
    bytes: *mut PyObject,
    len: usize,
}

impl WriteQueue {
    /// Returns the number of queued bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends a `bytes` object of which `sent` bytes have already been sent. The queue takes over the reference.
    ///
    /// # Safety
    /// `bytes` is a `bytes` object, and the caller owns the reference that it passes.
    pub(crate) unsafe fn push(&mut self, bytes: *mut PyObject, sent: usize) {
        // SAFETY: the caller guarantees that it is a `bytes` object.
        let len = unsafe { ffi::PyBytes_Size(bytes) as usize };
        debug_assert!(sent == 0 || self.pieces.is_empty());
        debug_assert!(sent < len || len == 0);
        if self.pieces.is_empty() {
            self.sent = sent;
        }
        self.len += len - sent;
        self.pieces.push_back(Piece { bytes, len });
    }

    /// Sends as much as the socket accepts. Pushes finished pieces to `done`; the caller drops them.
    pub(crate) fn send(&mut self, fd: RawFd, done: &mut Vec<*mut PyObject>) -> io::Result<()> {
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_AT_ONCE];
        let mut skip = self.sent;
        let mut count = 0;
        for (vector, piece) in vectors.iter_mut().zip(&self.pieces) {
            // SAFETY: the queue owns a reference to the piece, a `bytes` object of that length, and `skip` is at
            // most the length.
            vector.iov_base = unsafe { ffi::PyBytes_AsString(piece.bytes).add(skip) }.cast();
            vector.iov_len = piece.len - skip;
            skip = 0;
            count += 1;
        }
        // SAFETY: the queue owns the immutable `bytes` objects that these vectors point into.
        let sent = unsafe { send_vectors(fd, &mut vectors[..count]) }?;
        self.advance(sent, done);
        Ok(())
    }

    /// Returns a list of the next pieces, for a method in Python: as many as one system call accepts. The first one
    /// is without the part that has been sent.
    pub(crate) fn pieces(&self) -> Result<Owned> {
        // SAFETY: the pieces are `bytes` objects that the queue owns. The list takes over one reference to each item.
        unsafe {
            let count = self.pieces.len().min(PIECES_AT_ONCE);
            let list = Owned::returned(ffi::PyList_New(count as Py_ssize_t))?;
            for (index, piece) in self.pieces.iter().take(count).enumerate() {
                let bytes = if index == 0 && self.sent > 0 {
                    let start = ffi::PyBytes_AsString(piece.bytes).add(self.sent);
                    Owned::returned(ffi::PyBytes_FromStringAndSize(start, (piece.len - self.sent) as Py_ssize_t))?
                } else {
                    Owned::new_reference(piece.bytes)
                };
                ffi::PyList_SET_ITEM(list.as_ptr(), index as Py_ssize_t, bytes.into_ptr());
            }
            Ok(list)
        }
    }

    /// Removes `sent` bytes, or all if there are fewer. Pushes finished pieces to `done`; the caller drops them.
    pub(crate) fn advance(&mut self, sent: usize, done: &mut Vec<*mut PyObject>) {
        let sent = sent.min(self.len);
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

    /// Empties the queue and returns its references; the caller drops them.
    pub(crate) fn take(&mut self) -> Vec<*mut PyObject> {
        self.len = 0;
        self.sent = 0;
        self.pieces.drain(..).map(|piece| piece.bytes).collect()
    }
}
