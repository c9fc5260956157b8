//! What a stream transport does itself: receiving, sending, and what waits to be sent.

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::slice;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use super::stream::{Stream, stream};
use super::tls::Tls;
use super::tls_io;
use crate::fields;
use crate::hidden;
use crate::known::known;
use crate::object::{Owned, Raised, Result, none, nothing, raise, raise_io, raise_text};
use crate::panic::guard;
use crate::syscalls::{self, RECEIVE, is_not_now};
use crate::types::{self, with_one, without_arguments};

/// The methods, for a type to keep.
pub(crate) fn methods() -> *mut c_void {
    let write_ready_doc = c"Send what waits to be sent.";
    types::methods(vec![
        with_one(c"write", write, c"Write some data, without blocking."),
        with_one(c"writelines", writelines, c"Write several pieces of data, without blocking."),
        without_arguments(c"_read_ready", read_ready, c"Receive, and tell the protocol."),
        // By whatever name asyncio's own transport calls it, in this version or that.
        without_arguments(c"_write_ready", write_ready, write_ready_doc),
        without_arguments(c"_write_sendmsg", write_ready, write_ready_doc),
        without_arguments(c"_write_send", write_ready, write_ready_doc),
        without_arguments(c"get_write_buffer_size", buffer_size, c"Return how many bytes wait to be sent."),
        without_arguments(c"is_closing", is_closing, c"Return True if the transport is closing or closed."),
        without_arguments(c"is_reading", is_reading, c"Return True if the transport is receiving."),
        without_arguments(c"get_protocol", get_protocol, c"Return the protocol."),
    ])
}

unsafe extern "C" fn read_ready(transport: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live transport.
        nothing(unsafe {
            (|| {
                let stream = stream(transport)?;
                if (*stream).conn_lost != 0 || (*stream).protocol.is_null() {
                    return Ok(());
                }
                let protocol = Owned::new_reference((*stream).protocol);
                if hidden::is_exactly::<Tls>(protocol.as_ptr()) {
                    receive_tls(transport, stream, &protocol)
                } else if (*stream).buffered {
                    receive_into(transport, stream, &protocol)
                } else {
                    receive(transport, stream, &protocol)
                }
            })()
        })
    })
}

/// The descriptor of the socket object. If that is closed, the system's error for it: the number may be another file's by now.
unsafe fn descriptor(stream: *mut Stream) -> Result<io::Result<RawFd>> {
    // SAFETY: the state is that of a live transport, and keeps its socket.
    unsafe {
        let fd = if (*stream).sock.is_null() {
            -1
        } else {
            let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs((*stream).sock, known().names.fileno))?;
            fields::whole(fd.as_ptr())?
        };
        Ok(if fd < 0 { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(fd as RawFd) })
    }
}

/// Receives, and hands it to the protocol's `data_received`.
unsafe fn receive(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the transport is alive, and so its state.
    unsafe {
        let data = match descriptor(stream)?.and_then(|fd| syscalls::receive_bytes(fd, RECEIVE)) {
            Ok(data) => data?,
            Err(error) => return reading_failed(transport, &error),
        };
        if ffi::PyBytes_Size(data.as_ptr()) == 0 {
            return call(transport, known().names._read_ready__on_eof);
        }
        let arguments = [protocol.as_ptr(), data.as_ptr()];
        let name = known().names.data_received;
        let called = ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut());
        let called = Owned::returned(called).map(drop);
        called.or_else(|Raised| fatal(transport, "Fatal error: protocol.data_received() call failed."))
    }
}

