//! Sending: what a stream transport does on a write, and when its socket is writable.

use std::io;
use std::ptr::null_mut;
use std::slice;

use pyo3::ffi::{self, PyMethodDef, PyObject};
use pyo3::prelude::*;

use super::socket_access::{self, Access};
use super::stream::{Stream, stream};
use super::{closing, opening};
use crate::known::known;
use crate::methods::{with_one_named, without_arguments};
use crate::object::{Owned, Raised, Result, raise_io, raise_text};
use crate::readers::{self, Side};
use crate::syscalls::{self, is_not_now};

const WRITING_FAILED: &str = "Fatal write error on socket transport";

pub(crate) fn methods() -> Vec<PyMethodDef> {
    let write_ready_doc = c"Send data from the write buffer.";
    vec![
        with_one_named!(c"write", data, write_data, c"write($self, data)\n--\n\nWrite some data, without blocking."),
        with_one_named!(
            c"writelines",
            list_of_data,
            write_pieces,
            c"writelines($self, list_of_data)\n--\n\nWrite several pieces of data, without blocking.",
        ),
        // The names under which different versions of asyncio's transport call it.
        without_arguments!(c"_write_ready", write_ready, write_ready_doc),
        without_arguments!(c"_write_sendmsg", write_ready, write_ready_doc),
        without_arguments!(c"_write_send", write_ready, write_ready_doc),
    ]
}

/// Closes the connection because of the raised exception. `SystemExit` and `KeyboardInterrupt` propagate.
///
/// # Safety
/// `transport` is alive, and an exception is set.
#[cold]
pub(crate) unsafe fn fatal(transport: *mut PyObject, message: &str) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive.
    unsafe { hand_over(transport, "_fatal_error", message) }
}

/// Calls a method with the raised exception and a message.
///
/// # Safety
/// `transport`, the object whose method is called, is alive; an exception is set.
pub(crate) unsafe fn hand_over(transport: *mut PyObject, method: &str, message: &str) -> Result<()> {
    Python::attach(|py| {
        let Some(error) = PyErr::take(py) else { return Ok(()) };
        if error.is_instance_of::<pyo3::exceptions::PySystemExit>(py)
            || error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py)
        {
            error.restore(py);
            return Err(Raised);
        }
        // SAFETY: the caller guarantees that the transport is alive.
        let transport = unsafe { Bound::from_borrowed_ptr(py, transport) };
        match transport.call_method1(method, (error.value(py), message)) {
            Ok(_) => Ok(()),
            Err(error) => {
                error.restore(py);
                Err(Raised)
            }
        }
    })
}

/// Calls a method of the transport without arguments.
unsafe fn call(transport: *mut PyObject, name: *mut PyObject) -> Result<()> {
    // SAFETY: the callers guarantee that the transport is alive; method names are never freed.
    unsafe { Owned::returned(ffi::PyObject_CallMethodNoArgs(transport, name)).map(drop) }
}

/// Data to write: its object, and a view unless it is a `bytes` object.
pub(crate) struct Data {
    object: *mut PyObject,
    view: Option<ffi::Py_buffer>,
}

