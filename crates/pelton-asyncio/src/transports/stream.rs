//! `pelton.StreamTransport`: a connected stream socket, TCP or Unix.
//!
//! It derives from `pelton._transports.BaseStreamTransport`, which derives from asyncio's own transport. The
//! inherited methods use the fields here by name. They see the hidden state object as `_buffer`.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::null_mut;
use std::rc::Rc;

use pelton::ConnectionId;
use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject};

use super::{closing, connection, extra_info, opening, reading, stream_fields, writing};
use crate::event_loop::state::LoopState;
use crate::readers::Lent;
use crate::sockets::addresses::Peer;
use pelton_cpython::hidden::{self, Hidden, Layout};
use pelton_cpython::object::Result;
use pelton_cpython::panic::guard;
use pelton_cpython::types;
use pelton_cpython::without_arguments;

/// The state of a transport. References are owned, or null for `None`.
///
/// As for a loop's core: it is accessed through raw pointers, and no Rust reference to it lives across a call that
/// may run Python.
pub(crate) struct Stream {
    pub(crate) loop_: *mut PyObject,
    pub(crate) protocol: *mut PyObject,
    pub(crate) server: *mut PyObject,
    pub(crate) empty_waiter: *mut PyObject,
    /// The dictionary behind `get_extra_info`, created when something other than an address is requested.
    pub(crate) extra: *mut PyObject,
    /// The socket object, if there is one. Most connections never need it. It owns the descriptor, and is asked for
    /// the descriptor each time because the program may have closed it.
    pub(crate) sock: *mut PyObject,
    /// The descriptor while there is no socket object.
    pub(crate) own: Option<OwnedFd>,
    /// Needed to create the socket object.
    pub(crate) kind: Kind,
    pub(crate) our_address: Peer,
    pub(crate) their_address: Peer,
    /// The connection, which borrows the descriptor. `None` until the transport is opened.
    pub(crate) connection: Option<Connected>,
    pub(crate) lent: Option<Rc<Lent>>,
    /// The number of bytes in the connection's queue, when it was last known.
    pub(crate) queued: usize,
    /// The descriptor number reported to Python code, even after it is closed.
    pub(crate) fd: RawFd,
    /// Nonzero once `connection_lost` is scheduled; from then on it counts writes.
    pub(crate) conn_lost: i64,
    pub(crate) high_water: i64,
    pub(crate) low_water: i64,
    /// Expected size of the next receive.
    pub(crate) expected: usize,
    pub(crate) closing: bool,
    /// The socket is closed, and `transport._sock` is `None`.
    pub(crate) gone: bool,
    pub(crate) paused: bool,
    pub(crate) eof: bool,
    /// The protocol provides the buffer to receive into.
    pub(crate) buffered: bool,
    /// `connection_lost` must be called when the connection ends.
    pub(crate) connected: bool,
    pub(crate) protocol_paused: bool,
    /// Bytes were queued, and `_write_ready` has not found the queue empty since.
    pub(crate) unsent: bool,
}

/// A connection of the reactor that belongs to this core. Another reactor's connections have the same ids.
#[derive(Clone, Copy)]
pub(crate) struct Connected {
    pub(crate) id: ConnectionId,
    /// Only compared.
    pub(crate) core: *mut LoopState,
}

/// Family and protocol of a stream socket, as system constants.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) family: c_int,
    pub(crate) protocol: c_int,
}

impl Kind {
    /// Returns whether it is TCP. A socket created without naming a protocol reports 0, which for a stream over IP
    /// means TCP.
    pub(crate) fn is_tcp(self) -> bool {
        matches!(self.protocol, 0 | libc::IPPROTO_TCP) && matches!(self.family, libc::AF_INET | libc::AF_INET6)
    }
}

/// Default high-water mark of the write buffer, as in asyncio.
const HIGH_WATER: i64 = 64 * 1024;

static LAYOUT: Layout = Layout::new();

// SAFETY: `references` lists every field that owns a reference.
unsafe impl Hidden for Stream {
    const NAME: &'static CStr = c"pelton._pelton.WriteQueue";
    type References = [*mut *mut PyObject; 6];

    fn layout() -> &'static Layout {
        &LAYOUT
    }

    fn empty() -> Stream {
        Stream {
            loop_: null_mut(),
            protocol: null_mut(),
            server: null_mut(),
            empty_waiter: null_mut(),
            extra: null_mut(),
            sock: null_mut(),
            own: None,
            kind: Kind::default(),
            our_address: Peer::Unknown,
            their_address: Peer::Unknown,
            connection: None,
            lent: None,
            queued: 0,
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
            unsent: false,
        }
    }

    unsafe fn references(this: *mut Stream) -> Self::References {
        // SAFETY: the caller guarantees that `this` is a live state. Taking addresses of fields reads nothing.
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
        // SAFETY: the caller guarantees that `this` is a live state. A nonzero `conn_lost` makes the transport
        // useless to anyone who still has it. The reactor must not use the socket object, which may be freed now.
        unsafe {
            (*this).conn_lost += 1;
            if let Some(lent) = &(*this).lent {
                lent.end();
            }
            Vec::new()
        }
    }
}

/// Returns the state of a transport.
///
/// # Safety
/// `transport` is a live `pelton.StreamTransport`.
#[inline]
pub(crate) unsafe fn stream(transport: *mut PyObject) -> Result<*mut Stream> {
    // SAFETY: the caller guarantees that the transport is alive and of this type.
    unsafe { hidden::state(transport) }
}

/// `len(transport._buffer)`: the number of queued bytes.
unsafe extern "C" fn queue_len(object: *mut PyObject) -> Py_ssize_t {
    // SAFETY: Python calls it with a live object of the state's type.
    guard(-1, || unsafe { connection::queued(hidden::inside(object)).map_or(-1, |queued| queued as Py_ssize_t) })
}

/// `bool(transport._buffer)`: asyncio's methods ask whether `_write_ready` will be called.
unsafe extern "C" fn queue_bool(object: *mut PyObject) -> c_int {
    // SAFETY: Python calls it with a live object of the state's type.
    unsafe { (*hidden::inside::<Stream>(object)).unsent.into() }
}

/// `transport._buffer.clear()`
unsafe fn clear_queue(object: *mut PyObject) -> Result<()> {
    // SAFETY: Python calls it with a live object of the state's type.
    unsafe { connection::drop_queued(hidden::inside(object)) }
}

/// Creates the type.
///
/// # Safety
/// `base` is `pelton._transports.BaseStreamTransport`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let methods =
        [opening::methods(), closing::methods(), reading::methods(), writing::methods(), extra_info::methods()];
    let methods = methods.into_iter().flatten().collect();
    let slots = [
        (ffi::Py_tp_methods, types::methods(methods)),
        (ffi::Py_tp_getset, stream_fields::attributes()),
        (ffi::Py_tp_doc, c"A connected stream socket, as protocols see it.".as_ptr() as *mut c_void),
    ];
    let methods = vec![without_arguments!(c"clear", clear_queue, c"Discard the write buffer.")];
    let state_slots = [
        (ffi::Py_sq_length, queue_len as *mut c_void),
        (ffi::Py_nb_bool, queue_bool as *mut c_void),
        (ffi::Py_tp_methods, types::methods(methods)),
    ];
    // SAFETY: the caller guarantees that `base` is that class, made in Python. The slots are functions for this
    // type and for its state.
    unsafe { hidden::make_type::<Stream>(c"pelton.StreamTransport", base, &slots, &state_slots) }
}
