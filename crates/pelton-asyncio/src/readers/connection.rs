//! Connections of stream transports, and of pipes. They are the reactor's, and manual: a transport receives when its handle is called.

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::rc::Rc;

use pelton::{Chunk, Connection, ConnectionId, Interest, Io, Reactor, Reason, Socket};
use pelton_os::DescriptorOwner;
use pyo3::ffi::{self, PyObject};
use pyo3::{PyErr, Python};

use super::{Side, Source, forget, queue};
use crate::event_loop::reactor_errors::system_error;
use crate::event_loop::state::{self, LoopState};
use crate::known::known;
use pelton_cpython::object::{Result, raise, raise_io};

/// The descriptor of a stream transport, as the reactor borrows it. The transport keeps it up to date.
pub(crate) struct Lent {
    /// -1 after the transport has closed it.
    number: Cell<RawFd>,
    /// The socket object that owns the descriptor, if there is one: a borrowed reference, or null. The program may close it.
    sock: Cell<*mut PyObject>,
}

impl Lent {
    pub(crate) fn new(number: RawFd) -> Rc<Lent> {
        Rc::new(Lent { number: Cell::new(number), sock: Cell::new(null_mut()) })
    }

    /// Sets the socket object that owns the descriptor from now on.
    ///
    /// # Safety
    /// `sock` is derived from `_socket.socket`, and alive until the next call of this or of [`end`](Lent::end).
    pub(crate) unsafe fn set_socket(&self, sock: *mut PyObject) {
        self.sock.set(sock);
    }

    /// Notes that the descriptor is closed, or about to be.
    pub(crate) fn end(&self) {
        self.number.set(-1);
        self.sock.set(null_mut());
    }
}

/// The reactor's reference to a lent descriptor.
struct Borrower(Rc<Lent>);

// SAFETY: a loop's reactor is used, and dropped, only with the interpreter lock held, as are transports. So no two threads use it at
// once, and the reference count does not need to be atomic.
unsafe impl Send for Borrower {}

impl DescriptorOwner for Borrower {
    #[inline]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let (mut number, sock) = (self.0.number.get(), self.0.sock.get());
        // SAFETY: `set_socket` requires the object to be alive and of this type, so the method, which is written in C, returns its field
        // and calls nothing. The reactor calls this with the lock held. The number is that of an open descriptor: the transport closes
        // its own only after `end`, and a socket object that was closed returns -1.
        unsafe {
            if !sock.is_null() {
                number = number_of(sock);
            }
            (number >= 0).then(|| BorrowedFd::borrow_raw(number))
        }
    }
}

/// Returns the descriptor of a socket object, or -1.
pub(super) unsafe fn number_of(sock: *mut PyObject) -> RawFd {
    // SAFETY: the caller guarantees that the object is alive and derived from `_socket.socket`.
    unsafe {
        // The reactor may ask while an exception ends a run.
        let pending = if ffi::PyErr_Occurred().is_null() { None } else { PyErr::take(Python::assume_attached()) };
        let number = ffi::PyObject_CallOneArg(known().fileno, sock);
        let value = if number.is_null() { -1 } else { ffi::PyLong_AsLong(number) };
        ffi::Py_XDECREF(number);
        ffi::PyErr_Clear();
        if let Some(pending) = pending {
            pending.restore(Python::assume_attached());
        }
        value as RawFd
    }
}

/// Queues the handles of a transport.
pub(super) struct Reporting {
    pub(super) core: *mut LoopState,
    pub(super) fd: RawFd,
}

// SAFETY, for all methods: the core owns the reactor, which owns this, so the core is alive. They are called in a turn, or by a method
// of this crate that holds no Rust reference into the core, with the lock held.
impl Connection for Reporting {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        debug_assert!(false, "the connection is manual");
    }

    #[inline]
    fn readable(&mut self, _: &mut Io<'_>) {
        // SAFETY: see above.
        unsafe {
            (*self.core).counters.events += 1;
            queue(self.core, self.fd, Side::Reader);
        }
    }

    #[inline]
    fn writable(&mut self, _: &mut Io<'_>) {
        // SAFETY: see above.
        unsafe {
            (*self.core).counters.events += 1;
            queue(self.core, self.fd, Side::Writer);
        }
    }

    /// A loop that is drained leaves its connections to the program.
    fn draining(&mut self, _: &mut Io<'_>) {}

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        if matches!(reason, Reason::Local) {
            return;
        }
        // SAFETY: see above. The transport finds that there is no connection any more.
        unsafe {
            (*self.core).readers.set_source(self.fd, None);
            queue(self.core, self.fd, Side::Reader);
            queue(self.core, self.fd, Side::Writer);
        }
    }
}

/// Makes a connection of the descriptor of a stream transport. It replaces a watch; readers and writers stay.
///
/// # Safety
/// `core` belongs to a live loop; no Rust reference into it is held. `fd` is not negative.
pub(crate) unsafe fn adopt(core: *mut LoopState, fd: RawFd, lent: &Rc<Lent>) -> Result<ConnectionId> {
    // SAFETY: the caller guarantees it. Nothing here calls Python: a connection that is released belongs to another transport, which
    // was closed behind its back, and `closed` then does nothing.
    unsafe {
        let adopted = state::with_reactor(core, |reactor| {
            forget(reactor, core, fd);
            let borrowed = Socket::borrowed_socket(Borrower(lent.clone()));
            let id = match reactor.adopt_manual(borrowed, Reporting { core, fd }) {
                Ok(id) => id,
                Err(error) => {
                    // Readers and writers stay as they were.
                    super::apply(reactor, core, fd)?;
                    return Err(system_error(error));
                }
            };
            (*core).readers.set_source(fd, Some(Source::Connection(id)));
            let interest = (*core).readers.entry(fd).interest();
            if !interest.is_none() {
                apply(reactor, id, interest)?;
            }
            Ok(id)
        });
        match adopted? {
            Some(Ok(id)) => Ok(id),
            Some(Err(error)) => Err(raise_io(&error)),
            None => {
                Err(raise(ffi::PyExc_RuntimeError, c"a transport cannot be created while another thread runs its loop"))
            }
        }
    }
}

/// Makes a connection report what its reader and writer wait for. Returns `false` if there is no connection any more.
pub(super) fn apply(reactor: &mut Reactor, id: ConnectionId, interest: Interest) -> io::Result<bool> {
    let Some(mut io) = reactor.connection(id) else { return Ok(false) };
    if io.descriptor().is_none() {
        // Its transport was dropped without being closed, and the number may belong to another file.
        reactor.release_connection(id);
        return Ok(false);
    }
    if interest.readable() {
        io.resume();
    } else {
        io.pause();
    }
    io.report_room(interest.writable())?;
    Ok(true)
}

/// Ends the connection of a descriptor that is about to be closed. Another connection that has taken its place stays.
///
/// # Safety
/// As for [`adopt`].
pub(crate) unsafe fn release(core: *mut LoopState, fd: RawFd, id: ConnectionId) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        if (*core).closed {
            return Ok(());
        }
        state::with_reactor(core, |reactor| {
            if (*core).readers.entry(fd).source == Some(Source::Connection(id)) {
                (*core).readers.set_source(fd, None);
            }
            reactor.release_connection(id);
        })?;
        Ok(())
    }
}
