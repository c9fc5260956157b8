//! Methods that report the state of a stream transport: `get_extra_info`, buffer size, flags, protocol and socket.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::ptr::null_mut;

use pyo3::ffi::{self, PyMethodDef, PyObject};

use super::connection;
use super::stream::{Stream, stream};
use crate::known::known;
use crate::sockets::addresses::{self, Peer};
use pelton_cpython::arguments::{Call, complain};
use pelton_cpython::object::{Owned, Raised, Result, check, fill_once, or_none, raise, replace};
use pelton_cpython::{with_keywords, without_arguments};

pub(crate) fn methods() -> Vec<PyMethodDef> {
    vec![
        with_keywords!(c"get_extra_info", get_extra_info, c"Return optional transport information."),
        without_arguments!(c"get_write_buffer_size", buffer_size, c"Return the number of bytes in the write buffer."),
        without_arguments!(c"is_closing", is_closing, c"Return True if the transport is closing or closed."),
        without_arguments!(c"is_reading", is_reading, c"Return True if the transport is receiving."),
        without_arguments!(c"get_protocol", get_protocol, c"Return the protocol."),
    ]
}

unsafe fn buffer_size(transport: *mut PyObject) -> Result<usize> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe { stream(transport).and_then(|stream| connection::queued(stream)) }
}

unsafe fn is_closing(transport: *mut PyObject) -> Result<bool> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe { stream(transport).map(|stream| (*stream).closing) }
}

unsafe fn is_reading(transport: *mut PyObject) -> Result<bool> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe { stream(transport).map(|stream| !(*stream).closing && !(*stream).paused) }
}

unsafe fn get_protocol(transport: *mut PyObject) -> Result<Owned> {
    // SAFETY: Python keeps the transport alive during the call.
    unsafe { stream(transport).and_then(|stream| Owned::returned(or_none((*stream).protocol))) }
}

/// `get_extra_info(name, default=None)`
unsafe fn get_extra_info(transport: *mut PyObject, call: Call) -> Result<Owned> {
    // SAFETY: Python keeps the transport and the arguments alive during the call. `call.arguments` has `call.count`
    // positional arguments, followed by one for each keyword.
    unsafe {
        let stream = stream(transport)?;
        let names = &known().names;
        let inherited = Owned::returned(ffi::PyObject_GetAttr(known().transport_base, names.get_extra_info))?;
        if inherited.as_ptr() != known().get_extra_info {
            return call_inherited(transport, inherited, call);
        }
        if call.count > 2 {
            let message = c"get_extra_info() takes a name and a default";
            return Err(raise(ffi::PyExc_TypeError, message));
        }
        let mut given = [null_mut(), ffi::Py_None()];
        for (index, place) in given.iter_mut().enumerate().take(call.count) {
            *place = *call.arguments.add(index);
        }
        let keywords = if call.keywords.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(call.keywords) };
        for index in 0..keywords {
            let keyword = ffi::PyTuple_GET_ITEM(call.keywords, index);
            let value = *call.arguments.add(call.count + index as usize);
            if pelton_cpython::arguments::is_called(keyword, names.name)? {
                given[0] = value;
            } else if pelton_cpython::arguments::is_called(keyword, names.default)? {
                given[1] = value;
            } else {
                return Err(complain(call.function, "got an unexpected keyword argument", keyword));
            }
        }
        let [name, default] = given;
        if name.is_null() {
            return Err(complain(call.function, "missing required positional argument:", names.name));
        }
        if (*stream).extra.is_null() && ffi::PyUnicode_CheckExact(name) != 0 {
            // Fast path: most callers want an address, or an entry that only TLS connections have.
            if pelton_cpython::arguments::is_called(name, names.peername)? {
                return addresses::to_python(&(*stream).their_address);
            }
            if pelton_cpython::arguments::is_called(name, names.sockname)? {
                return addresses::to_python(&(*stream).our_address);
            }
            if !pelton_cpython::arguments::is_called(name, names.socket)? {
                return Ok(Owned::new_reference(default));
            }
        }
        let extra = extra(stream)?;
        let value = ffi::PyDict_GetItemWithError(extra.as_ptr(), name);
        if !value.is_null() {
            return Ok(Owned::new_reference(value));
        }
        if ffi::PyErr_Occurred().is_null() { Ok(Owned::new_reference(default)) } else { Err(Raised) }
    }
}

