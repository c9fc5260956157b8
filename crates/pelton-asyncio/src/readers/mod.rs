//! Watched descriptors and the handles of their readers and writers.
//!
//! As in asyncio, a descriptor has at most one reader and one writer, and is watched for as long as it has either. When it is
//! ready, their handles are queued.
//!
//! The descriptor of a transport or a server is not watched: it belongs to a connection, a listener or a datagram socket of the
//! reactor, which reports to the same handles.

mod borrowed;
mod connection;
pub(crate) mod descriptors;
mod table;

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pelton::{Reactor, Ready};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::event_loop::reactor_errors::system_error;
use crate::event_loop::state::LoopState;
use crate::readers::descriptors::descriptor;
use crate::sockets::operations as sockets;
pub(crate) use borrowed::{
    adopt_datagrams, adopt_listener, adopt_pipe, datagrams_of, has_listener, pause_accepting,
    release as release_descriptor, with_datagrams, with_listener, with_pipe,
};
pub(crate) use connection::{adopt, release};
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::{Call, clear_raised, raise_io, raised_a, report_unraisable};
use pelton_cpython::descriptor::named;
use pelton_cpython::handles::{self, Handle, Queued};
use pelton_cpython::lock;
use pelton_cpython::object::{Raised, Result};
use table::{Found, Source};
pub(crate) use table::{Kept, Readers, Side};

/// Makes `new` the reader or writer of `fd`, and returns the previous one.
pub(crate) fn set(
    py: Python<'_>,
    state: &Rc<LoopState>,
    fd: RawFd,
    side: Side,
    new: Option<Queued>,
) -> Result<Option<Queued>> {
    let readers = &state.readers;
    if let Err(raised) = check_number(py, state, fd) {
        release_handle(py, new);
        return Err(raised);
    }
    // If it was kept, the number may refer to another file by now, which only the kernel can tell: register it again.
    let (old, was_kept) = readers.replace(fd, side, new);
    let applied = state.with_reactor(py, |reactor| {
        if was_kept {
            forget(reactor, state, fd);
        }
        apply(reactor, state, fd)
    });
    let raised = match applied {
        Ok(Some(Ok(()))) => return Ok(old),
        Ok(None) => {
            readers.postpone(fd);
            state.wake();
            return Ok(old);
        }
        Ok(Some(Err(error))) => raise_io(py, &error),
        Err(raised) => raised,
    };
    let new = readers.exchange(fd, side, old);
    release_handle(py, new);
    Err(raised)
}

fn release_handle(py: Python<'_>, handle: Option<Queued>) {
    if let Some(handle) = handle {
        handle.release(py);
    }
}

/// Refuses a number that is not an open descriptor, so that the table does not grow for arbitrary numbers.
fn check_number(py: Python<'_>, state: &LoopState, fd: RawFd) -> Result<()> {
    if state.readers.has(fd) {
        return Ok(());
    }
    let open = named(fd).and_then(|fd| rustix::io::fcntl_getfd(fd).map_err(io::Error::from));
    open.map(drop).map_err(|error| raise_io(py, &error))
}

/// Makes the reactor watch `fd` as its entry requires.
///
/// If the descriptor was closed by its owner, the kernel reports an error, or the number belongs to another file of the program: watching
/// that is harmless.
fn apply(reactor: &mut Reactor, state: &Rc<LoopState>, fd: RawFd) -> io::Result<()> {
    let (interest, source) = state.readers.wanted(fd);
    match source {
        None if interest.is_none() => {}
        Some(Source::Connection(id)) if connection::apply(reactor, id, interest)? => {}
        Some(source @ (Source::Listener(_) | Source::Datagrams(_)))
            if borrowed::apply_to(reactor, source, interest)? => {}
        // A watch without interest is not registered with the kernel. It is kept, because most descriptors are watched again.
        Some(Source::Watch(watch)) if reactor.set_interest(watch, interest).is_ok() => {}
        Some(_) if interest.is_none() => forget(reactor, state, fd),
        _ => {
            // The number may belong to another file by now, so register it again.
            forget(reactor, state, fd);
            let watched = state.clone();
            let watch = reactor.watch(&named(fd)?, interest, move |_, found| is_ready(&watched, fd, found));
            state.readers.set_source(fd, Some(Source::Watch(watch.map_err(system_error)?)));
        }
    }
    Ok(())
}

/// Ends the reactor's source of `fd`.
fn forget(reactor: &mut Reactor, state: &LoopState, fd: RawFd) {
    match state.readers.set_source(fd, None) {
        Some(Source::Watch(watch)) => _ = reactor.end(watch),
        Some(Source::Connection(id)) => _ = reactor.release_connection(id),
        Some(Source::Listener(id)) => _ = reactor.end(id),
        Some(Source::Datagrams(id)) => _ = reactor.release_datagrams(id),
        None => {}
    }
}

