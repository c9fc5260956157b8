//! Ends of pipes, and other streams of pipe transports: receiving and sending through their connections.

use std::io::IoSlice;
use std::os::fd::RawFd;

use bytes::Bytes;
use pelton::Space;
use pyo3::ffi::{self, PyObject};

use super::writing::Data;
use crate::event_loop::state;
use crate::readers::with_pipe;
use crate::sockets::syscalls::{self, RECEIVE, is_not_now};
use pelton_cpython::fields;
use pelton_cpython::object::{Owned, Result, raise_io};

/// `_receive_from_pipe(fd, most)`: returns received data, which is empty at the end, or `None` if there is nothing now.
pub(crate) unsafe fn receive(loop_: *mut PyObject, [fd, most]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: Python keeps the loop and all arguments alive during the call. The bytes are copied before anything else uses the shared
    // buffer.
    unsafe {
        let core = state::of(loop_)?;
        let most = fields::whole(most)?.clamp(0, RECEIVE as i64) as usize;
        let fd = fields::whole(fd)? as RawFd;
        let buffer = &mut syscalls::shared_buffer()[..most];
        match with_pipe(core, fd, |io| io.receive_into(&mut [Space::from(&mut *buffer)]))? {
            Ok(count) => Owned::returned(ffi::PyBytes_FromStringAndSize(buffer.as_ptr().cast(), count as _)),
            Err(error) if is_not_now(&error) => Ok(Owned::new_reference(ffi::Py_None())),
            Err(error) => Err(raise_io(&error)),
        }
    }
}

/// `_send_to_pipe(fd, data)`: sends as much as there is room for, and queues the rest. Returns whether everything was sent.
pub(crate) unsafe fn send(loop_: *mut PyObject, [fd, data]: [*mut PyObject; 2]) -> Result<bool> {
    // SAFETY: Python keeps the loop and all arguments alive during the call. Keeping data calls no Python code.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        let data = Data::new(data)?;
        let bytes = data.bytes();
        let sent = with_pipe(core, fd, |io| io.send_or_keep(&[IoSlice::new(bytes)], |_, sent| data.keep(sent)))?;
        sent.map(|sent| sent == bytes.len()).map_err(|error| raise_io(&error))
    }
}

/// `_queue_for_pipe(fd, data)`: queues a copy of data until the pipe has room.
pub(crate) unsafe fn queue(loop_: *mut PyObject, [fd, data]: [*mut PyObject; 2]) -> Result<()> {
    // SAFETY: Python keeps the loop and all arguments alive during the call.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        let bytes = Bytes::copy_from_slice(Data::new(data)?.bytes());
        with_pipe(core, fd, |io| io.send_when_writable(bytes))?.map_err(|error| raise_io(&error))
    }
}

/// `_queued_for_pipe(fd)`: returns the number of queued bytes. Raises the error that kept the queue from being sent, once.
pub(crate) unsafe fn queued(loop_: *mut PyObject, fd: *mut PyObject) -> Result<usize> {
    // SAFETY: Python keeps the loop and the argument alive during the call.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        let queued = with_pipe(core, fd, |io| io.take_send_error().map_or_else(|| Ok(io.queued()), Err))?;
        queued.map_err(|error| raise_io(&error))
    }
}

/// `_pipe_backlog(fd)`: returns the number of queued bytes; 0 if the connection has ended.
pub(crate) unsafe fn backlog(loop_: *mut PyObject, fd: *mut PyObject) -> Result<usize> {
    // SAFETY: Python keeps the loop and the argument alive during the call.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        Ok(with_pipe(core, fd, |io| Ok(io.queued()))?.unwrap_or(0))
    }
}

/// `_drop_pipe_queue(fd)`
pub(crate) unsafe fn drop_queue(loop_: *mut PyObject, fd: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the loop and the argument alive during the call. Dropping `bytes` objects calls no Python code.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        // A connection that has ended has no queue.
        with_pipe(core, fd, |io| io.drop_queued()).map(drop)
    }
}
