//! Ends of pipes, and other streams of pipe transports: receiving and sending through their connections.

use std::io::IoSlice;
use std::os::fd::RawFd;

use bytes::Bytes;
use pelton::Space;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::writing::Data;
use crate::event_loop::state::Loop;
use crate::readers::with_pipe;
use crate::sockets::syscalls::{RECEIVE, is_not_now};
use pelton_cpython::arguments::Argument;
use pelton_cpython::buffer::with_shared;
use pelton_cpython::call::{Call, raise_io};
use pelton_cpython::class::This;
use pelton_cpython::object::Result;

/// `_receive_from_pipe(fd, most)`: returns received data, which is empty at the end, or `None` if there is nothing now.
pub(crate) fn receive<'py>(
    this: This<'_, 'py, Loop>,
    [fd, most]: [Argument<'_, 'py>; 2],
) -> Result<Option<Bound<'py, PyAny>>> {
    let py = this.py();
    let most = most.whole()?.clamp(0, RECEIVE as i64) as usize;
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    with_shared(py, |buffer| {
        let buffer = &mut buffer[..most];
        match with_pipe(py, state, fd, |io| io.receive_into(&mut [Space::from(&mut *buffer)]))? {
            Ok(count) => Ok(Some(PyBytes::new(py, &buffer[..count]).into_any())),
            Err(error) if is_not_now(&error) => Ok(None),
            Err(error) => Err(raise_io(py, &error)),
        }
    })
}

/// `_send_to_pipe(fd, data)`: sends as much as there is room for, and queues the rest. Returns whether everything was sent.
pub(crate) fn send<'py>(this: This<'_, 'py, Loop>, [fd, data]: [Argument<'_, 'py>; 2]) -> Result<bool> {
    let py = this.py();
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    let data = Data::new(&data)?;
    let sent = data.read(|bytes| {
        with_pipe(py, state, fd, |io| io.send_or_keep(&[IoSlice::new(bytes)], |_, sent| data.keep(sent)))
    })?;
    sent.map(|sent| sent == data.len()).map_err(|error| raise_io(py, &error))
}

/// `_queue_for_pipe(fd, data)`: queues a copy of data until the pipe has room.
pub(crate) fn queue<'py>(this: This<'_, 'py, Loop>, [fd, data]: [Argument<'_, 'py>; 2]) -> Result<()> {
    let py = this.py();
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    let bytes = Data::new(&data)?.read(Bytes::copy_from_slice);
    with_pipe(py, state, fd, |io| io.send_when_writable(bytes))?.map_err(|error| raise_io(py, &error))
}

/// `_queued_for_pipe(fd)`: returns the number of queued bytes. Raises the error that kept the queue from being sent, once.
pub(crate) fn queued<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<usize> {
    let py = this.py();
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    let queued = with_pipe(py, state, fd, |io| io.take_send_error().map_or_else(|| Ok(io.queued()), Err))?;
    queued.map_err(|error| raise_io(py, &error))
}

/// `_pipe_backlog(fd)`: returns the number of queued bytes; 0 if the connection has ended.
pub(crate) fn backlog<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<usize> {
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    Ok(with_pipe(this.py(), state, fd, |io| Ok(io.queued()))?.unwrap_or(0))
}

/// `_drop_pipe_queue(fd)`
pub(crate) fn drop_queue<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<()> {
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    // A connection that has ended has no queue.
    with_pipe(this.py(), state, fd, |io| io.drop_queued()).map(drop)
}
