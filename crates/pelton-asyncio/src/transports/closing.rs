//! Closing a stream transport.

use std::os::fd::IntoRawFd;
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyMethodDef, PyObject};
use pyo3::prelude::*;

use super::stream::{Stream, stream};
use crate::event_loop::scheduling;
use crate::event_loop::state::{self, LoopState};
use crate::known::known;
use crate::readers::{self, Side};
use pelton_cpython::object::{Owned, Raised, Result, or_none};
use pelton_cpython::{with_one, without_arguments};

pub(crate) fn methods() -> Vec<PyMethodDef> {
    vec![
        without_arguments!(c"close", close, c"Close the transport after sending the write buffer."),
        with_one!(c"_call_connection_lost", call_connection_lost, c"Call connection_lost(), then close the socket."),
    ]
}

/// Closes the transport once the write buffer is empty.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`.
pub(crate) unsafe fn close(transport: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive. A transport that is not closing has a loop unless
    // its constructor failed, and that is checked.
    unsafe {
        let stream = stream(transport)?;
        if (*stream).closing || (*stream).loop_.is_null() {
            return Ok(());
        }
        (*stream).closing = true;
        let loop_ = Owned::new_reference((*stream).loop_);
        let fd = (*stream).fd;
        readers::remove_number(loop_.as_ptr(), fd, Side::Reader)?;
        if !(*stream).unsent {
            (*stream).conn_lost += 1;
            readers::remove_number(loop_.as_ptr(), fd, Side::Writer)?;
            let lost = Owned::returned(ffi::PyObject_GetAttr(transport, known().names._call_connection_lost))?;
            scheduling::soon(loop_.as_ptr(), lost.as_ptr(), &[ffi::Py_None()])?;
        }
        Ok(())
    }
}

/// Calls `connection_lost` with `error`, which is `None` after an orderly close, and releases everything that the
/// transport owns.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`, `error` alive.
pub(crate) unsafe fn call_connection_lost(transport: *mut PyObject, error: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that both are alive.
    unsafe {
        let stream = stream(transport)?;
        // From now on writes are ignored, even if the buffer left over at close() was sent only now.
        (*stream).conn_lost += 1;
        let mut told = Ok(());
        if (*stream).connected {
            // The program may have set it to None, which raises, as in asyncio.
            let protocol = Owned::returned(or_none((*stream).protocol))?;
            let arguments = [protocol.as_ptr(), error];
            let name = known().names.connection_lost;
            told = Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop);
        }
        if told.is_ok() {
            return release(transport, stream);
        }
        Python::attach(|py| {
            let raised = PyErr::fetch(py);
            if let Err(Raised) = release(transport, stream) {
                // The first exception is the interesting one.
                drop(PyErr::take(py));
            }
            raised.restore(py);
            Err(Raised)
        })
    }
}

/// Closes the socket and drops the references to loop, protocol and server.
unsafe fn release(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the caller guarantees that the transport is alive. Each reference is moved out of its field before it
    // is used or dropped, so reentrant calls find null.
    unsafe {
        let was_gone = ptr::replace(&raw mut (*stream).gone, true);
        let loop_ = Owned::taken(ptr::replace(&raw mut (*stream).loop_, null_mut()));
        let protocol = Owned::taken(ptr::replace(&raw mut (*stream).protocol, null_mut()));
        let server = Owned::taken(ptr::replace(&raw mut (*stream).server, null_mut()));
        let waiter = Owned::taken(ptr::replace(&raw mut (*stream).empty_waiter, null_mut()));
        if let Some(loop_) = &loop_ {
            forget(loop_, transport, (*stream).fd)?;
            disconnect(stream, state::of(loop_.as_ptr())?)?;
        }
        if let Some(lent) = (*stream).lent.take() {
            lent.end();
        }
        if let Some(own) = (*stream).own.take() {
            // The program may have closed the descriptor behind our back. Dropping `OwnedFd` would then abort a
            // debug build.
            libc::close(own.into_raw_fd());
        } else if !was_gone && !(*stream).sock.is_null() {
            let sock = Owned::new_reference((*stream).sock);
            drop(Owned::returned(ffi::PyObject_CallMethodNoArgs(sock.as_ptr(), known().names.close))?);
        }
        if let Some(server) = server {
            let arguments = [server.as_ptr(), transport];
            let count = if known().servers_know_transports { 2 } else { 1 };
            let name = known().names._detach;
            drop(Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), count, null_mut()))?);
        }
        if let Some(waiter) = waiter {
            drop(Owned::returned(ffi::PyObject_CallOneArg(known().lost_while_emptying, waiter.as_ptr()))?);
        }
        drop(protocol);
        Ok(())
    }
}

/// Ends the connection of a transport, so that the descriptor can be closed.
///
/// # Safety
/// `stream` is the state of a live transport, `core` that of its loop.
pub(crate) unsafe fn disconnect(stream: *mut Stream, core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        match (*stream).connection.take() {
            Some(connected) if connected.core == core => readers::release(core, (*stream).fd, connected.id),
            _ => Ok(()),
        }
    }
}

/// Removes a transport from `loop._transports`, if it is still there.
unsafe fn forget(loop_: &Owned, transport: *mut PyObject, fd: i32) -> Result<()> {
    // SAFETY: the caller guarantees that both are alive. An object has at most one weak reference without a
    // callback, so comparing addresses is enough.
    unsafe {
        let core = state::of(loop_.as_ptr())?;
        if (*core).transports.is_null() {
            return Ok(());
        }
        let transports = Owned::new_reference((*core).transports);
        let fd = Owned::returned(ffi::PyLong_FromLong(fd.into()))?;
        let reference = Owned::returned(ffi::PyWeakref_NewRef(transport, null_mut()))?;
        let found = ffi::PyDict_GetItemWithError(transports.as_ptr(), fd.as_ptr());
        if found == reference.as_ptr() {
            ffi::PyDict_DelItem(transports.as_ptr(), fd.as_ptr());
        }
        if ffi::PyErr_Occurred().is_null() { Ok(()) } else { Err(Raised) }
    }
}
