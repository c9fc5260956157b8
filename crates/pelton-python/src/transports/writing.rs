//! What a stream transport does when something is written, and when its socket has room.

use std::io;
use std::ptr::null_mut;
use std::slice;

use pyo3::ffi::{self, PyMethodDef, PyObject};
use pyo3::prelude::*;

use super::stream::{Stream, stream};
use super::through::{self, Way};
use super::{closing, opening};
use crate::known::known;
use crate::methods::{with_one_named, without_arguments};
use crate::object::{Owned, Raised, Result, raise_io, raise_text};
use crate::readers::{self, Side};
use crate::syscalls::{self, is_not_now};

const WRITING_FAILED: &str = "Fatal write error on socket transport";

/// The methods.
pub(crate) fn methods() -> Vec<PyMethodDef> {
    let write_ready_doc = c"Send what waits to be sent.";
    vec![
        with_one_named!(c"write", data, write_data, c"write($self, data)\n--\n\nWrite some data, without blocking."),
        with_one_named!(
            c"writelines",
            list_of_data,
            write_pieces,
            c"writelines($self, list_of_data)\n--\n\nWrite several pieces of data, without blocking.",
        ),
        // By whatever name asyncio's own transport calls it, in this version or that.
        without_arguments!(c"_write_ready", write_ready, write_ready_doc),
        without_arguments!(c"_write_sendmsg", write_ready, write_ready_doc),
        without_arguments!(c"_write_send", write_ready, write_ready_doc),
    ]
}

/// Ends the connection for what has been raised; `SystemExit` and `KeyboardInterrupt` go on.
///
/// # Safety
/// `transport` is alive, and an exception is set.
#[cold]
pub(crate) unsafe fn fatal(transport: *mut PyObject, message: &str) -> Result<()> {
    // SAFETY: the transport is alive.
    unsafe { hand_over(transport, "_fatal_error", message) }
}

/// Calls a method with what has been raised, and a message.
///
/// # Safety
/// `transport`, or whose method it is, is alive; an exception is set.
pub(crate) unsafe fn hand_over(transport: *mut PyObject, method: &str, message: &str) -> Result<()> {
    Python::attach(|py| {
        let Some(error) = PyErr::take(py) else { return Ok(()) };
        if error.is_instance_of::<pyo3::exceptions::PySystemExit>(py)
            || error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py)
        {
            error.restore(py);
            return Err(Raised);
        }
        // SAFETY: the transport is alive.
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

/// Calls a method of the transport, without arguments.
unsafe fn call(transport: *mut PyObject, name: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive.
    unsafe { Owned::returned(ffi::PyObject_CallMethodNoArgs(transport, name)).map(drop) }
}

/// Data to be written: what holds it, and a view of it.
pub(crate) struct Data {
    object: *mut PyObject,
    view: Option<ffi::Py_buffer>,
}

impl Data {
    /// # Safety
    /// `object` is alive for as long as the data is used.
    pub(crate) unsafe fn new(object: *mut PyObject) -> Result<Data> {
        // SAFETY: as the caller says.
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
        // SAFETY: a `bytes` object does not change, and a view keeps its buffer in place; the lock keeps others from it.
        unsafe {
            let (start, len) = match &self.view {
                None => (ffi::PyBytes_AsString(self.object).cast_const().cast(), ffi::PyBytes_Size(self.object)),
                Some(view) => (view.buf.cast_const().cast(), view.len),
            };
            if len == 0 { &[] } else { slice::from_raw_parts(start, len as usize) }
        }
    }

    /// A `bytes` object for the queue, and how much of it has been sent: the object itself, or a copy of the rest of what
    /// its owner may yet change. An object of a class derived from `bytes` is copied too: it may refer to others, which the garbage
    /// collector would have to know, and its finalizer may do anything.
    fn keep(&self, sent: usize) -> Result<(Owned, usize)> {
        // SAFETY: the object is alive.
        unsafe {
            if ffi::PyBytes_CheckExact(self.object) != 0 {
                return Ok((Owned::new_reference(self.object), sent));
            }
            Ok((self.rest(sent)?, 0))
        }
    }

    /// A new `bytes` object with what has not been sent.
    fn rest(&self, sent: usize) -> Result<Owned> {
        let rest = &self.bytes()[sent..];
        // SAFETY: the slice is what its pointer and length say.
        unsafe { Owned::returned(ffi::PyBytes_FromStringAndSize(rest.as_ptr().cast(), rest.len() as _)) }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(view) = &mut self.view {
            // SAFETY: it was got, and is released once.
            unsafe { ffi::PyBuffer_Release(view) };
        }
    }
}

/// # Safety
/// `transport` is a live `pelton.StreamTransport`, `data` alive.
pub(crate) unsafe fn write_data(transport: *mut PyObject, data: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive. The state is not borrowed while anything is called.
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
                // A method of the socket's own has ended the connection.
                return Ok(());
            }
            opening::watch(transport, stream, Side::Writer)?;
        }
        let (rest, sent) = if (*stream).queue.is_empty() {
            data.keep(sent)?
        } else {
            // What was asked for a descriptor, or told of the socket, has written something itself.
            (data.rest(sent)?, 0)
        };
        (*stream).queue.push(rest.into_ptr(), sent);
        pause_if_needed(transport, stream)
    }
}

