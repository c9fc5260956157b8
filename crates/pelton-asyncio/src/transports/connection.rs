//! The reactor's connection under a stream transport: receiving, sending, and the queue of unsent bytes.

use std::io::{self, IoSlice};

use bytes::Bytes;
use pelton::{Io, Space};
use pyo3::prelude::*;

use super::stream::Stream;
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
/// closed the socket object. The reactor is out of reach while `f` runs.
#[inline]
pub(crate) fn with<T>(
    py: Python<'_>,
    stream: &Stream,
    f: impl FnOnce(&mut Io<'_>) -> io::Result<T>,
) -> Result<Outcome<T>> {
    let Some(its_loop) = stream.its_loop.get(py) else { return Ok(Outcome::Done(Err(closed()))) };
    let state = state::of(&its_loop)?;
    let id =
        stream.connection.borrow().as_ref().filter(|connected| connected.is_of(state)).map(|connected| connected.id);
    let Some(id) = id.filter(|_| !state.closed.get()) else { return Ok(Outcome::Done(Err(closed()))) };
    let done = state.with_reactor(py, |reactor| match reactor.connection(id) {
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

#[cold]
fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// Receives into these spaces, one after the other. Returns the number of bytes.
#[inline]
pub(crate) fn receive(py: Python<'_>, stream: &Stream, spaces: &mut [Space<'_>]) -> Result<io::Result<usize>> {
    Ok(with(py, stream, |io| io.receive_into(spaces))?.result())
}

/// The state of the queue after a send.
pub(crate) enum Sent {
    Everything,
    /// Something is left, and this many bytes are queued now.
    Queued(usize),
}

/// Sends as much as the socket accepts, and queues the rest.
#[inline]
pub(crate) fn send(py: Python<'_>, stream: &Stream, data: &Data<'_>) -> Result<Outcome<Sent>> {
    data.read(|bytes| {
        with(py, stream, |io| match io.send_or_keep(&[IoSlice::new(bytes)], |_, sent| data.keep(sent))? {
            sent if sent == bytes.len() => Ok(Sent::Everything),
            _ => Ok(Sent::Queued(io.queued())),
        })
    })
}

/// Does the same for several pieces.
pub(crate) fn send_pieces(py: Python<'_>, stream: &Stream, pieces: &[Bytes]) -> Result<Outcome<Sent>> {
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    with(py, stream, |io| {
        io.send_or_keep(&slices, |index, sent| pieces[index].slice(sent..))?;
        Ok(match io.queued() {
            0 => Sent::Everything,
            queued => Sent::Queued(queued),
        })
    })
}

/// Queues bytes until the socket is writable.
pub(crate) fn queue(py: Python<'_>, stream: &Stream, bytes: Bytes) -> Result<Outcome<Sent>> {
    with(py, stream, |io| {
        io.send_when_writable(bytes)?;
        Ok(Sent::Queued(io.queued()))
    })
}

/// Returns the number of queued bytes, or the number known last if the reactor is out of reach.
pub(crate) fn queued(py: Python<'_>, stream: &Stream) -> Result<usize> {
    if !stream.unsent.get() {
        return Ok(0);
    }
    match with(py, stream, |io| Ok(io.queued()))? {
        Outcome::Done(Ok(queued)) => stream.queued.set(queued),
        Outcome::Done(Err(_)) => stream.queued.set(0),
        Outcome::OutOfReach => {}
    }
    Ok(stream.queued.get())
}

/// Drops the queued bytes.
pub(crate) fn drop_queued(py: Python<'_>, stream: &Stream) -> Result<()> {
    if stream.unsent.take() {
        // A connection that has failed has no queue.
        with(py, stream, |io| io.drop_queued())?;
    }
    Ok(())
}