impl Data {
    /// # Safety
    /// `object` is alive for as long as the data is used.
    pub(crate) unsafe fn new(object: *mut PyObject) -> Result<Data> {
        // SAFETY: the caller guarantees that the object outlives the data.
        unsafe {
            if ffi::PyBytes_Check(object) != 0 {
                return Ok(Data { object, view: None });
            }
            if ffi::PyByteArray_Check(object) == 0 && ffi::PyMemoryView_Check(object) == 0 {
                return Err(Python::attach(|py| {
                    let object = Bound::from_borrowed_ptr(py, object);
                    let name = object.get_type().name().map(|name| name.to_string()).unwrap_or_default();
                    let message = format!("data argument must be a bytes-like object, not '{name}'");
                    raise_text(ffi::PyExc_TypeError, &message)
                }));
            }
            let mut view: ffi::Py_buffer = std::mem::zeroed();
            if ffi::PyObject_GetBuffer(object, &mut view, ffi::PyBUF_SIMPLE) < 0 {
                return Err(Raised);
            }
            Ok(Data { object, view: Some(view) })
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a `bytes` object is immutable, and a view keeps its buffer in place. Python code cannot change
        // the buffer while the lock is held, and no caller keeps the slice across a call that releases it.
        unsafe {
            let (start, len) = match &self.view {
                None => (ffi::PyBytes_AsString(self.object).cast_const().cast(), ffi::PyBytes_Size(self.object)),
                Some(view) => (view.buf.cast_const().cast(), view.len),
            };
            if len == 0 { &[] } else { slice::from_raw_parts(start, len as usize) }
        }
    }

    /// Returns a `bytes` object for the queue, and how much of it has been sent. This is the object itself, or a copy
    /// of the unsent part if its owner may change it. Objects of a class derived from `bytes` are copied too. They may
    /// refer to other objects, which the garbage collector would have to know, and their finalizers may run arbitrary
    /// code.
    fn keep(&self, sent: usize) -> Result<(Owned, usize)> {
        // SAFETY: the caller of `new` guarantees that the object is alive.
        unsafe {
            if ffi::PyBytes_CheckExact(self.object) != 0 {
                return Ok((Owned::new_reference(self.object), sent));
            }
            Ok((self.rest(sent)?, 0))
        }
    }

    /// Returns a new `bytes` object with the unsent part.
    fn rest(&self, sent: usize) -> Result<Owned> {
        let rest = &self.bytes()[sent..];
        // SAFETY: pointer and length are those of a slice.
        unsafe { Owned::returned(ffi::PyBytes_FromStringAndSize(rest.as_ptr().cast(), rest.len() as _)) }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(view) = &mut self.view {
            // SAFETY: the view was acquired in `new` and is released only here.
            unsafe { ffi::PyBuffer_Release(view) };
        }
    }
}

/// # Safety
/// `transport` is a live `pelton.StreamTransport`, `data` alive.
pub(crate) unsafe fn write_data(transport: *mut PyObject, data: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that both are alive. No Rust reference to the state lives across a call into
    // Python.
    unsafe {
        let stream = stream(transport)?;
        let data = match Data::new(data) {
            Err(Raised) if ffi::PyErr_ExceptionMatches(ffi::PyExc_BufferError) != 0 => {
                return fail_to_send(transport, stream);
            }
            data => data?,
        };
        check_writable(stream, "write")?;
        if data.bytes().is_empty() || !is_connected(stream)? {
            return Ok(());
        }
        let mut sent = 0;
        if (*stream).queue.is_empty() {
            sent = match send_now(stream, &data) {
                Ok(Ok(sent)) if sent == data.bytes().len() => return Ok(()),
                Ok(Ok(sent)) => sent,
                Ok(Err(error)) if is_not_now(&error) => 0,
                Ok(Err(error)) => {
                    raise_io(&error);
                    return fatal(transport, WRITING_FAILED);
                }
                Err(Raised) => return fatal(transport, WRITING_FAILED),
            };
            if (*stream).conn_lost != 0 || (*stream).loop_.is_null() {
                // A method of the socket closed the connection.
                return Ok(());
            }
            opening::watch(transport, stream, Side::Writer)?;
        }
        let (rest, sent) = if (*stream).queue.is_empty() {
            data.keep(sent)?
        } else {
            // A method of the socket, called for the descriptor or for sending, has itself written to the transport.
            (data.rest(sent)?, 0)
        };
        (*stream).queue.push(rest.into_ptr(), sent);
        pause_if_needed(transport, stream)
    }
}

/// Closes the connection because of a memoryview that is not contiguous, as asyncio does. No socket can send it.
///
/// # Safety
/// `stream` is the state of `transport`, which is alive; an exception is set.
#[cold]
unsafe fn fail_to_send(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    Python::attach(|py| {
        let error = PyErr::take(py);
        // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
        unsafe {
            check_writable(stream, "write")?;
            if !is_connected(stream)? {
                return Ok(());
            }
            if let Some(error) = error {
                error.restore(py);
            }
            fatal(transport, WRITING_FAILED)
        }
    })
}

/// Sends as much as the socket accepts. Returns how much.
unsafe fn send_now(stream: *mut Stream, data: &Data) -> Result<io::Result<usize>> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport.
    unsafe {
        match socket_access::access(stream)? {
            Ok(Access::Descriptor(fd)) => Ok(syscalls::send(fd, data.bytes())),
            Ok(Access::Socket(sock)) => socket_access::send(&sock, data.object, data.bytes().len()),
            Err(error) => Ok(Err(error)),
        }
    }
}

/// Raises if write_eof() was called or a sendfile is in progress.
unsafe fn check_writable(stream: *mut Stream, what: &str) -> Result<()> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport.
    unsafe {
        if (*stream).eof {
            return Err(raise_text(ffi::PyExc_RuntimeError, &format!("Cannot call {what}() after write_eof()")));
        }
        if !(*stream).empty_waiter.is_null() {
            return Err(raise_text(ffi::PyExc_RuntimeError, &format!("unable to {what}; sendfile is in progress")));
        }
        Ok(())
    }
}

/// Returns whether there is still a connection. If not, counts the write, and logs the fifth and later ones, as
/// asyncio does.
unsafe fn is_connected(stream: *mut Stream) -> Result<bool> {
    /// `asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES`
    const QUIETLY: i64 = 5;
    // SAFETY: the caller guarantees that `stream` is the state of a live transport.
    unsafe {
        if (*stream).conn_lost == 0 {
            return Ok(true);
        }
        let count = (*stream).conn_lost;
        (*stream).conn_lost += 1;
        if count >= QUIETLY {
            drop(Owned::returned(ffi::PyObject_CallNoArgs(known().writes_after_loss))?);
        }
        Ok(false)
    }
}

