//! `pelton.StreamTransport`: a connected stream socket, TCP or Unix.
//!
//! It derives from `pelton._transports.BaseStreamTransport`, and that from asyncio's own transport, whose methods use the
//! fields here by name. The hidden object behind it also is what these methods find as `_buffer`.

use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject};

use super::queue::WriteQueue;
use super::{stream_fields, stream_io};
use crate::hidden::{self, Hidden, Place};
use crate::object::{Result, none};
use crate::panic::guard;
use crate::types;

/// The state of a transport. References are owned, or null for `None`.
///
/// The rules are those of a loop's core: raw pointers, and no Rust reference across a call that could come back.
pub(crate) struct Stream {
    pub(crate) loop_: *mut PyObject,
    pub(crate) protocol: *mut PyObject,
    /// The socket object, which owns the descriptor: it is asked each time, since somebody may have closed it.
    pub(crate) sock: *mut PyObject,
    pub(crate) empty_waiter: *mut PyObject,
    pub(crate) queue: WriteQueue,
    /// The descriptor, as Python code is told; that of the socket object is what is used.
    pub(crate) fd: RawFd,
    /// Not 0 from when `connection_lost` is on its way; counts writes after that.
    pub(crate) conn_lost: i64,
    pub(crate) closing: bool,
    pub(crate) paused: bool,
    pub(crate) eof: bool,
    /// The protocol has its own buffer to receive into.
    pub(crate) buffered: bool,
}

static PLACE: Place = Place::new();

// SAFETY: these are all. What waits to be sent is `bytes`, which refer to nothing.
unsafe impl Hidden for Stream {
    const NAME: &'static CStr = c"pelton._pelton.WriteQueue";
    type References = [*mut *mut PyObject; 4];

    fn place() -> &'static Place {
        &PLACE
    }

    fn empty() -> Stream {
        Stream {
            loop_: null_mut(),
            protocol: null_mut(),
            sock: null_mut(),
            empty_waiter: null_mut(),
            queue: WriteQueue::default(),
            fd: -1,
            conn_lost: 0,
            closing: false,
            paused: false,
            eof: false,
            buffered: false,
        }
    }

    unsafe fn references(this: *mut Stream) -> Self::References {
        // SAFETY: as the caller says.
        unsafe {
            [
                &raw mut (*this).loop_,
                &raw mut (*this).protocol,
                &raw mut (*this).sock,
                &raw mut (*this).empty_waiter,
            ]
        }
    }

    unsafe fn take_rest(this: *mut Stream) -> Vec<*mut PyObject> {
        // SAFETY: as the caller says. From here on, whoever still has the transport cannot do anything with it.
        unsafe {
            (*this).conn_lost += 1;
            (*this).queue.take()
        }
    }
}

/// The state of a transport.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`.
#[inline]
pub(crate) unsafe fn stream(transport: *mut PyObject) -> Result<*mut Stream> {
    // SAFETY: as the caller says.
    unsafe { hidden::state(transport) }
}

/// `len(transport._buffer)`: how many bytes wait.
unsafe extern "C" fn queue_len(object: *mut PyObject) -> Py_ssize_t {
    // SAFETY: Python calls it with a live state.
    unsafe { (*hidden::inside::<Stream>(object)).queue.len() as Py_ssize_t }
}

/// `transport._buffer.clear()`
unsafe extern "C" fn clear_queue(object: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live state; all is taken out before it is let go of.
        unsafe {
            for bytes in (*hidden::inside::<Stream>(object)).queue.take() {
                ffi::Py_DECREF(bytes);
            }
        }
        none()
    })
}

/// Makes the type.
///
/// # Safety
/// `base` is `pelton._transports.BaseStreamTransport`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let slots = [
        (ffi::Py_tp_methods, stream_io::methods()),
        (ffi::Py_tp_getset, stream_fields::attributes()),
        (ffi::Py_tp_doc, c"A connected stream socket, as protocols see it.".as_ptr() as *mut c_void),
    ];
    let methods = vec![types::without_arguments(c"clear", clear_queue, c"Forget everything that waits to be sent.")];
    let state_slots = [(ffi::Py_sq_length, queue_len as *mut c_void), (ffi::Py_tp_methods, types::methods(methods))];
    // SAFETY: as the caller says.
    unsafe { hidden::make_type::<Stream>(c"pelton.StreamTransport", base, &slots, &state_slots) }
}