/// Calls the method with which the program replaced asyncio's `get_extra_info`.
#[cold]
unsafe fn call_inherited(transport: *mut PyObject, method: Owned, call: Call) -> Result<Owned> {
    // SAFETY: Python keeps the transport and the arguments alive during the call. They are passed on as they were
    // received.
    unsafe {
        // Functions are bound to the transport. Other callables, such as mocks, are called without it.
        let bind = (*ffi::Py_TYPE(method.as_ptr())).tp_descr_get;
        let method = match bind {
            Some(bind) => Owned::returned(bind(method.as_ptr(), transport, ffi::Py_TYPE(transport).cast()))?,
            None => method,
        };
        let called = ffi::PyObject_Vectorcall(method.as_ptr(), call.arguments, call.count, call.keywords);
        Owned::returned(called)
    }
}

/// Returns the socket object, and creates it at the first request. From then on the object owns the descriptor.
///
/// # Safety
/// `stream` is the state of a live transport.
pub(crate) unsafe fn socket_object(stream: *mut Stream) -> Result<Owned> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport. `make_socket` takes over the
    // descriptor only when it succeeds.
    unsafe {
        loop {
            if !(*stream).sock.is_null() {
                return Ok(Owned::new_reference((*stream).sock));
            }
            let fd = (*stream).own.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let kind = (*stream).kind;
            let numbers = ffi::Py_BuildValue(c"(iii)".as_ptr(), kind.family, kind.protocol, fd);
            let numbers = Owned::returned(numbers)?;
            let sock = Owned::returned(ffi::PyObject_CallObject(known().make_socket, numbers.as_ptr()))?;
            if (*stream).own.as_ref().map_or(-1, AsRawFd::as_raw_fd) == fd && (*stream).sock.is_null() {
                if let Some(own) = (*stream).own.take() {
                    let _ = own.into_raw_fd();
                }
                set_socket_object(stream, sock.as_ptr());
                return Ok(sock);
            }
            // `make_socket` ran Python code, such as an audit hook, that requested the socket object too or closed
            // the transport. This object must not close the descriptor.
            drop(Owned::returned(ffi::PyObject_CallMethodNoArgs(sock.as_ptr(), known().names.detach))?);
        }
    }
}

/// Sets the socket object, which owns the descriptor that the reactor borrows.
///
/// # Safety
/// `stream` is the state of a live transport, `sock` alive.
pub(crate) unsafe fn set_socket_object(stream: *mut Stream, sock: *mut PyObject) {
    // SAFETY: the caller guarantees it. The reactor's reference to the previous object is replaced before that is dropped.
    unsafe {
        if let Some(lent) = &(*stream).lent {
            if ffi::PyObject_TypeCheck(sock, known().plain_socket) != 0 {
                lent.set_socket(sock);
            } else {
                // Its descriptor cannot be asked for without running Python code.
                lent.end();
            }
        }
        replace(&raw mut (*stream).sock, sock);
    }
}

/// Returns the dictionary behind `get_extra_info`, and creates it at the first request.
///
/// # Safety
/// `stream` is the state of a live transport.
pub(crate) unsafe fn extra(stream: *mut Stream) -> Result<Owned> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport.
    unsafe {
        if (*stream).extra.is_null() {
            let extra = Owned::returned(ffi::PyDict_New())?;
            fill(stream, extra.as_ptr())?;
            return Ok(fill_once(&raw mut (*stream).extra, extra));
        }
        Ok(Owned::new_reference((*stream).extra))
    }
}

/// Adds the entries that every stream has to `extra`.
///
/// # Safety
/// `stream` is the state of a live transport, `extra` a dictionary.
pub(crate) unsafe fn fill(stream: *mut Stream, extra: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that `stream` is the state of a live transport and that `extra` is alive.
    // `PyDict_SetItem` checks that it is a dictionary.
    unsafe {
        let names = &known().names;
        let sock = socket_object(stream)?;
        let sock = Owned::returned(ffi::PyObject_CallOneArg(known().transport_socket, sock.as_ptr()))?;
        check(ffi::PyDict_SetItem(extra, names.socket, sock.as_ptr()))?;
        let ours = addresses::to_python(&(*stream).our_address)?;
        check(ffi::PyDict_SetItem(extra, names.sockname, ours.as_ptr()))?;
        let asked_later = matches!((*stream).their_address, Peer::Other);
        if !asked_later && ffi::PyDict_Contains(extra, names.peername) == 0 {
            let theirs = addresses::to_python(&(*stream).their_address)?;
            check(ffi::PyDict_SetItem(extra, names.peername, theirs.as_ptr()))?;
        }
        Ok(())
    }
}
