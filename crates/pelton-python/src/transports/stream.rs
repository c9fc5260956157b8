//! `pelton.StreamTransport`: a connected stream socket, TCP or Unix.
//!
//! It derives from `pelton._transports.BaseStreamTransport`, and that from asyncio's own transport, whose methods use the
//! fields here by name. The hidden object behind it also is what these methods find as `_buffer`.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::null_mut;

use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject};

use super::queue::WriteQueue;
use super::{asking, closing, opening, reading, stream_fields, writing};
use crate::addresses::Peer;
use crate::hidden::{self, Hidden, Place};
use crate::methods::without_arguments;
use crate::object::Result;
use crate::types;

/// The state of a transport. References are owned, or null for `None`.
///
/// The rules are those of a loop's core: raw pointers, and no Rust reference across a call that could come back.
pub(crate) struct Stream {
    pub(crate) loop_: *mut PyObject,
    pub(crate) protocol: *mut PyObject,
    pub(crate) server: *mut PyObject,
    pub(crate) empty_waiter: *mut PyObject,
    /// What `get_extra_info` knows, once somebody has asked for more than addresses.
    pub(crate) extra: *mut PyObject,
    /// The socket object, if there is one: many a connection comes and goes without anybody asking for it. It owns the descriptor,
    /// and is asked for it each time, since somebody may have closed it.
    pub(crate) sock: *mut PyObject,
    /// That object has methods of its own in the place of those of `socket.socket`, which are to be called.
    pub(crate) overridden: bool,
    /// The descriptor, as long as there is no socket object.
    pub(crate) own: Option<OwnedFd>,
    /// What is needed to make that object.
    pub(crate) kind: Kind,
    pub(crate) our_address: Peer,
    pub(crate) their_address: Peer,
    pub(crate) queue: WriteQueue,
    /// The descriptor, as Python code is told; also when it is closed.
    pub(crate) fd: RawFd,
    /// Not 0 from when `connection_lost` is on its way; counts writes after that.
    pub(crate) conn_lost: i64,
    pub(crate) high_water: i64,
    pub(crate) low_water: i64,
    /// How much is likely to be received the next time.
    pub(crate) expected: usize,
    pub(crate) closing: bool,
    /// The socket is closed, and `transport._sock` is `None`.
    pub(crate) gone: bool,
    pub(crate) paused: bool,
    pub(crate) eof: bool,
    /// The protocol has its own buffer to receive into.
    pub(crate) buffered: bool,
    /// The protocol is to be told when the connection is lost.
    pub(crate) connected: bool,
    pub(crate) protocol_paused: bool,
}

/// What a stream socket is, beyond being one: numbers of the system's.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) family: c_int,
    pub(crate) protocol: c_int,
}

impl Kind {
    /// Whether it is TCP. A socket that was made without naming a protocol has 0 for it, which over IP means TCP for a stream.
    pub(crate) fn is_tcp(self) -> bool {
        matches!(self.protocol, 0 | libc::IPPROTO_TCP) && matches!(self.family, libc::AF_INET | libc::AF_INET6)
    }
}

/// How much may wait to be sent before the protocol is told to pause, unless it has said otherwise: as much as in asyncio.
const HIGH_WATER: i64 = 64 * 1024;

static PLACE: Place = Place::new();

// SAFETY: these are all. What waits to be sent is exactly of type `bytes`, which refers to nothing.
unsafe impl Hidden for Stream {
    const NAME: &'static CStr = c"pelton._pelton.WriteQueue";
    type References = [*mut *mut PyObject; 6];

    fn place() -> &'static Place {
        &PLACE
    }

    fn empty() -> Stream {
        Stream {
            loop_: null_mut(),
            protocol: null_mut(),
            server: null_mut(),
            empty_waiter: null_mut(),
            extra: null_mut(),
            sock: null_mut(),
            overridden: false,
            own: None,
            kind: Kind::default(),
            our_address: Peer::Unknown,
            their_address: Peer::Unknown,
            queue: WriteQueue::default(),
            fd: -1,
            conn_lost: 0,
            high_water: HIGH_WATER,
            low_water: HIGH_WATER / 4,
            expected: 0,
            closing: false,
            gone: true,
            paused: false,
            eof: false,
            buffered: false,
            connected: false,
            protocol_paused: false,
        }
    }

    unsafe fn references(this: *mut Stream) -> Self::References {
        // SAFETY: as the caller says.
        unsafe {
            [
                &raw mut (*this).loop_,
                &raw mut (*this).protocol,
                &raw mut (*this).server,
                &raw mut (*this).empty_waiter,
                &raw mut (*this).extra,
                &raw mut (*this).sock,
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
unsafe fn clear_queue(object: *mut PyObject) -> Result<()> {
    // SAFETY: Python calls it with a live state; all is taken out before it is let go of.
    unsafe {
        for bytes in (*hidden::inside::<Stream>(object)).queue.take() {
            ffi::Py_DECREF(bytes);
        }
        Ok(())
    }
}

/// Makes the type.
///
/// # Safety
/// `base` is `pelton._transports.BaseStreamTransport`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let methods = [opening::methods(), closing::methods(), reading::methods(), writing::methods(), asking::methods()];
    let methods = methods.into_iter().flatten().collect();
    let slots = [
        (ffi::Py_tp_methods, types::methods(methods)),
        (ffi::Py_tp_getset, stream_fields::attributes()),
        (ffi::Py_tp_doc, c"A connected stream socket, as protocols see it.".as_ptr() as *mut c_void),
    ];
    let methods = vec![without_arguments!(c"clear", clear_queue, c"Forget everything that waits to be sent.")];
    let state_slots = [(ffi::Py_sq_length, queue_len as *mut c_void), (ffi::Py_tp_methods, types::methods(methods))];
    // SAFETY: as the caller says.
    unsafe { hidden::make_type::<Stream>(c"pelton.StreamTransport", base, &slots, &state_slots) }
}
