//! Listeners, datagram sockets and pipes of the program, as manual sources of the reactor. Like the connections of stream transports,
//! they report to the reader and the writer of their descriptor, whose handles then accept, receive and send.

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pelton::{Datagram, DatagramIo, Datagrams, DatagramsId, Interest, Io, ListenerId, Reactor, Reason, Socket};
use pyo3::prelude::*;

use super::connection::Reporting;
use super::{Side, Source, apply, forget, queue};
use crate::event_loop::state::{Loop, LoopState};
use crate::known::known;
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise_io};
use pelton_cpython::class::This;
use pelton_cpython::descriptor::BorrowedFromProgram;
use pelton_cpython::lock;
use pelton_cpython::object::Result;

/// Queues the handles of a datagram transport.
struct ReportingDatagrams {
    state: Rc<LoopState>,
    fd: RawFd,
}

impl Datagrams for ReportingDatagrams {
    fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {
        debug_assert!(false, "the socket is manual");
    }

    fn readable(&mut self, _: &mut DatagramIo<'_>) {
        is_ready(&self.state, self.fd, Side::Reader);
    }

    fn writable(&mut self, _: &mut DatagramIo<'_>) {
        is_ready(&self.state, self.fd, Side::Writer);
    }

    /// A loop that is drained leaves its sockets to the program.
    fn draining(&mut self, _: &mut DatagramIo<'_>) {}

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        if matches!(reason, Reason::Local) {
            return;
        }
        // The transport finds that there is no socket any more.
        self.state.readers.set_source(self.fd, None);
        lock::held(|py| {
            queue(py, &self.state, self.fd, Side::Reader);
            queue(py, &self.state, self.fd, Side::Writer);
        });
    }
}

/// Queues a handle of a descriptor that has input or room.
fn is_ready(state: &LoopState, fd: RawFd, side: Side) {
    state.counters.events.set(state.counters.events.get() + 1);
    lock::held(|py| queue(py, state, fd, side));
}

/// What a descriptor is used as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Listener,
    Datagrams,
    Pipe,
}

/// Makes a source of the reactor of a descriptor. It replaces a watch; readers and writers stay. Returns `false`, and leaves
/// everything as it was, if the reactor is out of reach or refuses the descriptor.
fn adopt<'py>(
    this: This<'_, 'py, Loop>,
    fd: &Bound<'py, PyAny>,
    socket: Option<&Bound<'py, PyAny>>,
    how: Use,
) -> Result<bool> {
    let py = this.py();
    let state: &Rc<LoopState> = this.state()?;
    let fd = fd.whole()?;
    if let Some(socket) = socket
        && !socket.is_instance(known().plain_socket.bind(py)).or_raise(py)?
    {
        return Ok(false);
    }
    let Some(fd) = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0 && !state.closed.get()) else { return Ok(false) };
    let Ok(owner) = BorrowedFromProgram::new(fd, socket, known().fileno.bind(py)) else {
        // An instance of the class in C supports no weak references.
        clear_raised(py);
        return Ok(false);
    };
    // Nothing here calls Python between the first and the last change of the table: a connection that is released belongs to another
    // transport, which was closed behind its back, and `closed` then does nothing.
    let adopted = state.with_reactor(py, |reactor| {
        forget(reactor, state, fd);
        match open(reactor, state, fd, owner, how) {
            Ok(source) => {
                state.readers.set_source(fd, Some(source));
                apply(reactor, state, fd).map(|()| true)
            }
            // Readers and writers stay as they were.
            Err(_) => apply(reactor, state, fd).map(|()| false),
        }
    })?;
    adopted.unwrap_or(Ok(false)).map_err(|error| raise_io(py, &error))
}

/// Opens the source.
fn open(
    reactor: &mut Reactor,
    state: &Rc<LoopState>,
    fd: RawFd,
    owner: BorrowedFromProgram,
    how: Use,
) -> std::result::Result<Source, pelton::Error> {
    let socket = Socket::borrowed(owner);
    let state = state.clone();
    match how {
        Use::Pipe => reactor.adopt_manual(socket, Reporting { state, fd }).map(Source::Connection),
        Use::Datagrams => {
            reactor.adopt_manual_datagrams(socket, ReportingDatagrams { state, fd }).map(Source::Datagrams)
        }
        Use::Listener => {
            let acceptable = move |_: &mut Reactor, _: ListenerId| is_ready(&state, fd, Side::Reader);
            reactor.adopt_manual_listener(socket, acceptable).map(Source::Listener)
        }
    }
}

/// `_adopt_listener(fd, sock)`: makes a listener of the reactor of a listening socket. Returns whether that was possible.
pub(crate) fn adopt_listener<'py>(this: This<'_, 'py, Loop>, [fd, sock]: [Argument<'_, 'py>; 2]) -> Result<bool> {
    adopt(this, &fd, Some(&sock), Use::Listener)
}

/// `_adopt_datagrams(fd, sock)`: does the same for a datagram socket.
pub(crate) fn adopt_datagrams<'py>(this: This<'_, 'py, Loop>, [fd, sock]: [Argument<'_, 'py>; 2]) -> Result<bool> {
    adopt(this, &fd, Some(&sock), Use::Datagrams)
}

/// `_adopt_pipe(fd)`: does the same for an end of a pipe, or another stream. Its transport releases it before it is closed.
pub(crate) fn adopt_pipe<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<bool> {
    adopt(this, &fd, None, Use::Pipe)
}

