//! `sock_recv` and `sock_sendall`: the parts that are tried at once, and how a `sock_recv` waits.
//!
//! A program that works with `sock_recv` waits for the same socket over and over. So when one is done, the engine goes on
//! watching the socket for the next; and since the last one has most often emptied it, the next does not try to receive before
//! it waits. If something does come in while nobody waits, watching ends.

use std::ffi::c_void;
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use crate::core;
use crate::known::known;
use crate::object::{Owned, Raised, Result, check, raise_io};
use crate::readers::{self, Side};
use crate::syscalls::{self, is_not_now};
use crate::{fields, handle, handle_memory};

/// What tells the Python side that asyncio's own way has to be gone.
unsafe fn not_here() -> Result<Owned> {
    // SAFETY: it is always there.
    unsafe { Ok(Owned::new_reference(ffi::Py_NotImplemented())) }
}

/// The descriptor of a plain `socket.socket`, or `None` for anything else: a TLS socket, a class of somebody's own.
unsafe fn plain(loop_: *mut PyObject, sock: *mut PyObject) -> Result<Option<i32>> {
    // SAFETY: both are alive.
    unsafe {
        if ffi::Py_TYPE(sock).cast() != known().socket || core::is_in_debug_mode(loop_) {
            return Ok(None);
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock, known().names.fileno))?;
        let fd = fields::whole(fd.as_ptr())?;
        Ok((fd >= 0).then_some(fd as i32))
    }
}

/// `_recv(sock, n)`: what was received, or a future for it, or `NotImplemented`.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn recv(loop_: *mut PyObject, [sock, size]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: Python calls it with a live loop and that many arguments.
    unsafe {
        let core = core::core(loop_)?;
        core::check_open(core)?;
        let Some(fd) = plain(loop_, sock)? else { return not_here() };
        if ffi::PyLong_CheckExact(size) == 0 {
            return not_here();
        }
        let wanted = fields::whole(size)?;
        if wanted < 0 {
            return not_here();
        }
        let waits = readers::keeps(core, fd, sock)?;
        if waits != readers::Kept::Emptied {
            match syscalls::receive_bytes(fd, wanted as usize) {
                Ok(data) => return data,
                Err(error) if is_not_now(&error) => {}
                Err(error) => return Err(raise_io(&error)),
            }
        }
        if waits == readers::Kept::Not {
            readers::refuse_transports(loop_, sock)?;
        }
        let future = crate::scheduling::create_future(loop_)?;
        if (*core).socket_ready.is_null() {
            let method = ffi::PyObject_GetAttr(loop_, known().names._recv_ready);
            (*core).socket_ready = Owned::returned(method)?.into_ptr();
            (*core).socket_context = Owned::returned(ffi::PyContext_New())?.into_ptr();
        }
        let method = Owned::new_reference((*core).socket_ready);
        let context = Owned::new_reference((*core).socket_context);
        let waiting = [future.as_ptr(), sock, size];
        let handle = handle::new(loop_, method.as_ptr(), &waiting, context.as_ptr())?;
        handle_memory::track(handle.as_ptr());
        let previous = Owned::taken(readers::wait(core, fd, sock, handle)?);
        if let Some(previous) = previous {
            handle::cancel(previous.as_ptr())?;
        }
        Ok(future)
    }
}

/// `_recv_ready(future, sock, n)`: the socket that a `sock_recv` waits for is readable.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn recv_ready(loop_: *mut PyObject, [future, sock, size]: [*mut PyObject; 3]) -> Result<()> {
    // SAFETY: only handles that `recv` has made call it, with these arguments; they keep them alive.
    unsafe {
        let core = core::core(loop_)?;
        // Before receiving: what a future that was cancelled receives is lost.
        if is_done(future)? {
            return Ok(());
        }
        let fd = Owned::returned(ffi::PyObject_CallMethodNoArgs(sock, known().names.fileno))?;
        let fd = fields::whole(fd.as_ptr())? as i32;
        let wanted = (fields::whole(size)? as usize).min(syscalls::RECEIVE);
        let received = syscalls::receive_bytes(fd, wanted);
        if let Err(error) = &received
            && is_not_now(error)
        {
            return Ok(());
        }
        let emptied = matches!(&received, Ok(Ok(data)) if (ffi::PyBytes_Size(data.as_ptr()) as usize) < wanted);
        if fd >= 0 {
            let reader = readers::keep(core, fd, sock, emptied)?;
            ffi::Py_XDECREF(reader);
        }
        match received {
            Ok(data) => {
                let data = data?;
                let arguments = [future, data.as_ptr()];
                let name = known().names.set_result;
                Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
            }
            Err(error) => set_exception(future, &error),
        }
    }
}

unsafe fn is_done(future: *mut PyObject) -> Result<bool> {
    // SAFETY: it is alive.
    unsafe {
        let done = Owned::returned(ffi::PyObject_CallMethodNoArgs(future, known().names.done))?;
        fields::truth(done.as_ptr())
    }
}

#[cold]
unsafe fn set_exception(future: *mut PyObject, error: &std::io::Error) -> Result<()> {
    pyo3::Python::attach(|py| {
        let Raised = raise_io(error);
        let raised = pyo3::PyErr::fetch(py);
        // SAFETY: all are alive for the length of the call.
        unsafe {
            let arguments = [future, raised.value(py).as_ptr()];
            let name = known().names.set_exception;
            Owned::returned(ffi::PyObject_VectorcallMethod(name, arguments.as_ptr(), 2, null_mut())).map(drop)
        }
    })
}

/// `_stop_waiting(fd, future)`: the `sock_recv` that waits for this future is given up.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn stop_waiting(loop_: *mut PyObject, [fd, future]: [*mut PyObject; 2]) -> Result<()> {
    // SAFETY: Python calls it with a live loop and that many arguments.
    unsafe {
        let core = core::core(loop_)?;
        let fd = fields::whole(fd)? as i32;
        let (reader, _) = (*core).readers.of(fd);
        if reader.is_null() || handle::first_argument(reader) != future || (*core).closed {
            return Ok(());
        }
        let reader = Owned::taken(readers::set(core, fd, Side::Reader, null_mut())?);
        reader.map_or(Ok(()), |reader| handle::cancel(reader.as_ptr()))
    }
}

/// `_send(sock, data)`: `None` if all of it was sent, else how many bytes, or `NotImplemented`.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn send(loop_: *mut PyObject, [sock, data]: [*mut PyObject; 2]) -> Result<Owned> {
    // SAFETY: Python calls it with a live loop and that many arguments. The view keeps the data in place.
    unsafe {
        let Some(fd) = plain(loop_, sock)? else { return not_here() };
        let mut view: ffi::Py_buffer = std::mem::zeroed();
        check(ffi::PyObject_GetBuffer(data, &mut view, ffi::PyBUF_SIMPLE))?;
        let data: &[u8] = match view.len {
            0 => &[],
            len => std::slice::from_raw_parts(view.buf.cast::<c_void>().cast(), len as usize),
        };
        let (sent, len) = (syscalls::send(fd, data), data.len());
        ffi::PyBuffer_Release(&mut view);
        match sent {
            Ok(sent) if sent == len => Ok(Owned::new_reference(ffi::Py_None())),
            Ok(sent) => Owned::returned(ffi::PyLong_FromSize_t(sent)),
            Err(error) if is_not_now(&error) => Owned::returned(ffi::PyLong_FromSize_t(0)),
            Err(error) => Err(raise_io(&error)),
        }
    }
}
