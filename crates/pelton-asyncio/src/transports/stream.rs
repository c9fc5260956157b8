//! `pelton.StreamTransport`: a connected stream socket, TCP or Unix.
//!
//! It derives from `pelton._transports.BaseStreamTransport`, which derives from asyncio's own transport. The
//! inherited methods use the fields here by name. They see the hidden state object as `_buffer`.

use std::cell::{Cell, RefCell};
use std::os::fd::{OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use pelton::ConnectionId;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::{closing, connection, extra_info, opening, reading, stream_fields, writing};
use crate::event_loop::state::{self, LoopState};
use crate::sockets::addresses::Peer;
use pelton_cpython::class::{self, Parts, Sequence, State, This};
use pelton_cpython::descriptor::Lent;
use pelton_cpython::object::Result;
use pelton_cpython::slot::{Shared, Slot};

/// A transport, as its methods get it.
pub(crate) type Transport<'a, 'py> = This<'a, 'py, Stream>;

/// The state of a transport.
pub(crate) struct Stream {
    /// A `pelton.Loop`, until the transport is closed.
    pub(crate) its_loop: Slot,
    pub(crate) protocol: Slot,
    pub(crate) server: Slot,
    pub(crate) empty_waiter: Slot,
    /// The dictionary behind `get_extra_info`, created when something other than an address is requested.
    pub(crate) extra: Slot,
    /// The socket object, if there is one. Most connections never need it. It owns the descriptor, and is asked for
    /// the descriptor each time because the program may have closed it.
    pub(crate) sock: Slot,
    /// The descriptor while there is no socket object.
    pub(crate) own: RefCell<Option<OwnedFd>>,
    /// Needed to create the socket object.
    pub(crate) kind: Cell<Kind>,
    pub(crate) our_address: Cell<Peer>,
    pub(crate) their_address: Cell<Peer>,
    /// The connection, which borrows the descriptor. `None` until the transport is opened.
    pub(crate) connection: RefCell<Option<Connected>>,
    pub(crate) lent: Borrowable,
    /// The number of bytes in the connection's queue, when it was last known.
    pub(crate) queued: Cell<usize>,
    /// The descriptor number reported to Python code, even after it is closed.
    pub(crate) fd: Cell<RawFd>,
    /// Nonzero once `connection_lost` is scheduled; from then on it counts writes.
    pub(crate) conn_lost: Cell<i64>,
    pub(crate) high_water: Cell<i64>,
    pub(crate) low_water: Cell<i64>,
    /// Expected size of the next receive.
    pub(crate) expected: Cell<usize>,
    pub(crate) closing: Cell<bool>,
    /// The socket is closed, and `transport._sock` is `None`.
    pub(crate) gone: Cell<bool>,
    pub(crate) paused: Cell<bool>,
    pub(crate) eof: Cell<bool>,
    /// The protocol provides the buffer to receive into.
    pub(crate) buffered: Cell<bool>,
    /// `connection_lost` must be called when the connection ends.
    pub(crate) connected: Cell<bool>,
    pub(crate) protocol_paused: Cell<bool>,
    /// Bytes were queued, and `_write_ready` has not found the queue empty since.
    pub(crate) unsent: Cell<bool>,
}

pelton_cpython::state!(Stream, c"pelton._pelton.WriteQueue", {
    its_loop, protocol, server, empty_waiter, extra, sock, lent,
});

/// The descriptor as it is lent to the reactor, once the transport is opened.
pub(crate) type Borrowable = RefCell<Option<Shared<Lent>>>;

/// A connection of the reactor of this loop. Another reactor's connections have the same ids.
pub(crate) struct Connected {
    pub(crate) id: ConnectionId,
    /// Only compared.
    pub(crate) state: Weak<LoopState>,
}

impl Connected {
    /// Returns whether it belongs to the reactor of this loop.
    pub(crate) fn is_of(&self, state: &Rc<LoopState>) -> bool {
        std::ptr::eq(self.state.as_ptr(), Rc::as_ptr(state))
    }
}

/// Family and protocol of a stream socket, as system constants.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) family: i32,
    pub(crate) protocol: i32,
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

impl State for Stream {
    fn new(_: Python<'_>) -> Result<Stream> {
        Ok(Stream {
            its_loop: Slot::empty(),
            protocol: Slot::empty(),
            server: Slot::empty(),
            empty_waiter: Slot::empty(),
            extra: Slot::empty(),
            sock: Slot::empty(),
            own: RefCell::new(None),
            kind: Cell::default(),
            our_address: Cell::new(Peer::Unknown),
            their_address: Cell::new(Peer::Unknown),
            connection: RefCell::new(None),
            lent: RefCell::new(None),
            queued: Cell::new(0),
            fd: Cell::new(-1),
            conn_lost: Cell::new(0),
            high_water: Cell::new(HIGH_WATER),
            low_water: Cell::new(HIGH_WATER / 4),
            expected: Cell::new(0),
            closing: Cell::new(false),
            gone: Cell::new(true),
            paused: Cell::new(false),
            eof: Cell::new(false),
            buffered: Cell::new(false),
            connected: Cell::new(false),
            protocol_paused: Cell::new(false),
            unsent: Cell::new(false),
        })
    }

    /// A nonzero `conn_lost` makes the transport useless to anyone who still has it. The reactor must not use the socket object, which may
    /// be freed now.
    fn ending(&self, py: Python<'_>) {
        self.conn_lost.set(self.conn_lost.get() + 1);
        self.end_lending(py);
    }
}

impl Stream {
    /// Notes that the descriptor is closed, or about to be.
    pub(crate) fn end_lending(&self, py: Python<'_>) {
        let lent = self.lent.borrow().as_ref().map(|lent| lent.rc().clone());
        if let Some(lent) = lent {
            lent.end(py);
        }
    }

    /// Calls `f` with the loop and its state, unless the transport has none any more.
    pub(crate) fn with_loop<'py, T>(
        &self,
        py: Python<'py>,
        f: impl FnOnce(&Bound<'py, PyAny>, &Rc<LoopState>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(its_loop) = self.its_loop.get(py) else { return Ok(None) };
        f(&its_loop, state::of(&its_loop)?).map(Some)
    }
}

impl Sequence for Stream {
    /// `len(transport._buffer)`: the number of queued bytes.
    fn len(&self, py: Python<'_>) -> Result<usize> {
        connection::queued(py, self)
    }

    /// `bool(transport._buffer)`: asyncio's methods ask whether `_write_ready` will be called.
    fn is_filled(&self) -> bool {
        self.unsent.get()
    }

    /// `transport._buffer.clear()`
    fn empty(&self, py: Python<'_>) -> Result<()> {
        connection::drop_queued(py, self)
    }
}

/// Makes the class, derived from `pelton._transports.BaseStreamTransport`.
pub(crate) fn make<'py>(base: &Bound<'py, PyType>) -> Result<Bound<'py, PyType>> {
    let methods =
        [opening::methods(), closing::methods(), reading::methods(), writing::methods(), extra_info::methods()];
    let parts = Parts {
        name: c"pelton.StreamTransport",
        doc: c"A connected stream socket, as protocols see it.",
        methods: methods.into_iter().flatten().collect(),
        attributes: stream_fields::attributes(),
    };
    class::make_with_sequence(base, parts)
}
