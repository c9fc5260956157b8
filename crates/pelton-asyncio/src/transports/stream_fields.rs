//! Attributes of a stream transport that asyncio's own methods use too.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use super::extra_info;
use super::stream::{Stream, stream};
use crate::event_loop::state;
use pelton_cpython::hidden;
use pelton_cpython::methods::answer;
use pelton_cpython::object::{Owned, none, or_none, raise, replace, status};
use pelton_cpython::panic::guard;
use pelton_cpython::types::{attribute, attributes as table};
use pelton_cpython::{flag, number, reference};

/// Returns the table of attributes.
pub(crate) fn attributes() -> *mut c_void {
    table(vec![
        attribute(c"_loop", get_loop, Some(set_loop)),
        reference!(c"_protocol", stream, protocol),
        reference!(c"_server", stream, server),
        reference!(c"_empty_waiter", stream, empty_waiter),
        number!(c"_sock_fd", stream, fd),
        number!(c"_conn_lost", stream, conn_lost),
        number!(c"_high_water", stream, high_water),
        number!(c"_low_water", stream, low_water),
        flag!(c"_closing", stream, closing),
        flag!(c"_paused", stream, paused),
        flag!(c"_eof", stream, eof),
        flag!(c"_buffered", stream, buffered),
        flag!(c"_protocol_connected", stream, connected),
        flag!(c"_protocol_paused", stream, protocol_paused),
        attribute(c"_sock", get_sock, Some(set_sock)),
        attribute(c"_extra", get_extra, Some(set_extra)),
        attribute(c"_buffer", get_buffer, Some(set_buffer)),
    ])
}

unsafe extern "C" fn get_buffer(transport: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe { hidden::state_object::<Stream>(transport).map_or(null_mut(), |object| ffi::Py_NewRef(object)) }
}

/// asyncio's constructor assigns a buffer, but ours already exists.
unsafe extern "C" fn set_buffer(_: *mut PyObject, _: *mut PyObject, _: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn get_loop(transport: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe { stream(transport).map_or(null_mut(), |stream| or_none((*stream).loop_)) }
}

/// Only accepts a `pelton.Loop`, because its fields are used directly.
unsafe extern "C" fn set_loop(transport: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    guard(-1, || {
        // SAFETY: Python calls it with a live transport, and with a live value or null to delete the attribute.
        status(unsafe {
            stream(transport).and_then(|stream| {
                if !value.is_null() && value != ffi::Py_None() && !state::is_loop(value) {
                    return Err(raise(ffi::PyExc_TypeError, c"a stream transport requires a pelton.Loop"));
                }
                replace(&raw mut (*stream).loop_, value);
                Ok(())
            })
        })
    })
}

unsafe extern "C" fn get_sock(transport: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live transport.
        answer(unsafe {
            stream(transport).and_then(|stream| {
                if (*stream).gone { Owned::returned(none()) } else { extra_info::socket_object(stream) }
            })
        })
    })
}

/// asyncio's methods set it to `None` after closing the socket.
unsafe extern "C" fn set_sock(transport: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    guard(-1, || {
        // SAFETY: Python calls it with a live transport, and with a live value or null to delete the attribute.
        status(unsafe {
            stream(transport).map(|stream| {
                (*stream).gone = value.is_null() || value == ffi::Py_None();
                if !(*stream).gone {
                    extra_info::set_socket_object(stream, value);
                    drop((*stream).own.take());
                }
            })
        })
    })
}

unsafe extern "C" fn get_extra(transport: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    guard(null_mut(), || answer(unsafe { stream(transport).and_then(|stream| extra_info::extra(stream)) }))
}

unsafe extern "C" fn set_extra(transport: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    // SAFETY: Python calls it with a live transport, and with a live value or null to delete the attribute.
    guard(-1, || status(unsafe { stream(transport).map(|stream| replace(&raw mut (*stream).extra, value)) }))
}