/// Receives into a buffer that the protocol offers.
unsafe fn receive_into(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the transport is alive, and so its state. The view keeps the buffer in place until it is released.
    unsafe {
        let mut view: ffi::Py_buffer = std::mem::zeroed();
        if let Err(Raised) = offered_buffer(protocol, &mut view) {
            return fatal(transport, "Fatal error: protocol.get_buffer() call failed.");
        }
        let received = descriptor(stream);
        let received = received.map(|fd| fd.and_then(|fd| syscalls::receive(fd, view.buf.cast(), view.len as usize)));
        ffi::PyBuffer_Release(&mut view);
        let count = match received? {
            Ok(0) => return call(transport, known().names._read_ready__on_eof),
            Ok(count) => count,
            Err(error) => return reading_failed(transport, &error),
        };
        let count = Owned::returned(ffi::PyLong_FromSize_t(count))?;
        let arguments = [protocol.as_ptr(), count.as_ptr()];
        let name = known().names.buffer_updated;
        let called = ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut());
        let called = Owned::returned(called).map(drop);
        called.or_else(|Raised| fatal(transport, "Fatal error: protocol.buffer_updated() call failed."))
    }
}

/// Receives what is to be decrypted.
unsafe fn receive_tls(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the transport is alive, and so its state.
    unsafe {
        let taken = match descriptor(stream)?
            .and_then(|fd| syscalls::receive_shared(fd, |bytes| (bytes.len(), tls_io::received(protocol.as_ptr(), bytes))))
        {
            Ok((0, _)) => return call(transport, known().names._read_ready__on_eof),
            Ok((_, taken)) => taken,
            Err(error) => return reading_failed(transport, &error),
        };
        taken.or_else(|Raised| fatal(transport, "Fatal error: protocol.buffer_updated() call failed."))
    }
}

unsafe fn offered_buffer(protocol: &Owned, view: &mut ffi::Py_buffer) -> Result<()> {
    // SAFETY: all are alive; a view that was got is either handed out or released.
    unsafe {
        let arguments = [protocol.as_ptr(), known().minus_one];
        let name = known().names.get_buffer;
        let buffer = ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut());
        let buffer = Owned::returned(buffer)?;
        if ffi::PyObject_GetBuffer(buffer.as_ptr(), view, ffi::PyBUF_WRITABLE) < 0 {
            return Err(Raised);
        }
        if view.len == 0 {
            ffi::PyBuffer_Release(view);
            return Err(raise(ffi::PyExc_RuntimeError, c"get_buffer() returned an empty buffer"));
        }
        Ok(())
    }
}

#[cold]
unsafe fn reading_failed(transport: *mut PyObject, error: &io::Error) -> Result<()> {
    if is_not_now(error) {
        return Ok(());
    }
    raise_io(error);
    // SAFETY: as the caller says.
    unsafe { fatal(transport, "Fatal read error on socket transport") }
}