/// Queues the handles of a descriptor that is ready.
fn is_ready(state: &LoopState, fd: RawFd, found: Ready) {
    if state.closed.get() {
        return;
    }
    state.counters.events.set(state.counters.events.get() + 1);
    lock::held(|py| {
        for (side, is) in [(Side::Reader, found.readable()), (Side::Writer, found.writable())] {
            if is {
                queue(py, state, fd, side);
            }
        }
    });
    if found.closed() {
        // The reactor ends the watch after this callback.
        state.readers.set_source(fd, None);
        state.readers.set_kept(fd, Kept::Not);
    }
}

/// Queues the reader or writer of a descriptor that is ready. Nothing here calls Python.
#[inline]
fn queue(py: Python<'_>, state: &LoopState, fd: RawFd, side: Side) {
    match state.readers.find(py, fd, side) {
        Found::Handle(handle) => state.ready.borrow_mut().push_back(handle),
        Found::Cancelled => state.readers.was_cancelled(fd, side),
        Found::Unwanted => state.readers.is_unwanted(fd),
        Found::Nothing => {}
    }
}

/// Runs before a batch. Applies changes that dispatch cannot make because they may run Python code, and changes made by threads that
/// could not reach the reactor. Each entry is looked up again, because dropping a handle may run arbitrary code.
pub(crate) fn tidy(py: Python<'_>, state: &Rc<LoopState>) -> Result<()> {
    let readers = &state.readers;
    while let Some(fd) = readers.next_unwanted() {
        if readers.is_watched_in_vain(fd) {
            readers.set_kept(fd, Kept::Not);
            // Reducing the interest does not fail.
            state.with_reactor(py, |reactor| apply(reactor, state, fd).is_ok())?;
        }
    }
    while let Some((fd, side)) = readers.next_cancelled() {
        if readers.is_cancelled(py, fd, side)
            && let Ok(handle) = set(py, state, fd, side, None)
        {
            release_handle(py, handle);
        }
    }
    borrowed::forget_released(py, state)?;
    while let Some(fd) = readers.next_postponed() {
        let applied = state.with_reactor(py, |reactor| apply(reactor, state, fd))?;
        if let Some(Err(error)) = applied {
            // The caller has returned long ago, so the error can only be reported.
            let dropped = [Side::Reader, Side::Writer].map(|side| readers.exchange(fd, side, None));
            raise_io(py, &error);
            report_unraisable(py);
            dropped.into_iter().for_each(|handle| release_handle(py, handle));
        }
    }
    readers.is_tidy();
    Ok(())
}

/// Returns whether the descriptor of a socket object is still being watched for that object.
///
/// An object has at most one weak reference without a callback, and the table keeps it alive, so equal references mean the same object.
pub(crate) fn keeps(state: &LoopState, fd: RawFd, sock: &Bound<'_, PyAny>) -> Result<Kept> {
    if state.readers.kept(fd) == Kept::Not || state.parked.get() {
        return Ok(Kept::Not);
    }
    Ok(state.readers.kept_for(fd, &sock.weak()?))
}

/// Makes a handle that waits to receive the reader of a socket's descriptor, which may already be watched for the socket.
pub(crate) fn wait<'py>(
    state: &Rc<LoopState>,
    fd: RawFd,
    sock: &Bound<'py, PyAny>,
    handle: Bound<'py, PyAny>,
) -> Result<()> {
    let py = sock.py();
    let previous = if keeps(state, fd, sock)? == Kept::Not {
        fail_if_closed(py, state, fd)?;
        set(py, state, fd, Side::Reader, Some(Queued::new(handle)))?
    } else {
        state.readers.set_kept(fd, Kept::Not);
        state.readers.exchange(fd, Side::Reader, Some(Queued::new(handle)))
    };
    state.readers.set_receives(fd, true);
    cancel(py, previous)
}

/// Cancels a handle that was replaced.
fn cancel(py: Python<'_>, handle: Option<Queued>) -> Result<()> {
    let Some(handle) = handle else { return Ok(()) };
    let handle = handle.into_object(py);
    Handle::of(&handle).map_or(Ok(()), |handle| handle.cancel())
}

/// Queues the handle that waits to receive from `fd` if its socket was closed meanwhile, so that it fails. Returns whether it was. The
/// number may already belong to another file.
pub(crate) fn fail_if_closed(py: Python<'_>, state: &Rc<LoopState>, fd: RawFd) -> Result<bool> {
    let Some(handle) = state.readers.receiver(py, fd) else { return Ok(false) };
    // Calling the socket's `fileno` may run arbitrary code, so the handle is looked up again.
    if sockets::is_open(&handle, fd)? || !state.readers.of(py, fd).0.is_some_and(|reader| reader.is(&handle)) {
        return Ok(false);
    }
    let removed = set(py, state, fd, Side::Reader, None)?;
    release_handle(py, removed);
    state.queue(handle);
    Ok(true)
}

