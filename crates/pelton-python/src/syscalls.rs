//! Receiving and sending, without ever waiting.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;

use crate::object::{Owned, Result};

/// What is received at once at most: as much as asyncio asks for.
pub(crate) const RECEIVE: usize = 256 * 1024;

/// What is received, for as long as it takes to copy it into an object of the right size.
///
/// An object of [`RECEIVE`] bytes for each message, most of which is given back, would be mapped and unmapped by the C library
/// each time.
struct Shared(UnsafeCell<[u8; RECEIVE]>);

// SAFETY: it is only used with the interpreter lock held, which is not let go of between receiving and copying.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new([0; RECEIVE]));

/// Receives up to `wanted` bytes, and not more than [`RECEIVE`], as a `bytes` object.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_bytes(fd: RawFd, wanted: usize) -> io::Result<Result<Owned>> {
    // SAFETY: the shared buffer is not used beyond the copy, and nobody else gets at it before: the lock is held.
    unsafe {
        let buffer = SHARED.0.get().cast::<u8>();
        let count = receive(fd, buffer, wanted.min(RECEIVE))?;
        Ok(Owned::returned(ffi::PyBytes_FromStringAndSize(buffer.cast(), count as _)))
    }
}

/// Receives what fits.
pub(crate) fn receive(fd: RawFd, into: *mut u8, len: usize) -> io::Result<usize> {
    // SAFETY: the callers have a buffer of that length, which nobody else uses while the lock is held.
    returned(unsafe { libc::recv(fd, into.cast(), len, libc::MSG_DONTWAIT) })
}

/// Sends one piece, without raising a signal if nobody is there to receive it.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the slice is what its pointer and length say.
    returned(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), SILENTLY | libc::MSG_DONTWAIT) })
}

/// Sends several pieces with one system call, likewise.
pub(crate) fn send_vectors(fd: RawFd, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: all zeroes are a message header without anything in it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: the vectors describe memory that lives, and that nobody changes, while the lock is held.
    returned(unsafe { libc::sendmsg(fd, &message, SILENTLY | libc::MSG_DONTWAIT) })
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