/// Ends the connection for what has been raised; `SystemExit` and `KeyboardInterrupt` go on.
#[cold]
unsafe fn fatal(transport: *mut PyObject, message: &str) -> Result<()> {
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
    /// its owner may yet change.
    fn keep(&self, sent: usize) -> Result<(Owned, usize)> {
        // SAFETY: the object is alive.
        unsafe {
            if self.view.is_none() {
                return Ok((Owned::new_reference(self.object), sent));
            }
            let rest = &self.bytes()[sent..];
            Ok((Owned::returned(ffi::PyBytes_FromStringAndSize(rest.as_ptr().cast(), rest.len() as _))?, 0))
        }
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

unsafe extern "C" fn write(transport: *mut PyObject, data: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport and a live argument.
    guard(null_mut(), || nothing(unsafe { write_data(transport, data) }))
}

/// # Safety
/// `transport` is a live `pelton.StreamTransport`, `data` alive.
pub(crate) unsafe fn write_data(transport: *mut PyObject, data: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive. The state is not borrowed while anything is called.
    unsafe {
        let stream = stream(transport)?;
        let data = Data::new(data)?;
        check_writable(stream, "write")?;
        if data.bytes().is_empty() || !is_connected(stream)? {
            return Ok(());
        }
        let mut sent = 0;
        if (*stream).queue.is_empty() {
            sent = match descriptor(stream)?.and_then(|fd| syscalls::send(fd, data.bytes())) {
                Ok(sent) if sent == data.bytes().len() => return Ok(()),
                Ok(sent) => sent,
                Err(error) if is_not_now(&error) => 0,
                Err(error) => {
                    raise_io(&error);
                    return fatal(transport, "Fatal write error on socket transport");
                }
            };
            call(transport, known().names._wait_for_room)?;
        }
        let (rest, sent) = data.keep(sent)?;
        (*stream).queue.push(rest.into_ptr(), sent);
        call(transport, known().names._maybe_pause_protocol)
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

unsafe extern "C" fn writelines(transport: *mut PyObject, lines: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport and a live argument.
    guard(null_mut(), || nothing(unsafe { write_pieces(transport, lines) }))
}

unsafe fn write_pieces(transport: *mut PyObject, lines: *mut PyObject) -> Result<()> {
    // SAFETY: both are alive. The state is not borrowed while anything is called.
    unsafe {
        let stream = stream(transport)?;
        check_writable(stream, "writelines")?;
        let lines = Owned::returned(ffi::PySequence_List(lines))?;
        let mut pieces = Vec::new();
        for index in 0..ffi::PyList_GET_SIZE(lines.as_ptr()) {
            let piece = Data::new(ffi::PyList_GET_ITEM(lines.as_ptr(), index))?;
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
            if let Err(error) = send_queued(stream)?
                && !is_not_now(&error)
            {
                return writing_failed(transport, &error);
            }
            if (*stream).queue.is_empty() {
                return Ok(());
            }
            call(transport, known().names._wait_for_room)?;
        }
        call(transport, known().names._maybe_pause_protocol)
    }
}

/// Sends what there is room for, and lets go of it.
unsafe fn send_queued(stream: *mut Stream) -> Result<io::Result<()>> {
    let mut done = Vec::new();
    // SAFETY: the state is that of a live transport. Letting go of `bytes` calls nothing, and comes last all the same.
    unsafe {
        let outcome = descriptor(stream)?.and_then(|fd| (*stream).queue.send(fd, &mut done));
        for bytes in done {
            ffi::Py_DECREF(bytes);
        }
        Ok(outcome.map(drop))
    }
}

unsafe extern "C" fn write_ready(transport: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live transport.
        nothing(unsafe {
            (|| {
                let stream = stream(transport)?;
                if (*stream).conn_lost != 0 || (*stream).queue.is_empty() {
                    return Ok(());
                }
                match send_queued(stream)? {
                    Ok(()) => call(transport, known().names._sent_some),
                    Err(error) if is_not_now(&error) => Ok(()),
                    Err(error) => writing_failed(transport, &error),
                }
            })()
        })
    })
}

#[cold]
unsafe fn writing_failed(transport: *mut PyObject, error: &io::Error) -> Result<()> {
    raise_io(error);
    // SAFETY: the transport is alive.
    unsafe { hand_over(transport, "_writing_failed", "Fatal write error on socket transport") }
}

unsafe extern "C" fn buffer_size(transport: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe { stream(transport).map_or(null_mut(), |stream| ffi::PyLong_FromSize_t((*stream).queue.len())) }
}

unsafe extern "C" fn is_closing(transport: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe { stream(transport).map_or(null_mut(), |stream| ffi::PyBool_FromLong((*stream).closing.into())) }
}

unsafe extern "C" fn is_reading(transport: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe {
        stream(transport)
            .map_or(null_mut(), |stream| ffi::PyBool_FromLong((!(*stream).closing && !(*stream).paused).into()))
    }
}

unsafe extern "C" fn get_protocol(transport: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe {
        stream(transport).map_or(null_mut(), |stream| {
            if (*stream).protocol.is_null() { none() } else { ffi::Py_NewRef((*stream).protocol) }
        })
    }
}
