//! Attributes of a stream transport that asyncio's methods use, too.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use super::stream::{Stream, stream};
use crate::fields::{flag, number, reference};
use crate::hidden;
use crate::types::{attribute, attributes as table};

/// All of them, for a type to keep.
pub(crate) fn attributes() -> *mut c_void {
    table(vec![
        reference!(c"_loop", stream, loop_),
        reference!(c"_protocol", stream, protocol),
        reference!(c"_sock", stream, sock),
        reference!(c"_empty_waiter", stream, empty_waiter),
        number!(c"_sock_fd", stream, fd),
        number!(c"_conn_lost", stream, conn_lost),
        flag!(c"_closing", stream, closing),
        flag!(c"_paused", stream, paused),
        flag!(c"_eof", stream, eof),
        flag!(c"_buffered", stream, buffered),
        attribute(c"_buffer", get_buffer, Some(set_buffer)),
    ])
}

unsafe extern "C" fn get_buffer(transport: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live transport.
    unsafe { hidden::state_object::<Stream>(transport).map_or(null_mut(), |object| ffi::Py_NewRef(object)) }
}

/// asyncio's constructor makes a buffer; ours is there already.
unsafe extern "C" fn set_buffer(_: *mut PyObject, _: *mut PyObject, _: *mut c_void) -> c_int {
    0
}
