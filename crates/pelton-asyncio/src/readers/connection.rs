//! The connections of the reactor under stream transports. They report to the readers and writers of their descriptors.

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pelton::{Chunk, Connection, ConnectionId, Interest, Io, Reactor, Reason, Socket};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::table::Source;
use super::{Side, forget, queue};
use crate::event_loop::reactor_errors::system_error;
use crate::event_loop::state::LoopState;
use pelton_cpython::call::{raise, raise_io};
use pelton_cpython::descriptor::{Borrower, Lent};
use pelton_cpython::lock;
use pelton_cpython::object::Result;
use pelton_cpython::slot::Shared;

/// Queues the handles of a transport.
pub(super) struct Reporting {
    pub(super) state: Rc<LoopState>,
    pub(super) fd: RawFd,
}

impl Connection for Reporting {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        debug_assert!(false, "the connection is manual");
    }

    #[inline]
    fn readable(&mut self, _: &mut Io<'_>) {
        self.state.counters.events.set(self.state.counters.events.get() + 1);
        lock::held(|py| queue(py, &self.state, self.fd, Side::Reader));
    }

    #[inline]
    fn writable(&mut self, _: &mut Io<'_>) {
        self.state.counters.events.set(self.state.counters.events.get() + 1);
        lock::held(|py| queue(py, &self.state, self.fd, Side::Writer));
    }

    /// A loop that is drained leaves its connections to the program.
    fn draining(&mut self, _: &mut Io<'_>) {}

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        if matches!(reason, Reason::Local) {
            return;
        }
        // The transport finds that there is no connection any more.
        self.state.readers.set_source(self.fd, None);
        lock::held(|py| {
            queue(py, &self.state, self.fd, Side::Reader);
            queue(py, &self.state, self.fd, Side::Writer);
        });
    }
}

/// Makes a connection of the descriptor of a stream transport. It replaces a watch; readers and writers stay.
pub(crate) fn adopt(py: Python<'_>, state: &Rc<LoopState>, fd: RawFd, lent: &Shared<Lent>) -> Result<ConnectionId> {
    // Nothing here calls Python: a connection that is released belongs to another transport, which was closed behind its back, and
    // `closed` then does nothing.
    let adopted = state.with_reactor(py, |reactor| {
        forget(reactor, state, fd);
        let borrowed = Socket::borrowed_socket(Borrower::of(lent));
        let id = match reactor.adopt_manual(borrowed, Reporting { state: state.clone(), fd }) {
            Ok(id) => id,
            Err(error) => {
                // Readers and writers stay as they were.
                super::apply(reactor, state, fd)?;
                return Err(system_error(error));
            }
        };
        state.readers.set_source(fd, Some(Source::Connection(id)));
        let (interest, _) = state.readers.wanted(fd);
        if !interest.is_none() {
            apply(reactor, id, interest)?;
        }
        Ok(id)
    });
    match adopted? {
        Some(Ok(id)) => Ok(id),
        Some(Err(error)) => Err(raise_io(py, &error)),
        None => {
            let message = "a transport cannot be created while another thread runs its loop";
            Err(raise::<PyRuntimeError>(py, message))
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
pub(crate) fn release(py: Python<'_>, state: &Rc<LoopState>, fd: RawFd, id: ConnectionId) -> Result<()> {
    if state.closed.get() {
        return Ok(());
    }
    state.with_reactor(py, |reactor| {
        if state.readers.source(fd) == Some(Source::Connection(id)) {
            state.readers.set_source(fd, None);
        }
        reactor.release_connection(id);
    })?;
    Ok(())
}
