//! Listeners, datagram sockets and pipes of the program, as manual sources of the reactor. Like the connections of stream transports,
//! they report to the reader and the writer of their descriptor, whose handles then accept, receive and send.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null_mut;

use pelton::{Datagram, DatagramIo, Datagrams, DatagramsId, Interest, Io, ListenerId, Reactor, Reason, Socket};
use pelton_os::DescriptorOwner;
use pyo3::ffi::{self, PyObject};
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use pyo3::{Bound, Py, Python};

use super::connection::{Reporting, number_of};
use super::{Side, Source, apply, forget, queue};
use crate::event_loop::state::{self, LoopState};
use crate::known::known;
use pelton_cpython::fields;
use pelton_cpython::object::{Owned, Result, raise_io};

/// A descriptor of the program, as the reactor borrows it.
struct Borrowed {
    number: RawFd,
    /// A weak reference to the socket object that owns the descriptor. A pipe has none: its transport releases it before it is closed.
    socket: Option<Py<PyWeakrefReference>>,
}

impl Borrowed {
    /// # Safety
    /// `socket` is alive and derived from `_socket.socket`, or null.
    unsafe fn new(number: RawFd, socket: *mut PyObject) -> Result<Borrowed> {
        // SAFETY: the caller guarantees it, and holds the lock. Sockets support weak references.
        unsafe {
            let socket = if socket.is_null() {
                None
            } else {
                let weak = Owned::returned(ffi::PyWeakref_NewRef(socket, null_mut()))?;
                let weak = Bound::from_owned_ptr(Python::assume_attached(), weak.into_ptr());
                Some(weak.cast_into_unchecked().unbind())
            };
            Ok(Borrowed { number, socket })
        }
    }
}

impl DescriptorOwner for Borrowed {
    #[inline]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the reactor calls this with the lock held. The weak reference is one, and its object, while it is alive, derived
        // from `_socket.socket`. `number_of` calls a method in C that returns a field. A socket object that was closed returns -1, and
        // the transport of a pipe releases the descriptor before it is closed, so the number is that of an open descriptor.
        unsafe {
            if let Some(weak) = &self.socket {
                let socket = weak.bind(Python::assume_attached()).upgrade()?;
                if number_of(socket.as_ptr()) != self.number {
                    return None;
                }
            }
            Some(BorrowedFd::borrow_raw(self.number))
        }
    }
}

/// Queues the handles of a datagram transport.
struct ReportingDatagrams {
    core: *mut LoopState,
    fd: RawFd,
}

// SAFETY, for all methods: as for `Reporting`.
impl Datagrams for ReportingDatagrams {
    fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {
        debug_assert!(false, "the socket is manual");
    }

    fn readable(&mut self, _: &mut DatagramIo<'_>) {
        // SAFETY: see above.
        unsafe { is_ready(self.core, self.fd, Side::Reader) }
    }

    fn writable(&mut self, _: &mut DatagramIo<'_>) {
        // SAFETY: see above.
        unsafe { is_ready(self.core, self.fd, Side::Writer) }
    }

    /// A loop that is drained leaves its sockets to the program.
    fn draining(&mut self, _: &mut DatagramIo<'_>) {}

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        if matches!(reason, Reason::Local) {
            return;
        }
        // SAFETY: see above. The transport finds that there is no socket any more.
        unsafe {
            (*self.core).readers.set_source(self.fd, None);
            queue(self.core, self.fd, Side::Reader);
            queue(self.core, self.fd, Side::Writer);
        }
    }
}

