//! Sending: what a stream transport does on a write, and when its socket is writable.

use std::io;
use std::ptr::null_mut;
use std::slice;

use bytes::Bytes;
use pyo3::ffi::{self, PyMethodDef, PyObject};
use pyo3::prelude::*;

use super::connection::{self, Outcome, Sent};
use super::stream::{Stream, stream};
use super::{closing, opening, socket_access};
use crate::known::known;
use crate::readers::{self, Side};
use crate::sockets::syscalls::is_not_now;
use pelton_cpython::object::{Owned, Raised, Result, raise_io, raise_text};
use pelton_cpython::{with_one_named, without_arguments};

const WRITING_FAILED: &str = "Fatal write error on socket transport";

pub(crate) fn methods() -> Vec<PyMethodDef> {
    let write_ready_doc = c"Send data from the write buffer.";
    vec![
        with_one_named!(
            c"write",
            known().names.data,
            write_data,
            c"write($self, data)\n--\n\nWrite some data, without blocking."
        ),
        with_one_named!(
            c"writelines",
            known().names.list_of_data,
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

    /// Returns the unsent part for the queue. It refers to the object itself, or is a copy if the owner may change it. Objects of a
    /// class derived from `bytes` are copied too.
    pub(crate) fn keep(&self, sent: usize) -> Bytes {
        // SAFETY: the caller of `new` guarantees that the object is alive.
        unsafe {
            if ffi::PyBytes_CheckExact(self.object) != 0 {
                return connection::bytes_of(self.object).slice(sent..);
            }
        }
        Bytes::copy_from_slice(&self.bytes()[sent..])
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
        if let Some(sock) = socket_access::replaced(stream)? {
            return write_through(transport, stream, &data, &sock);
        }
        match connection::send(stream, &data)? {
            Outcome::Done(Ok(Sent::Everything)) => Ok(()),
            Outcome::Done(Ok(Sent::Queued(queued))) => queued_some(transport, stream, queued),
            Outcome::Done(Err(error)) => {
                raise_io(&error);
                fatal(transport, WRITING_FAILED)
            }
            Outcome::OutOfReach => write_later(transport, stream, &data),
        }
    }
}

/// Continues after some data was queued.
unsafe fn queued_some(transport: *mut PyObject, stream: *mut Stream, queued: usize) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        (*stream).queued = queued;
        if !std::mem::replace(&mut (*stream).unsent, true) {
            opening::watch(transport, stream, Side::Writer)?;
        }
        pause_if_needed(transport, stream, queued)
    }
}

/// Sends by the socket's own method, which a program has replaced. What that does not accept is queued.
#[cold]
unsafe fn write_through(transport: *mut PyObject, stream: *mut Stream, data: &Data, sock: &Owned) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        let len = data.bytes().len();
        let mut sent = 0;
        if !(*stream).unsent {
            sent = match socket_access::send(sock, data.object, len) {
                Ok(Ok(sent)) if sent == len => return Ok(()),
                Ok(Ok(sent)) => sent,
                Ok(Err(_)) => 0,
                Err(Raised) => return fatal(transport, WRITING_FAILED),
            };
            if (*stream).conn_lost != 0 {
                // The method has closed the connection.
                return Ok(());
            }
        }
        match connection::queue(stream, data.keep(sent))? {
            Outcome::Done(Ok(Sent::Queued(queued))) => queued_some(transport, stream, queued),
            Outcome::Done(Ok(Sent::Everything)) | Outcome::OutOfReach => Ok(()),
            Outcome::Done(Err(error)) => {
                raise_io(&error);
                fatal(transport, WRITING_FAILED)
            }
        }
    }
}

/// Makes the loop's thread write, because another thread runs the loop.
#[cold]
unsafe fn write_later(transport: *mut PyObject, stream: *mut Stream, data: &Data) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state, whose loop is not null.
    unsafe {
        let loop_ = Owned::new_reference((*stream).loop_);
        let copy = data.bytes();
        let copy = Owned::returned(ffi::PyBytes_FromStringAndSize(copy.as_ptr().cast(), copy.len() as _))?;
        let write = Owned::returned(ffi::PyObject_GetAttr(transport, known().names.write))?;
        let arguments = [loop_.as_ptr(), write.as_ptr(), copy.as_ptr()];
        let name = known().names.call_soon_threadsafe;
        Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 3, null_mut())).map(drop)
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
                pieces.push(piece.keep(0));
            }
        }
        if pieces.is_empty() || !is_connected(stream)? {
            return Ok(());
        }
        if let Some(sock) = socket_access::replaced(stream)? {
            let joined = Bytes::from(pieces.concat());
            let joined = Owned::returned(ffi::PyBytes_FromStringAndSize(joined.as_ptr().cast(), joined.len() as _))?;
            return write_through(transport, stream, &Data::new(joined.as_ptr())?, &sock);
        }
        match connection::send_pieces(stream, &pieces)? {
            Outcome::Done(Ok(Sent::Everything)) => Ok(()),
            Outcome::Done(Ok(Sent::Queued(queued))) => queued_some(transport, stream, queued),
            Outcome::Done(Err(error)) => writing_failed(transport, &error),
            Outcome::OutOfReach => {
                let joined = pieces.concat();
                let joined =
                    Owned::returned(ffi::PyBytes_FromStringAndSize(joined.as_ptr().cast(), joined.len() as _))?;
                write_later(transport, stream, &Data::new(joined.as_ptr())?)
            }
        }
    }
}

/// Called after the reactor has sent some of the queue, or has failed to.
unsafe fn write_ready(transport: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe {
        let stream = stream(transport)?;
        if (*stream).conn_lost != 0 || !(*stream).unsent {
            return Ok(());
        }
        match connection::with(stream, |io| io.take_send_error().map_or(Ok(()), Err))?.result() {
            Err(error) if is_not_now(&error) => Ok(()),
            Err(error) => writing_failed(transport, &error),
            Ok(()) => sent_some(transport, stream),
        }
    }
}

/// Continues after some or all of the buffer was sent.
unsafe fn sent_some(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        let mut queued = connection::queued(stream)?;
        // asyncio's buffer is empty from here on.
        (*stream).unsent = queued > 0;
        if (*stream).protocol_paused && queued as i64 <= (*stream).low_water {
            // The protocol may write from this call.
            call(transport, known().names._maybe_resume_protocol)?;
            queued = connection::queued(stream)?;
        }
        if queued > 0 || (*stream).loop_.is_null() {
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
        if let Some(sock) = socket_access::replaced(stream)? {
            let how = Owned::returned(ffi::PyLong_FromLong(libc::SHUT_WR.into()))?;
            let arguments = [sock.as_ptr(), how.as_ptr()];
            let name = known().names.shutdown;
            return Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop);
        }
        match connection::with(stream, |io| io.finish_now())? {
            // The program has closed the socket.
            Outcome::Done(Err(error)) if error.raw_os_error() != Some(libc::EBADF) => Err(raise_io(&error)),
            _ => Ok(()),
        }
    }
}

/// Calls `pause_writing` if the buffer is above the high-water mark.
unsafe fn pause_if_needed(transport: *mut PyObject, stream: *mut Stream, queued: usize) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        if (*stream).protocol_paused || queued as i64 <= (*stream).high_water {
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