/// `_release(fd)`: ends the reactor's source of a descriptor that is about to be closed. A watch stays.
pub(crate) fn release<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<()> {
    let state: &Rc<LoopState> = this.state()?;
    let fd = fd.whole()? as RawFd;
    let Some(source) = state.readers.source(fd).filter(|source| !matches!(source, Source::Watch(_))) else {
        return Ok(());
    };
    if state.closed.get() {
        return Ok(());
    }
    if state.with_reactor(this.py(), |reactor| forget(reactor, state, fd))?.is_none() {
        // A finalizer runs on another thread than the loop.
        state.readers.was_released(fd, source);
        state.wake();
    }
    Ok(())
}

/// Ends sources that another thread has released.
pub(super) fn forget_released(py: Python<'_>, state: &Rc<LoopState>) -> Result<()> {
    while let Some((fd, source)) = state.readers.next_released() {
        // Otherwise another source has taken its place.
        if state.readers.source(fd) == Some(source) {
            state.with_reactor(py, |reactor| forget(reactor, state, fd))?;
        }
    }
    Ok(())
}

/// `_pause_accepting(fd, seconds)`: accepts nothing for a while, because the system is short of something.
pub(crate) fn pause_accepting<'py>(this: This<'_, 'py, Loop>, [fd, seconds]: [Argument<'_, 'py>; 2]) -> Result<()> {
    let (fd, seconds) = (fd.whole()? as RawFd, seconds.whole()?.clamp(0, 3600));
    let pause = std::time::Duration::from_secs(seconds.unsigned_abs());
    let paused = with_listener(this.py(), this.state()?, fd, |reactor, id| {
        reactor.pause_accepting_for(id, pause);
        Ok(())
    });
    paused.map(drop)
}

/// The answer for a descriptor that has no source of the expected kind, or whose owner has closed it.
#[cold]
fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// Calls `f` with the reactor, which is out of reach meanwhile. Translates the error for a descriptor that its owner has closed.
#[inline]
fn with<T>(py: Python<'_>, state: &LoopState, f: impl FnOnce(&mut Reactor) -> io::Result<T>) -> Result<io::Result<T>> {
    if state.closed.get() {
        return Ok(Err(closed()));
    }
    Ok(match state.with_reactor(py, f)? {
        // The reactor does not touch a descriptor that its owner has closed.
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_none() => Err(closed()),
        Some(result) => result,
        // Another thread turns the loop, so its reactor is out of reach. The operation has to be tried again.
        None => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    })
}

/// Calls `f` with the listener of a descriptor. Fails with `EBADF` if there is none.
pub(crate) fn with_listener<T>(
    py: Python<'_>,
    state: &LoopState,
    fd: RawFd,
    f: impl FnOnce(&mut Reactor, ListenerId) -> io::Result<T>,
) -> Result<io::Result<T>> {
    match state.readers.source(fd) {
        Some(Source::Listener(id)) => with(py, state, |reactor| f(reactor, id)),
        _ => Ok(Err(closed())),
    }
}

/// Returns whether a descriptor has a listener.
pub(crate) fn has_listener(state: &LoopState, fd: RawFd) -> bool {
    matches!(state.readers.source(fd), Some(Source::Listener(_)))
}

/// Returns the datagram socket of a descriptor.
pub(crate) fn datagrams_of(state: &LoopState, fd: RawFd) -> Option<DatagramsId> {
    match state.readers.source(fd) {
        Some(Source::Datagrams(id)) => Some(id),
        _ => None,
    }
}

/// Calls `f` with a datagram socket. Fails with `EBADF` if there is none any more.
#[inline]
pub(crate) fn with_datagrams<T>(
    py: Python<'_>,
    state: &LoopState,
    id: DatagramsId,
    f: impl FnOnce(&mut DatagramIo<'_>) -> io::Result<T>,
) -> Result<io::Result<T>> {
    with(py, state, |reactor| match reactor.datagrams(id) {
        Some(mut io) => f(&mut io),
        None => Err(closed()),
    })
}

/// Calls `f` with the connection of a pipe. Fails with `EBADF` if there is none.
pub(crate) fn with_pipe<T>(
    py: Python<'_>,
    state: &LoopState,
    fd: RawFd,
    f: impl FnOnce(&mut Io<'_>) -> io::Result<T>,
) -> Result<io::Result<T>> {
    let Some(Source::Connection(id)) = state.readers.source(fd) else { return Ok(Err(closed())) };
    with(py, state, |reactor| match reactor.connection(id) {
        Some(mut io) => f(&mut io),
        None => Err(closed()),
    })
}
/// Makes a source report what its reader and writer wait for. Returns `false` if it has ended, or if its owner has closed the
/// descriptor, whose number may belong to another file by now.
pub(super) fn apply_to(reactor: &mut Reactor, source: Source, interest: Interest) -> io::Result<bool> {
    match source {
        Source::Listener(id) => {
            if reactor.listening_on(id).is_none() {
                return Ok(false);
            }
            if interest.readable() {
                reactor.resume_accepting(id)
            } else {
                reactor.pause_accepting(id)
            }
            Ok(true)
        }
        Source::Datagrams(id) => {
            let Some(mut io) = reactor.datagrams(id) else { return Ok(false) };
            if io.descriptor().is_none() {
                reactor.release_datagrams(id);
                return Ok(false);
            }
            if interest.readable() {
                io.resume()
            } else {
                io.pause()
            }
            io.report_room(interest.writable())?;
            Ok(true)
        }
        Source::Connection(_) | Source::Watch(_) => Ok(false),
    }
}
