//! Receiving: what a stream transport does when its socket is readable.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::slice;

use pelton::Space;
use pyo3::ffi::{self, Py_ssize_t, PyMethodDef, PyObject};

use super::stream::{Stream, stream};
use super::tls::Tls;
use super::writing::fatal;
use super::{closing, connection, socket_access, tls_io};
use crate::event_loop::state;
use crate::known::known;
use crate::readers::{self, Side};
use crate::sockets::syscalls::{self, RECEIVE, is_not_now};
use pelton_cpython::fields;
use pelton_cpython::hidden;
use pelton_cpython::object::{Owned, Raised, Result, raise, raise_io, resize_bytes};
use pelton_cpython::reserve;
use pelton_cpython::without_arguments;

/// A connection that received at least this much is likely to do so again. Receiving directly into a `bytes` object
/// then saves a copy.
const LARGE: usize = 32 * 1024;

/// After every shorter message the expected size decreases by one part in `FORGET`. It decreases slowly because a
/// large message may arrive in pieces.
const FORGET: usize = 8;

const READING_FAILED: &str = "Fatal read error on socket transport";

pub(crate) fn methods() -> Vec<PyMethodDef> {
    vec![without_arguments!(c"_read_ready", read_ready, c"Receive data and pass it to the protocol.")]
}

unsafe fn read_ready(transport: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe {
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
    }
}

/// Receives data and passes it to the protocol's `data_received`.
unsafe fn receive(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        if let Some(sock) = socket_access::replaced(stream)? {
            return receive_through(transport, stream, protocol, &sock);
        }
        let mut failed_after = None;
        let received = if (*stream).expected < LARGE {
            let buffer = syscalls::shared_buffer();
            connection::receive(stream, &mut [Space::from(&mut buffer[..])])?
                .map(|count| bytes_object(&buffer[..count]))
        } else {
            receive_expected(stream, (*stream).expected, &mut failed_after)?
        };
        let data = match received {
            Ok(data) => data?,
            Err(error) => return reading_failed(transport, &error),
        };
        let len = ffi::PyBytes_Size(data.as_ptr()) as usize;
        reserve::received(len);
        let before = (*stream).expected;
        (*stream).expected = len.max(before - before / FORGET);
        if len == 0 {
            return ended(transport, stream, protocol);
        }
        if let Err(Raised) = tell(protocol, known().names.data_received, &data) {
            return fatal(transport, "Fatal error: protocol.data_received() call failed.");
        }
        match failed_after {
            Some(error) if (*stream).conn_lost == 0 => reading_failed(transport, &error),
            _ => Ok(()),
        }
    }
}

/// Receives by the socket's own method and passes the result to `data_received` unchanged.
#[cold]
unsafe fn receive_through(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned, sock: &Owned) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        let data = match socket_access::receive(sock) {
            Ok(Ok(data)) => data,
            Ok(Err(error)) => return reading_failed(transport, &error),
            Err(Raised) => return fatal(transport, READING_FAILED),
        };
        if !fields::truth(data.as_ptr())? {
            return ended(transport, stream, protocol);
        }
        let told = tell(protocol, known().names.data_received, &data);
        told.or_else(|Raised| fatal(transport, "Fatal error: protocol.data_received() call failed."))
    }
}

unsafe fn tell(protocol: &Owned, method: *mut PyObject, what: &Owned) -> Result<()> {
    // SAFETY: `protocol` and `what` are owned references, and method names are never freed.
    unsafe {
        let arguments = [protocol.as_ptr(), what.as_ptr()];
        Owned::returned(ffi::PyObject_VectorcallMethod(method, arguments.as_ptr(), 2, null_mut())).map(drop)
    }
}