/// Queues a handle of a descriptor that has input or room.
///
/// # Safety
/// As for [`queue`].
unsafe fn is_ready(core: *mut LoopState, fd: RawFd, side: Side) {
    // SAFETY: the caller guarantees it.
    unsafe {
        (*core).counters.events += 1;
        queue(core, fd, side);
    }
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
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the other arguments are alive.
unsafe fn adopt(loop_: *mut PyObject, fd: *mut PyObject, socket: *mut PyObject, how: Use) -> Result<bool> {
    // SAFETY: the caller guarantees it. Nothing here calls Python between the first and the last change of the table: a connection
    // that is released belongs to another transport, which was closed behind its back, and `closed` then does nothing.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)?;
        let is_socket = ffi::PyObject_TypeCheck(socket, known().plain_socket) != 0;
        if (*core).closed || !(0..=i64::from(RawFd::MAX)).contains(&fd) || (how != Use::Pipe && !is_socket) {
            return Ok(false);
        }
        let fd = fd as RawFd;
        let Ok(owner) = Borrowed::new(fd, if how == Use::Pipe { null_mut() } else { socket }) else {
            // An instance of the class in C supports no weak references.
            ffi::PyErr_Clear();
            return Ok(false);
        };
        let adopted = state::with_reactor(core, |reactor| {
            forget(reactor, core, fd);
            match open(reactor, core, fd, owner, how) {
                Ok(source) => {
                    (*core).readers.set_source(fd, Some(source));
                    apply(reactor, core, fd).map(|()| true)
                }
                // Readers and writers stay as they were.
                Err(_) => apply(reactor, core, fd).map(|()| false),
            }
        })?;
        adopted.unwrap_or(Ok(false)).map_err(|error| raise_io(&error))
    }
}

/// Opens the source.
///
/// # Safety
/// `core` belongs to a live loop, and `reactor` is its reactor.
unsafe fn open(
    reactor: &mut Reactor,
    core: *mut LoopState,
    fd: RawFd,
    owner: Borrowed,
    how: Use,
) -> std::result::Result<Source, pelton::Error> {
    let socket = Socket::borrowed(owner);
    match how {
        Use::Pipe => reactor.adopt_manual(socket, Reporting { core, fd }).map(Source::Connection),
        Use::Datagrams => {
            reactor.adopt_manual_datagrams(socket, ReportingDatagrams { core, fd }).map(Source::Datagrams)
        }
        Use::Listener => {
            // SAFETY: the core owns the reactor, which owns the callback, so the pointer is valid. The callback runs in a turn, with the
            // lock held.
            let acceptable = move |_: &mut Reactor, _: ListenerId| unsafe { is_ready(core, fd, Side::Reader) };
            reactor.adopt_manual_listener(socket, acceptable).map(Source::Listener)
        }
    }
}

/// `_adopt_listener(fd, sock)`: makes a listener of the reactor of a listening socket. Returns whether that was possible.
pub(crate) unsafe fn adopt_listener(loop_: *mut PyObject, [fd, sock]: [*mut PyObject; 2]) -> Result<bool> {
    // SAFETY: Python keeps the loop and all arguments alive during the call.
    unsafe { adopt(loop_, fd, sock, Use::Listener) }
}

/// `_adopt_datagrams(fd, sock)`: does the same for a datagram socket.
pub(crate) unsafe fn adopt_datagrams(loop_: *mut PyObject, [fd, sock]: [*mut PyObject; 2]) -> Result<bool> {
    // SAFETY: Python keeps the loop and all arguments alive during the call.
    unsafe { adopt(loop_, fd, sock, Use::Datagrams) }
}

/// `_adopt_pipe(fd)`: does the same for an end of a pipe, or another stream.
pub(crate) unsafe fn adopt_pipe(loop_: *mut PyObject, fd: *mut PyObject) -> Result<bool> {
    // SAFETY: Python keeps the loop and the argument alive during the call. The object of a pipe is not used.
    unsafe { adopt(loop_, fd, ffi::Py_None(), Use::Pipe) }
}

/// `_release(fd)`: ends the reactor's source of a descriptor that is about to be closed. A watch stays.
pub(crate) unsafe fn release(loop_: *mut PyObject, fd: *mut PyObject) -> Result<()> {
    // SAFETY: Python keeps the loop and the argument alive during the call.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        let Some(source) = (*core).readers.source(fd).filter(|source| !matches!(source, Source::Watch(_))) else {
            return Ok(());
        };
        if (*core).closed {
            return Ok(());
        }
        if state::with_reactor(core, |reactor| forget(reactor, core, fd))?.is_none() {
            // A finalizer runs on another thread than the loop.
            (*core).readers.released.push((fd, source));
            state::wake(core);
        }
        Ok(())
    }
}

/// Ends sources that another thread has released.
///
/// # Safety
/// `core` belongs to a live loop that this thread turns; no Rust reference into it is held.
pub(super) unsafe fn forget_released(core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        while let Some((fd, source)) = (*core).readers.released.pop() {
            // Otherwise another source has taken its place.
            if (*core).readers.source(fd) == Some(source) {
                state::with_reactor(core, |reactor| forget(reactor, core, fd))?;
            }
        }
        Ok(())
    }
}

