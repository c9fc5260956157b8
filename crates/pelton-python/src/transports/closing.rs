//! How a stream transport ends.

use std::os::fd::IntoRawFd;
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyMethodDef, PyObject};
use pyo3::prelude::*;

use super::stream::{Stream, stream};
use crate::core;
use crate::known::known;
use crate::methods::{with_one, without_arguments};
use crate::object::{Owned, Raised, Result, or_none};
use crate::readers::{self, Side};
use crate::scheduling;

/// The methods.
pub(crate) fn methods() -> Vec<PyMethodDef> {
    vec![
        without_arguments!(c"close", close, c"Close the transport, when everything has been sent."),
        with_one!(c"_call_connection_lost", call_connection_lost, c"Tell the protocol, and close the socket."),
    ]
}

/// Ends it once everything has been sent.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`.
pub(crate) unsafe fn close(transport: *mut PyObject) -> Result<()> {
    // SAFETY: as the caller says. A transport that is not closing has a loop, unless its constructor has failed.
    unsafe {
        let stream = stream(transport)?;
        if (*stream).closing || (*stream).loop_.is_null() {
            return Ok(());
        }
        (*stream).closing = true;
        let loop_ = Owned::new_reference((*stream).loop_);
        let fd = (*stream).fd;
        readers::remove_number(loop_.as_ptr(), fd, Side::Reader)?;
        if (*stream).queue.is_empty() {
            (*stream).conn_lost += 1;
            readers::remove_number(loop_.as_ptr(), fd, Side::Writer)?;
            let lost = Owned::returned(ffi::PyObject_GetAttr(transport, known().names._call_connection_lost))?;
            scheduling::soon(loop_.as_ptr(), lost.as_ptr(), &[ffi::Py_None()])?;
        }
        Ok(())
    }
}

/// Tells the protocol that the connection is lost, `None` if in order, and lets go of everything.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`, `error` alive.
pub(crate) unsafe fn call_connection_lost(transport: *mut PyObject, error: *mut PyObject) -> Result<()> {
    // SAFETY: as the caller says.
    unsafe {
        let stream = stream(transport)?;
        // From here on, writes are let pass; also if what was waiting at close() has been sent only now.
        (*stream).conn_lost += 1;
        let mut told = Ok(());
        if (*stream).connected {
            // Somebody may have set it to None, which is an error, as in asyncio.
            let protocol = Owned::returned(or_none((*stream).protocol))?;
            let arguments = [protocol.as_ptr(), error];
            let name = known().names.connection_lost;
            told = Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop);
        }
        if told.is_ok() {
            return let_go(transport, stream);
        }
        Python::attach(|py| {
            let raised = PyErr::fetch(py);
            if let Err(Raised) = let_go(transport, stream) {
                // Of two exceptions, the first is what is of interest.
                drop(PyErr::take(py));
            }
            raised.restore(py);
            Err(Raised)
        })
    }
}

/// Closes the socket, and lets go of loop, protocol and server.
unsafe fn let_go(transport: *mut PyObject, stream: *mut Stream) -> Result<()> {
    // SAFETY: the transport is alive. Each reference is out of its field before it is used, and let go of.
    unsafe {
        let was_gone = ptr::replace(&raw mut (*stream).gone, true);
        let loop_ = Owned::taken(ptr::replace(&raw mut (*stream).loop_, null_mut()));
        let protocol = Owned::taken(ptr::replace(&raw mut (*stream).protocol, null_mut()));
        let server = Owned::taken(ptr::replace(&raw mut (*stream).server, null_mut()));
        let waiter = Owned::taken(ptr::replace(&raw mut (*stream).empty_waiter, null_mut()));
        if let Some(loop_) = &loop_ {
            forget(loop_, transport, (*stream).fd)?;
        }
        if let Some(own) = (*stream).own.take() {
            // Whoever has closed it behind our back is not to be punished for it, as dropping it would in a debug build.
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

/// Takes a transport out of the dictionary of `loop._transports`, if it is still there.
unsafe fn forget(loop_: &Owned, transport: *mut PyObject, fd: i32) -> Result<()> {
    // SAFETY: both are alive. A transport has only one weak reference without a callback at a time.
    unsafe {
        let core = core::core(loop_.as_ptr())?;
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