/// Receives directly into an object of the expected size. An unused end is returned to the allocator. What does not
/// fit goes to the shared buffer first, so a message is never split because it is larger than the previous one.
///
/// TCP delivers a message larger than its window in pieces, and receiving the first piece makes room for the next.
/// On the same machine the next piece is available as soon as the system call returns. So if less than expected
/// arrived, this receives once more. A program that echoes or forwards the message then saves a turn, a system call
/// to send, and a wake-up of the receiver. An error of the second call goes to `failed_after`.
unsafe fn receive_expected(
    stream: *mut Stream,
    expected: usize,
    failed_after: &mut Option<io::Error>,
) -> Result<io::Result<Result<Owned>>> {
    // SAFETY: nothing else has seen the object until it is complete, and nothing else uses the shared buffer meanwhile.
    unsafe {
        let data = Owned::returned(ffi::PyBytes_FromStringAndSize(std::ptr::null(), expected as Py_ssize_t))?;
        let start = ffi::PyBytes_AsString(data.as_ptr()).cast::<MaybeUninit<u8>>();
        let memory = slice::from_raw_parts_mut(start, expected);
        let shared = syscalls::shared_buffer();
        let rest = &mut shared[..RECEIVE.saturating_sub(expected)];
        let mut count = match connection::receive(stream, &mut [Space::from(&mut *memory), Space::from(&mut *rest)])? {
            Ok(count) => count,
            Err(error) => return Ok(Err(error)),
        };
        if (LARGE..expected).contains(&count) {
            match connection::receive(stream, &mut [Space::from(&mut memory[count..]), Space::from(&mut *rest)])? {
                // The end of the stream will be reported again by the next receive.
                Ok(more) => count += more,
                Err(error) if is_not_now(&error) => {}
                Err(error) => *failed_after = Some(error),
            }
        }
        if count <= expected {
            return Ok(Ok(resize_bytes(data, count)));
        }
        let Ok(whole) = Owned::returned(ffi::PyBytes_FromStringAndSize(std::ptr::null(), count as Py_ssize_t)) else {
            return Ok(Ok(Err(Raised)));
        };
        let whole_start = ffi::PyBytes_AsString(whole.as_ptr()).cast::<MaybeUninit<u8>>();
        whole_start.copy_from_nonoverlapping(start, expected);
        whole_start.add(expected).copy_from_nonoverlapping(rest.as_ptr(), count - expected);
        Ok(Ok(Ok(whole)))
    }
}

/// Creates a `bytes` object from received bytes.
fn bytes_object(received: &[MaybeUninit<u8>]) -> Result<Owned> {
    // SAFETY: pointer and length are those of a slice. The callers pass the part of a buffer that the system has filled.
    unsafe { Owned::returned(ffi::PyBytes_FromStringAndSize(received.as_ptr().cast(), received.len() as Py_ssize_t)) }
}

/// Handles the end of the stream.
unsafe fn ended(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        if (*stream).loop_.is_null() || state::is_in_debug_mode((*stream).loop_) {
            // asyncio's own method logs it.
            let name = known().names._read_ready__on_eof;
            return Owned::returned(ffi::PyObject_CallMethodNoArgs(transport, name)).map(drop);
        }
        let name = known().names.eof_received;
        let Ok(keep_open) = Owned::returned(ffi::PyObject_CallMethodNoArgs(protocol.as_ptr(), name)) else {
            return fatal(transport, "Fatal error: protocol.eof_received() call failed.");
        };
        match ffi::PyObject_IsTrue(keep_open.as_ptr()) {
            0 => closing::close(transport),
            -1 => fatal(transport, "Fatal error: protocol.eof_received() call failed."),
            _ if (*stream).loop_.is_null() => Ok(()),
            _ => {
                // The transport can still write, but there is nothing left to receive.
                let loop_ = Owned::new_reference((*stream).loop_);
                readers::remove_number(loop_.as_ptr(), (*stream).fd, Side::Reader).map(drop)
            }
        }
    }
}