/// `_pause_accepting(fd, seconds)`: accepts nothing for a while, because the system is short of something.
pub(crate) unsafe fn pause_accepting(loop_: *mut PyObject, [fd, seconds]: [*mut PyObject; 2]) -> Result<()> {
    // SAFETY: Python keeps the loop and all arguments alive during the call.
    unsafe {
        let core = state::of(loop_)?;
        let (fd, seconds) = (fields::whole(fd)? as RawFd, fields::whole(seconds)?.clamp(0, 3600));
        let pause = std::time::Duration::from_secs(seconds.unsigned_abs());
        with_listener(core, fd, |reactor, id| {
            reactor.pause_accepting_for(id, pause);
            Ok(())
        })
        .map(drop)
    }
}

/// The answer for a descriptor that has no source of the expected kind, or whose owner has closed it.
#[cold]
fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

/// Calls `f` with the reactor. Translates the error for a descriptor that its owner has closed.
///
/// # Safety
/// `core` belongs to a live loop; no Rust reference into it is held. `f` calls nothing that could use the reactor, which includes all
/// Python code.
#[inline]
unsafe fn with<T>(core: *mut LoopState, f: impl FnOnce(&mut Reactor) -> io::Result<T>) -> Result<io::Result<T>> {
    // SAFETY: the caller guarantees it.
    let done = unsafe {
        if (*core).closed {
            return Ok(Err(closed()));
        }
        state::with_reactor(core, f)?
    };
    Ok(match done {
        // The reactor does not touch a descriptor that its owner has closed.
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_none() => Err(closed()),
        Some(result) => result,
        // Another thread turns the loop, so its reactor is out of reach. The operation has to be tried again.
        None => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    })
}

/// Calls `f` with the listener of a descriptor. Fails with `EBADF` if there is none.
///
/// # Safety
/// As for [`with`].
pub(crate) unsafe fn with_listener<T>(
    core: *mut LoopState,
    fd: RawFd,
    f: impl FnOnce(&mut Reactor, ListenerId) -> io::Result<T>,
) -> Result<io::Result<T>> {
    // SAFETY: the caller guarantees it.
    unsafe {
        match (*core).readers.source(fd) {
            Some(Source::Listener(id)) => with(core, |reactor| f(reactor, id)),
            _ => Ok(Err(closed())),
        }
    }
}

/// Returns whether a descriptor has a listener.
///
/// # Safety
/// `core` belongs to a live loop.
pub(crate) unsafe fn has_listener(core: *mut LoopState, fd: RawFd) -> bool {
    // SAFETY: the caller guarantees it.
    matches!(unsafe { (*core).readers.source(fd) }, Some(Source::Listener(_)))
}

/// Returns the datagram socket of a descriptor.
///
/// # Safety
/// `core` belongs to a live loop.
pub(crate) unsafe fn datagrams_of(core: *mut LoopState, fd: RawFd) -> Option<DatagramsId> {
    // SAFETY: the caller guarantees it.
    match unsafe { (*core).readers.source(fd) } {
        Some(Source::Datagrams(id)) => Some(id),
        _ => None,
    }
}

/// Calls `f` with a datagram socket. Fails with `EBADF` if there is none any more.
///
/// # Safety
/// As for [`with`].
#[inline]
pub(crate) unsafe fn with_datagrams<T>(
    core: *mut LoopState,
    id: DatagramsId,
    f: impl FnOnce(&mut DatagramIo<'_>) -> io::Result<T>,
) -> Result<io::Result<T>> {
    // SAFETY: the caller guarantees it.
    unsafe {
        with(core, |reactor| match reactor.datagrams(id) {
            Some(mut io) => f(&mut io),
            None => Err(closed()),
        })
    }
}

/// Calls `f` with the connection of a pipe. Fails with `EBADF` if there is none.
///
/// # Safety
/// As for [`with`].
pub(crate) unsafe fn with_pipe<T>(
    core: *mut LoopState,
    fd: RawFd,
    f: impl FnOnce(&mut Io<'_>) -> io::Result<T>,
) -> Result<io::Result<T>> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let Some(Source::Connection(id)) = (*core).readers.source(fd) else { return Ok(Err(closed())) };
        with(core, |reactor| match reactor.connection(id) {
            Some(mut io) => f(&mut io),
            None => Err(closed()),
        })
    }
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
