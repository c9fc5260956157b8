//! What a transport has yet to send.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::object::{Owned, Result};
use crate::syscalls::send_vectors;

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
    pub(crate) fn send(&mut self, fd: RawFd, done: &mut Vec<*mut PyObject>) -> io::Result<()> {
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
        Ok(())
    }

    /// What waits, for a method in Python: a list of as many pieces as one system call takes. The first is what is left of it.
    pub(crate) fn pieces(&self) -> Result<Owned> {
        // SAFETY: the pieces are `bytes` objects, and so are those that are made; the list takes over a reference to each.
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

    /// So many bytes have been sent, or as many as there are. What is done with goes to `done`, for the caller to let go of.
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

    /// Takes everything out, for the caller to let go of.
    pub(crate) fn take(&mut self) -> Vec<*mut PyObject> {
        self.len = 0;
        self.sent = 0;
        self.pieces.drain(..).map(|piece| piece.bytes).collect()
    }
}