/// Receives into a buffer that the protocol provides.
unsafe fn receive_into(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state. The view keeps the
    // buffer in place until it is released.
    unsafe {
        let mut view: ffi::Py_buffer = std::mem::zeroed();
        let Ok(buffer) = offered_buffer(protocol, &mut view) else {
            return fatal(transport, "Fatal error: protocol.get_buffer() call failed.");
        };
        let room = view.len as usize;
        let received = match socket_access::replaced(stream) {
            Ok(None) => {
                let memory = slice::from_raw_parts_mut(view.buf.cast::<MaybeUninit<u8>>(), room);
                connection::receive(stream, &mut [Space::from(memory)])
            }
            Ok(Some(sock)) => socket_access::receive_into(&sock, buffer.as_ptr(), room),
            Err(Raised) => Err(Raised),
        };
        ffi::PyBuffer_Release(&mut view);
        let count = match received {
            Ok(Ok(0)) => return ended(transport, stream, protocol),
            Ok(Ok(count)) => count,
            Ok(Err(error)) => return reading_failed(transport, &error),
            Err(Raised) => return fatal(transport, READING_FAILED),
        };
        reserve::received(count);
        let count = Owned::returned(ffi::PyLong_FromSize_t(count))?;
        let told = tell(protocol, known().names.buffer_updated, &count);
        told.or_else(|Raised| fatal(transport, "Fatal error: protocol.buffer_updated() call failed."))
    }
}

/// Receives data for a TLS protocol to decrypt.
unsafe fn receive_tls(transport: *mut PyObject, stream: *mut Stream, protocol: &Owned) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive and that `stream` is its state.
    unsafe {
        let taken = match socket_access::replaced(stream)? {
            None => {
                let buffer = syscalls::shared_buffer();
                match connection::receive(stream, &mut [Space::from(&mut buffer[..])])? {
                    Ok(0) => return ended(transport, stream, protocol),
                    Ok(len) => {
                        reserve::received(len);
                        tls_io::received(protocol.as_ptr(), buffer.as_mut_ptr().cast(), len)
                    }
                    Err(error) => return reading_failed(transport, &error),
                }
            }
            Some(sock) => {
                let data = match socket_access::receive_copy(&sock) {
                    Ok(Ok(data)) => data,
                    Ok(Err(error)) => return reading_failed(transport, &error),
                    Err(Raised) => return fatal(transport, READING_FAILED),
                };
                match ffi::PyBytes_Size(data.as_ptr()) as usize {
                    0 => return ended(transport, stream, protocol),
                    len => tls_io::received(protocol.as_ptr(), ffi::PyBytes_AsString(data.as_ptr()).cast(), len),
                }
            }
        };
        taken.or_else(|Raised| fatal(transport, "Fatal error: protocol.buffer_updated() call failed."))
    }
}

/// Returns the buffer that the protocol provides, and fills in a view of it.
unsafe fn offered_buffer(protocol: &Owned, view: &mut ffi::Py_buffer) -> Result<Owned> {
    // SAFETY: `protocol` is an owned reference. On every path, a view that was acquired is returned or released.
    unsafe {
        let arguments = [protocol.as_ptr(), known().minus_one];
        let name = known().names.get_buffer;
        let buffer = ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut());
        let buffer = Owned::returned(buffer)?;
        if ffi::PyObject_GetBuffer(buffer.as_ptr(), view, ffi::PyBUF_WRITABLE) < 0 {
            if ffi::PyErr_ExceptionMatches(ffi::PyExc_BufferError) == 0 {
                return Err(Raised);
            }
            // Raise the same error as the socket's own method.
            ffi::PyErr_Clear();
            return Err(raise(ffi::PyExc_TypeError, c"get_buffer() must return a read-write bytes-like object"));
        }
        if view.len == 0 {
            ffi::PyBuffer_Release(view);
            return Err(raise(ffi::PyExc_RuntimeError, c"get_buffer() returned an empty buffer"));
        }
        Ok(buffer)
    }
}

#[cold]
unsafe fn reading_failed(transport: *mut PyObject, error: &io::Error) -> Result<()> {
    if is_not_now(error) {
        return Ok(());
    }
    raise_io(error);
    // SAFETY: the caller guarantees that the transport is alive. `raise_io` set an exception.
    unsafe { fatal(transport, READING_FAILED) }
}