/// Removes the reader of a socket's descriptor, but keeps watching the descriptor.
pub(crate) fn keep(state: &LoopState, fd: RawFd, sock: &Bound<'_, PyAny>, emptied: bool) -> Result<()> {
    let owner = sock.weak()?;
    if state.closed.get() || !state.readers.has(fd) {
        return Ok(());
    }
    let reader = state.readers.exchange(fd, Side::Reader, None);
    // Without a reader, the descriptor is not watched for reading.
    if reader.is_some() {
        state.readers.keep(fd, if emptied { Kept::Emptied } else { Kept::Watched });
    }
    state.readers.set_owner(fd, Some(owner), sock.py());
    release_handle(sock.py(), reader);
    Ok(())
}

/// Makes `callback(*arguments)` the reader or writer of `fd`, replacing the previous one.
pub(crate) fn add<'py>(
    its_loop: &Bound<'py, PyAny>,
    state: &Rc<LoopState>,
    fd: &Bound<'py, PyAny>,
    side: Side,
    callback: &Bound<'py, PyAny>,
    arguments: &[Argument<'_, 'py>],
) -> Result<Bound<'py, PyAny>> {
    // `fileno` of the given object is called only if the loop is open.
    state.check_open(its_loop.py())?;
    let number = descriptor(fd)?;
    let handle = add_number(its_loop, state, number, side, callback, arguments)?;
    remember_owner(state, number, fd);
    Ok(handle)
}

/// Does the same as [`add`] for a descriptor's number.
pub(crate) fn add_number<'py>(
    its_loop: &Bound<'py, PyAny>,
    state: &Rc<LoopState>,
    fd: RawFd,
    side: Side,
    callback: &Bound<'py, PyAny>,
    arguments: &[Argument<'_, 'py>],
) -> Result<Bound<'py, PyAny>> {
    let py = its_loop.py();
    state.check_open(py)?;
    let handle = handles::new(state.home(its_loop), callback, arguments, None)?;
    // It may live as long as the loop, so the collector must know it.
    if let Some(handle) = Handle::of(&handle) {
        handle.track();
    }
    fail_if_closed(py, state, fd)?;
    let previous = set(py, state, fd, side, Some(Queued::new(handle.clone())))?;
    cancel(py, previous)?;
    Ok(handle)
}

/// Removes the reader or writer of `fd`. Returns whether there was one.
pub(crate) fn remove(py: Python<'_>, state: &Rc<LoopState>, fd: &Bound<'_, PyAny>, side: Side) -> Result<bool> {
    // `fileno` of the given object is called only if the loop is open.
    if state.closed.get() {
        return Ok(false);
    }
    let number = match descriptor(fd) {
        Ok(number) => number,
        // A closed socket has no descriptor any more; look up the one that it was added with.
        Err(Raised) if !raised_a::<PyValueError>(py) => return Err(Raised),
        Err(Raised) => {
            clear_raised(py);
            match weakly(fd).and_then(|owner| state.readers.owned_by(&owner)) {
                Some(number) => number,
                None => descriptor(fd)?,
            }
        }
    };
    remove_number(py, state, number, side)
}

/// Does the same as [`remove`] for a descriptor's number.
pub(crate) fn remove_number(py: Python<'_>, state: &Rc<LoopState>, fd: RawFd, side: Side) -> Result<bool> {
    if state.closed.get() || !state.readers.awaits(fd, side) {
        return Ok(false);
    }
    let Some(previous) = set(py, state, fd, side, None)? else { return Ok(false) };
    let forgotten = if state.readers.wanted(fd).0.is_none() { state.readers.take_owner(py, fd) } else { None };
    cancel(py, Some(previous))?;
    drop(forgotten);
    Ok(true)
}

/// Stores the object that a descriptor was given as, so that the descriptor is found after the object was closed.
fn remember_owner(state: &LoopState, fd: RawFd, object: &Bound<'_, PyAny>) {
    let owner = if object.is_instance_of::<PyInt>() {
        // The number may belong to another file by now, unless it is still being watched for its owner.
        if state.readers.kept(fd) != Kept::Not {
            return;
        }
        None
    } else {
        weakly(object)
    };
    state.readers.set_owner(fd, owner, object.py());
}

/// Creates a weak reference, if the object supports them.
fn weakly<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    let reference = object.weak().ok();
    if reference.is_none() {
        clear_raised(object.py());
    }
    reference
}