unsafe fn write_pieces(transport: *mut PyObject, lines: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps both alive during the call. No Rust reference to the state lives across a call into Python.
    unsafe {
        let stream = stream(transport)?;
        check_writable(stream, "writelines")?;
        let lines = Owned::returned(ffi::PySequence_List(lines))?;
        let mut pieces = Vec::new();
        for index in 0..ffi::PyList_GET_SIZE(lines.as_ptr()) {
            let line = Owned::new_reference(ffi::PyList_GET_ITEM(lines.as_ptr(), index));
            let piece = Data::new(line.as_ptr())?;
            if !piece.bytes().is_empty() {
                pieces.push(piece.keep(0)?.0);
            }
        }
        if pieces.is_empty() || !is_connected(stream)? {
            return Ok(());
        }
        let was_empty = (*stream).queue.is_empty();
        for piece in pieces {
            (*stream).queue.push(piece.into_ptr(), 0);
        }
        if was_empty {
            match send_queued(stream) {
                Ok(Err(error)) if !is_not_now(&error) => return writing_failed(transport, &error),
                Ok(_) => {}
                Err(Raised) => return raised_in_writing(transport),
            }
            if (*stream).queue.is_empty() || (*stream).loop_.is_null() {
                return Ok(());
            }
            opening::watch(transport, stream, Side::Writer)?;
        }
        pause_if_needed(transport, stream)
    }
}

/// Sends as much as the socket accepts, and drops the finished pieces.
unsafe fn send_queued(stream: *mut Stream) -> Result<io::Result<()>> {
    let mut done = Vec::new();
    // SAFETY: the caller guarantees that `stream` is the state of a live transport. The pieces are dropped last;
    // dropping `bytes` objects runs no Python.
    unsafe {
        let outcome = match socket_access::access(stream)? {
            Ok(Access::Descriptor(fd)) => (*stream).queue.send(fd, &mut done),
            Ok(Access::Socket(sock)) => {
                let sent = socket_access::send_queued(&sock, &raw const (*stream).queue)?;
                sent.map(|sent| (*stream).queue.advance(sent, &mut done))
            }
            Err(error) => Err(error),
        };
        for bytes in done {
            ffi::Py_DECREF(bytes);
        }
        Ok(outcome)
    }
}

unsafe fn write_ready(transport: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe {
        let stream = stream(transport)?;
        if (*stream).conn_lost != 0 || (*stream).queue.is_empty() {
            return Ok(());
        }
        match send_queued(stream) {
            Ok(Ok(())) => sent_some(transport, stream),
            Ok(Err(error)) if is_not_now(&error) => Ok(()),
            Ok(Err(error)) => writing_failed(transport, &error),
            Err(Raised) => raised_in_writing(transport),
        }
    }
}

/// Continues after some or all of the buffer was sent.
unsafe fn sent_some(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        if (*stream).protocol_paused && (*stream).queue.len() as i64 <= (*stream).low_water {
            // The protocol may write from this call.
            call(transport, known().names._maybe_resume_protocol)?;
        }
        if !(*stream).queue.is_empty() || (*stream).loop_.is_null() {
            return Ok(());
        }
        let loop_ = Owned::new_reference((*stream).loop_);
        readers::remove_number(loop_.as_ptr(), (*stream).fd, Side::Writer)?;
        if !(*stream).empty_waiter.is_null() {
            let waiter = Owned::new_reference((*stream).empty_waiter);
            let arguments = [waiter.as_ptr(), ffi::Py_None()];
            let name = known().names.set_result;
            drop(Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut()))?);
        }
        if (*stream).closing {
            return closing::call_connection_lost(transport, ffi::Py_None());
        }
        if !(*stream).eof {
            return Ok(());
        }
        match socket_access::access(stream)? {
            Ok(Access::Descriptor(fd)) if libc::shutdown(fd, libc::SHUT_WR) < 0 => {
                Err(raise_io(&io::Error::last_os_error()))
            }
            Ok(Access::Socket(sock)) => socket_access::shut_down(&sock),
            _ => Ok(()),
        }
    }
}

/// Calls `pause_writing` if the buffer is above the high-water mark.
unsafe fn pause_if_needed(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        if (*stream).protocol_paused || (*stream).queue.len() as i64 <= (*stream).high_water {
            return Ok(());
        }
        call(transport, known().names._maybe_pause_protocol)
    }
}

#[cold]
unsafe fn writing_failed(transport: *mut PyObject, error: &io::Error) -> Result<()> {
    raise_io(error);
    // SAFETY: the caller guarantees that the transport is alive. `raise_io` set an exception.
    unsafe { raised_in_writing(transport) }
}

#[cold]
unsafe fn raised_in_writing(transport: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that an exception is set.
    unsafe { hand_over(transport, "_writing_failed", WRITING_FAILED) }
}
