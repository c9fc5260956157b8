//! The reactor's connection under a stream transport: receiving, sending, and the queue of unsent bytes.

use std::io::{self, IoSlice};
use std::slice;

use bytes::Bytes;
use pelton::{Io, Space};
use pyo3::ffi::{self, PyObject};
use pyo3::types::PyBytes;
use pyo3::{Bound, Py, Python};

use super::stream::{Connected, Stream};
use super::writing::Data;
use crate::event_loop::state;
use pelton_cpython::object::Result;

/// The outcome of an operation on the connection.
pub(crate) enum Outcome<T> {
    Done(io::Result<T>),
    /// Another thread turns the loop, so its reactor is out of reach.
    OutOfReach,
}

impl<T> Outcome<T> {
    /// Returns the result. An operation out of reach has to be tried again.
    pub(crate) fn result(self) -> io::Result<T> {
        match self {
            Outcome::Done(result) => result,
            Outcome::OutOfReach => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Calls `f` with the connection. Fails with `EBADF` if there is none any more, as after its loop was closed, or if the program has
/// closed the socket object.
///
/// # Safety
/// `stream` is the state of a live transport. `f` calls nothing that could use the reactor, which includes all Python code.
#[inline]
pub(crate) unsafe fn with<T>(stream: *mut Stream, f: impl FnOnce(&mut Io<'_>) -> io::Result<T>) -> Result<Outcome<T>> {
    // SAFETY: the caller guarantees it. A transport owns a reference to its loop until it is closed.
    unsafe {
        let Some(Connected { id, core: home }) = (*stream).connection.filter(|_| !(*stream).loop_.is_null()) else {
            return Ok(Outcome::Done(Err(closed())));
        };
        let core = state::of((*stream).loop_)?;
        if core != home || (*core).closed {
            return Ok(Outcome::Done(Err(closed())));
        }
        let done = state::with_reactor(core, |reactor| match reactor.connection(id) {
            Some(mut io) => f(&mut io),
            None => Err(closed()),
        })?;
        Ok(match done {
            // The reactor does not touch a descriptor that its owner has closed.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_none() => {
                Outcome::Done(Err(closed()))
            }
            Some(result) => Outcome::Done(result),
            None => Outcome::OutOfReach,
        })
    }
}

#[cold]
fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// Receives into these spaces, one after the other. Returns the number of bytes.
///
/// # Safety
/// As for [`with`].
#[inline]
pub(crate) unsafe fn receive(stream: *mut Stream, spaces: &mut [Space<'_>]) -> Result<io::Result<usize>> {
    // SAFETY: the caller guarantees it. Receiving calls no Python code.
    unsafe { Ok(with(stream, |io| io.receive_into(spaces))?.result()) }
}

/// The state of the queue after a send.
pub(crate) enum Sent {
    Everything,
    /// Something is left, and this many bytes are queued now.
    Queued(usize),
}

/// Sends as much as the socket accepts, and queues the rest.
///
/// # Safety
/// As for [`with`].
#[inline]
pub(crate) unsafe fn send(stream: *mut Stream, data: &Data) -> Result<Outcome<Sent>> {
    let bytes = data.bytes();
    // SAFETY: the caller guarantees it. Keeping data calls no Python code.
    unsafe {
        with(stream, |io| match io.send_or_keep(&[IoSlice::new(bytes)], |_, sent| data.keep(sent))? {
            sent if sent == bytes.len() => Ok(Sent::Everything),
            _ => Ok(Sent::Queued(io.queued())),
        })
    }
}

/// Does the same for several pieces.
///
/// # Safety
/// As for [`with`].
pub(crate) unsafe fn send_pieces(stream: *mut Stream, pieces: &[Bytes]) -> Result<Outcome<Sent>> {
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    // SAFETY: the caller guarantees it. The pieces are counted references, so keeping them calls no Python code.
    unsafe {
        with(stream, |io| {
            io.send_or_keep(&slices, |index, sent| pieces[index].slice(sent..))?;
            Ok(match io.queued() {
                0 => Sent::Everything,
                queued => Sent::Queued(queued),
            })
        })
    }
}

/// Queues bytes until the socket is writable.
///
/// # Safety
/// As for [`with`].
pub(crate) unsafe fn queue(stream: *mut Stream, bytes: Bytes) -> Result<Outcome<Sent>> {
    // SAFETY: the caller guarantees it. Queueing calls no Python code.
    unsafe {
        with(stream, |io| {
            io.send_when_writable(bytes)?;
            Ok(Sent::Queued(io.queued()))
        })
    }
}

/// Returns the number of queued bytes, or the number known last if the reactor is out of reach.
///
/// # Safety
/// As for [`with`].
pub(crate) unsafe fn queued(stream: *mut Stream) -> Result<usize> {
    // SAFETY: the caller guarantees it. The question calls no Python code.
    unsafe {
        if !(*stream).unsent {
            return Ok(0);
        }
        match with(stream, |io| Ok(io.queued()))? {
            Outcome::Done(Ok(queued)) => (*stream).queued = queued,
            Outcome::Done(Err(_)) => (*stream).queued = 0,
            Outcome::OutOfReach => {}
        }
        Ok((*stream).queued)
    }
}

/// Drops the queued bytes.
///
/// # Safety
/// As for [`with`].
pub(crate) unsafe fn drop_queued(stream: *mut Stream) -> Result<()> {
    // SAFETY: the caller guarantees it. The queue has references to `bytes` objects only, and dropping these calls no Python code.
    unsafe {
        if std::mem::take(&mut (*stream).unsent) {
            // A connection that has failed has no queue.
            with(stream, |io| io.drop_queued())?;
        }
        Ok(())
    }
}

/// A `bytes` object in the reactor's queue.
struct Kept {
    start: *const u8,
    len: usize,
    _object: Py<PyBytes>,
}

// SAFETY: the object is immutable, and pyo3 drops the reference only with the interpreter lock.
unsafe impl Send for Kept {}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: this is the memory of the object, which stays in place while there is a reference to it.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

/// Returns the contents of a `bytes` object without copying them.
///
/// # Safety
/// `object` is alive, and its type is `bytes`, not a derived one: that may refer to other objects, which the garbage collector would
/// have to know, and its finalizer may run arbitrary code.
pub(crate) unsafe fn bytes_of(object: *mut PyObject) -> Bytes {
    // SAFETY: the caller guarantees it, and holds the lock.
    unsafe {
        let start = ffi::PyBytes_AsString(object).cast_const().cast();
        let len = ffi::PyBytes_Size(object) as usize;
        let object = Bound::from_borrowed_ptr(Python::assume_attached(), object);
        let _object = object.cast_into_unchecked::<PyBytes>().unbind();
        Bytes::from_owner(Kept { start, len, _object })
    }
}