/// Ends the connection for a memoryview that is not in one piece, as asyncio does: no socket can send that.
///
/// # Safety
/// `stream` is the state of `transport`, which is alive; an exception is set.
#[cold]
unsafe fn fail_to_send(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    Python::attach(|py| {
        let error = PyErr::take(py);
        // SAFETY: as the caller says.
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

/// Sends what there is room for: how much of it.
unsafe fn send_now(stream: *mut Stream, data: &Data) -> Result<io::Result<usize>> {
    // SAFETY: the state is that of a live transport.
    unsafe {
        match through::way(stream)? {
            Ok(Way::Descriptor(fd)) => Ok(syscalls::send(fd, data.bytes())),
            Ok(Way::Socket(sock)) => through::send(&sock, data.object, data.bytes().len()),
            Err(error) => Ok(Err(error)),
        }
    }
}

/// Refuses to write after the end, or into a file that is being sent.
unsafe fn check_writable(stream: *mut Stream, what: &str) -> Result<()> {
    // SAFETY: the state is that of a live transport.
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

/// Whether there is somebody to write to. If not, the write is counted, and the fifth and later ones are logged, as in asyncio.
unsafe fn is_connected(stream: *mut Stream) -> Result<bool> {
    /// `asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES`
    const QUIETLY: i64 = 5;
    // SAFETY: the state is that of a live transport.
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
    // SAFETY: both are alive. The state is not borrowed while anything is called.
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

/// Sends what there is room for, and lets go of it.
unsafe fn send_queued(stream: *mut Stream) -> Result<io::Result<()>> {
    let mut done = Vec::new();
    // SAFETY: the state is that of a live transport. Letting go of `bytes` calls nothing, and comes last all the same.
    unsafe {
        let outcome = match through::way(stream)? {
            Ok(Way::Descriptor(fd)) => (*stream).queue.send(fd, &mut done),
            Ok(Way::Socket(sock)) => {
                let sent = through::send_queued(&sock, &raw const (*stream).queue)?;
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
    // SAFETY: the transport is alive.
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

/// There was room, and perhaps for everything.
unsafe fn sent_some(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the transport is alive, and so its state.
    unsafe {
        if (*stream).protocol_paused && (*stream).queue.len() as i64 <= (*stream).low_water {
            // The protocol may write more.
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
        match through::way(stream)? {
            Ok(Way::Descriptor(fd)) if libc::shutdown(fd, libc::SHUT_WR) < 0 => {
                Err(raise_io(&io::Error::last_os_error()))
            }
            Ok(Way::Socket(sock)) => through::shut_down(&sock),
            _ => Ok(()),
        }
    }
}

/// Tells the protocol to pause, if more waits than it wants to.
unsafe fn pause_if_needed(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the transport is alive, and so its state.
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
    // SAFETY: the transport is alive.
    unsafe { raised_in_writing(transport) }
}

#[cold]
unsafe fn raised_in_writing(transport: *mut PyObject) -> Result<()> {
    // SAFETY: the transport is alive, and an exception is set.
    unsafe { hand_over(transport, "_writing_failed", WRITING_FAILED) }
}
