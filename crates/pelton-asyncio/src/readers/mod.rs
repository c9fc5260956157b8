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
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, null_mut};

use pelton::{Reactor, Ready};
use pyo3::ffi::{self, PyObject};

use crate::event_loop::reactor_errors::system_error;
use crate::event_loop::state::{self, LoopState};
use crate::handles::{handle, memory};
use crate::readers::descriptors::descriptor;
use crate::sockets::operations as sockets;
pub(crate) use borrowed::{
    adopt_datagrams, adopt_listener, adopt_pipe, datagrams_of, has_listener, pause_accepting,
    release as release_descriptor, with_datagrams, with_listener, with_pipe,
};
pub(crate) use connection::{Lent, adopt, release};
use pelton_cpython::object::{Owned, Raised, Result, raise_io};
use table::Source;
pub(crate) use table::{Kept, Readers, Side};

/// Makes `new` (an owned reference, or null for none) the reader or writer of `fd`, and returns the previous one.
///
/// # Safety
/// `core` belongs to a live loop; no Rust reference into it is held. `fd` is not negative.
pub(crate) unsafe fn set(core: *mut LoopState, fd: RawFd, side: Side, new: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: the caller guarantees it; nothing here calls into Python before the change is complete. `new` is owned here until it is in the table.
    unsafe {
        if let Err(raised) = check_number(core, fd) {
            ffi::Py_XDECREF(new);
            return Err(raised);
        }
        let old = (*core).readers.exchange(fd, side, new);
        let entry = (*core).readers.entry(fd);
        // The number may refer to another file by now, which only the kernel can tell: register it again.
        let was_kept = side == Side::Reader && std::mem::replace(&mut entry.kept, Kept::Not) != Kept::Not;
        let applied = state::with_reactor(core, |reactor| {
            if was_kept {
                forget(reactor, core, fd);
            }
            apply(reactor, core, fd)
        });
        let raised = match applied {
            Ok(Some(Ok(()))) => return Ok(old),
            Ok(None) => {
                (*core).readers.postponed.push(fd);
                state::wake(core);
                return Ok(old);
            }
            Ok(Some(Err(error))) => raise_io(&error),
            Err(raised) => raised,
        };
        (*core).readers.exchange(fd, side, old);
        ffi::Py_XDECREF(new);
        Err(raised)
    }
}

/// Refuses a number that is not an open descriptor, so that the table does not grow for arbitrary numbers.
unsafe fn check_number(core: *mut LoopState, fd: RawFd) -> Result<()> {
    // SAFETY: the caller guarantees it; reading a descriptor's flags has no effect on it.
    unsafe {
        if (fd as usize) < (*core).readers.entries.len() || libc::fcntl(fd, libc::F_GETFD) >= 0 {
            return Ok(());
        }
        Err(raise_io(&io::Error::last_os_error()))
    }
}

/// Makes the reactor watch `fd` as its entry requires.
///
/// # Safety
/// `core` belongs to a live loop, `reactor` is its reactor, and no Rust reference into the core is held.
unsafe fn apply(reactor: &mut Reactor, core: *mut LoopState, fd: RawFd) -> io::Result<()> {
    // SAFETY: nothing here calls Python. If the descriptor was closed by its owner, the kernel reports an error, or the number belongs
    // to another file of the program: watching that is harmless.
    unsafe {
        let entry = (*core).readers.entry(fd);
        let (interest, source) = (entry.interest(), entry.source);
        match source {
            None if interest.is_none() => {}
            Some(Source::Connection(id)) if connection::apply(reactor, id, interest)? => {}
            Some(source @ (Source::Listener(_) | Source::Datagrams(_)))
                if borrowed::apply_to(reactor, source, interest)? => {}
            // A watch without interest is not registered with the kernel. It is kept, because most descriptors are watched again.
            Some(Source::Watch(watch)) if reactor.set_interest(watch, interest).is_ok() => {}
            Some(_) if interest.is_none() => forget(reactor, core, fd),
            _ => {
                // The number may belong to another file by now, so register it again.
                forget(reactor, core, fd);
                let borrowed = BorrowedFd::borrow_raw(fd);
                // The core owns the reactor, which owns the callback, so the pointer is valid. The callback runs in a turn, with
                // the lock held.
                let watch = reactor.watch(&borrowed, interest, move |_, found| is_ready(core, fd, found));
                (*core).readers.set_source(fd, Some(Source::Watch(watch.map_err(system_error)?)));
            }
        }
        Ok(())
    }
}

/// Ends the reactor's source of `fd`.
///
/// # Safety
/// As for [`apply`].
unsafe fn forget(reactor: &mut Reactor, core: *mut LoopState, fd: RawFd) {
    // SAFETY: the caller guarantees it.
    match unsafe { (*core).readers.set_source(fd, None) } {
        Some(Source::Watch(watch)) => _ = reactor.end(watch),
        Some(Source::Connection(id)) => _ = reactor.release_connection(id),
        Some(Source::Listener(id)) => _ = reactor.end(id),
        Some(Source::Datagrams(id)) => _ = reactor.release_datagrams(id),
        None => {}
    }
}

/// Queues the handles of a descriptor that is ready.
///
/// # Safety
/// `core` belongs to a live loop that this thread turns; no Rust reference into it is held.
unsafe fn is_ready(core: *mut LoopState, fd: RawFd, found: Ready) {
    // SAFETY: the caller guarantees it.
    unsafe {
        if (*core).closed {
            return;
        }
        (*core).counters.events += 1;
        for (side, is) in [(Side::Reader, found.readable()), (Side::Writer, found.writable())] {
            if is {
                queue(core, fd, side);
            }
        }
        if found.closed() {
            // The reactor ends the watch after this callback.
            (*core).readers.set_source(fd, None);
            (*core).readers.entry(fd).kept = Kept::Not;
        }
    }
}

/// Queues the reader or writer of a descriptor that is ready.
///
/// # Safety
/// As for [`is_ready`].
#[inline]
unsafe fn queue(core: *mut LoopState, fd: RawFd, side: Side) {
    // SAFETY: the caller guarantees it. Nothing here calls Python: all handles of readers and writers are of this crate's type, so
    // `is_cancelled` reads a field.
    unsafe {
        let readers = &mut (*core).readers;
        let entry = readers.entry(fd);
        let handle = if side == Side::Reader { entry.reader } else { entry.writer };
        if handle.is_null() {
            if side == Side::Reader && entry.kept != Kept::Not {
                readers.unwanted.push(fd);
            }
        } else if matches!(handle::is_cancelled(handle), Ok(true)) {
            readers.cancelled.push((fd, side));
        } else {
            ffi::Py_INCREF(handle);
            (*core).ready.push_back(handle);
        }
    }
}

/// Runs before a batch. Applies changes that dispatch cannot make because they may run Python code, and changes made by threads that
/// could not reach the reactor.
///
/// # Safety
/// `core` belongs to a live loop that this thread turns; no Rust reference into it is held.
pub(crate) unsafe fn tidy(core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it. Each entry is looked up again, because dropping a handle may run
    // arbitrary code.
    unsafe {
        while let Some(fd) = (*core).readers.unwanted.pop() {
            let entry = (*core).readers.entry(fd);
            if entry.reader.is_null() && entry.kept != Kept::Not {
                entry.kept = Kept::Not;
                // Reducing the interest does not fail.
                state::with_reactor(core, |reactor| apply(reactor, core, fd).is_ok())?;
            }
        }
        while let Some((fd, side)) = (*core).readers.cancelled.pop() {
            let (reader, writer) = (*core).readers.of(fd);
            let handle = if side == Side::Reader { reader } else { writer };
            if !handle.is_null()
                && matches!(handle::is_cancelled(handle), Ok(true))
                && let Ok(handle) = set(core, fd, side, null_mut())
            {
                ffi::Py_XDECREF(handle);
            }
        }
        borrowed::forget_released(core)?;
        while let Some(fd) = (*core).readers.postponed.pop() {
            let applied = state::with_reactor(core, |reactor| apply(reactor, core, fd))?;
            if let Some(Err(error)) = applied {
                // The caller has returned long ago, so the error can only be reported.
                let readers = &mut (*core).readers;
                let dropped = [Side::Reader, Side::Writer].map(|side| readers.exchange(fd, side, null_mut()));
                raise_io(&error);
                ffi::PyErr_WriteUnraisable(null_mut());
                for handle in dropped {
                    ffi::Py_XDECREF(handle);
                }
            }
        }
        Ok(())
    }
}

/// Returns whether the descriptor of a socket object is still being watched for that object.
///
/// # Safety
/// `core` belongs to a live loop, `sock` alive; `fd` is not negative.
pub(crate) unsafe fn keeps(core: *mut LoopState, fd: RawFd, sock: *mut PyObject) -> Result<Kept> {
    // SAFETY: the caller guarantees it. An object has at most one weak reference without a callback, and the table keeps it alive, so
    // equal references mean the same object.
    unsafe {
        if (*core).readers.kept(fd).0 == Kept::Not || (*core).parked {
            return Ok(Kept::Not);
        }
        let owner = Owned::returned(ffi::PyWeakref_NewRef(sock, null_mut()))?;
        let (kept, known_owner) = (*core).readers.kept(fd);
        Ok(if known_owner == owner.as_ptr() { kept } else { Kept::Not })
    }
}

/// Makes a handle that waits to receive the reader of a socket's descriptor, which may already be watched for the socket.
///
/// # Safety
/// As for [`set`]; `sock` is alive.
pub(crate) unsafe fn wait(core: *mut LoopState, fd: RawFd, sock: *mut PyObject, handle: Owned) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let previous = if keeps(core, fd, sock)? == Kept::Not {
            fail_if_closed(core, fd)?;
            set(core, fd, Side::Reader, handle.into_ptr())?
        } else {
            (*core).readers.entry(fd).kept = Kept::Not;
            (*core).readers.exchange(fd, Side::Reader, handle.into_ptr())
        };
        (*core).readers.set_receives(fd, true);
        Owned::taken(previous).map_or(Ok(()), |previous| handle::cancel(previous.as_ptr()))
    }
}

/// Queues the handle that waits to receive from `fd` if its socket was closed meanwhile, so that it fails. Returns whether it was. The
/// number may already belong to another file.
///
/// # Safety
/// As for [`set`].
pub(crate) unsafe fn fail_if_closed(core: *mut LoopState, fd: RawFd) -> Result<bool> {
    // SAFETY: the caller guarantees it. Calling the socket's `fileno` may run arbitrary code, so the handle is looked
    // up again.
    unsafe {
        let (reader, _) = (*core).readers.of(fd);
        if reader.is_null() || !(*core).readers.entry(fd).receives {
            return Ok(false);
        }
        let handle = Owned::new_reference(reader);
        if sockets::is_open(handle.as_ptr(), fd)? || (*core).readers.of(fd).0 != handle.as_ptr() {
            return Ok(false);
        }
        drop(Owned::taken(set(core, fd, Side::Reader, null_mut())?));
        (*core).ready.push_back(handle.into_ptr());
        Ok(true)
    }
}

/// Removes and returns the reader of a socket's descriptor, but keeps watching the descriptor.
///
/// # Safety
/// As for [`set`]; `sock` is alive.
pub(crate) unsafe fn keep(
    core: *mut LoopState,
    fd: RawFd,
    sock: *mut PyObject,
    emptied: bool,
) -> Result<*mut PyObject> {
    // SAFETY: the caller guarantees it. The old weak reference is dropped last.
    unsafe {
        let owner = Owned::returned(ffi::PyWeakref_NewRef(sock, null_mut()))?;
        if (*core).closed || fd as usize >= (*core).readers.entries.len() {
            return Ok(null_mut());
        }
        let reader = (*core).readers.exchange(fd, Side::Reader, null_mut());
        let entry = (*core).readers.entry(fd);
        // Without a reader, the descriptor is not watched for reading.
        if !reader.is_null() && entry.source.is_some() {
            entry.kept = if emptied { Kept::Emptied } else { Kept::Watched };
        }
        ffi::Py_XDECREF(ptr::replace(&raw mut entry.owner, owner.into_ptr()));
        Ok(reader)
    }
}

/// Makes `callback(*arguments)` the reader or writer of `fd`, replacing the previous one.
///
/// # Safety
/// All pointers are live objects, `loop_` a `pelton.Loop`.
pub(crate) unsafe fn add(
    loop_: *mut PyObject,
    fd: *mut PyObject,
    side: Side,
    callback: *mut PyObject,
    arguments: &[*mut PyObject],
) -> Result<Owned> {
    // SAFETY: the caller guarantees it. `fileno` of the given object is called only if the loop is open.
    unsafe {
        let core = state::of(loop_)?;
        state::check_open(core)?;
        let number = descriptor(fd)?;
        let handle = add_number(loop_, number, side, callback, arguments)?;
        remember_owner(core, number, fd);
        Ok(handle)
    }
}

/// Does the same as [`add`] for a descriptor's number.
///
/// # Safety
/// As for [`add`]; `fd` is not negative.
pub(crate) unsafe fn add_number(
    loop_: *mut PyObject,
    fd: RawFd,
    side: Side,
    callback: *mut PyObject,
    arguments: &[*mut PyObject],
) -> Result<Owned> {
    // SAFETY: the caller guarantees it. `set` takes one reference to the handle and returns one to the previous handle.
    unsafe {
        let core = state::of(loop_)?;
        state::check_open(core)?;
        let handle = handle::new(loop_, callback, arguments, null_mut())?;
        // It may live as long as the loop, so the collector must know it.
        memory::track(handle.as_ptr());
        fail_if_closed(core, fd)?;
        ffi::Py_INCREF(handle.as_ptr());
        let previous = Owned::taken(set(core, fd, side, handle.as_ptr())?);
        if let Some(previous) = previous {
            handle::cancel(previous.as_ptr())?;
        }
        Ok(handle)
    }
}

/// Removes the reader or writer of `fd`. Returns whether there was one.
///
/// # Safety
/// Both are live objects, `loop_` a `pelton.Loop`.
pub(crate) unsafe fn remove(loop_: *mut PyObject, fd: *mut PyObject, side: Side) -> Result<bool> {
    // SAFETY: the caller guarantees it. `fileno` of the given object is called only if the loop is open.
    unsafe {
        let core = state::of(loop_)?;
        if (*core).closed {
            return Ok(false);
        }
        let number = match descriptor(fd) {
            Ok(number) => number,
            // A closed socket has no descriptor any more; look up the one that it was added with.
            Err(Raised) if ffi::PyErr_ExceptionMatches(ffi::PyExc_ValueError) == 0 => return Err(Raised),
            Err(Raised) => match owned_by(core, fd) {
                Some(number) => number,
                None => descriptor(fd)?,
            },
        };
        remove_number(loop_, number, side)
    }
}

/// Does the same as [`remove`] for a descriptor's number.
///
/// # Safety
/// As for [`remove`]; `fd` is not negative.
pub(crate) unsafe fn remove_number(loop_: *mut PyObject, fd: RawFd, side: Side) -> Result<bool> {
    // SAFETY: the caller guarantees it. `set` returns a reference to the previous handle.
    unsafe {
        let core = state::of(loop_)?;
        if (*core).closed {
            return Ok(false);
        }
        let (reader, writer) = (*core).readers.of(fd);
        if if side == Side::Reader { reader } else { writer }.is_null() {
            return Ok(false);
        }
        let Some(previous) = Owned::taken(set(core, fd, side, null_mut())?) else { return Ok(false) };
        let entry = (*core).readers.entry(fd);
        let forgotten =
            if entry.interest().is_none() { ptr::replace(&raw mut entry.owner, null_mut()) } else { null_mut() };
        handle::cancel(previous.as_ptr())?;
        ffi::Py_XDECREF(forgotten);
        Ok(true)
    }
}

/// Stores the object that a descriptor was given as, so that the descriptor is found after the object was closed.
unsafe fn remember_owner(core: *mut LoopState, fd: RawFd, object: *mut PyObject) {
    // SAFETY: the caller guarantees it. The old weak reference is dropped last.
    unsafe {
        let owner = if ffi::PyLong_Check(object) != 0 {
            // The number may belong to another file by now, unless it is still being watched for its owner.
            if (*core).readers.entry(fd).kept != Kept::Not {
                return;
            }
            null_mut()
        } else {
            weakly(object)
        };
        ffi::Py_XDECREF(ptr::replace(&raw mut (*core).readers.entry(fd).owner, owner));
    }
}

/// Returns the descriptor that was given as this object. Clears the exception that is set.
unsafe fn owned_by(core: *mut LoopState, object: *mut PyObject) -> Option<RawFd> {
    // SAFETY: the caller guarantees it.
    unsafe {
        ffi::PyErr_Clear();
        let owner = Owned::taken(weakly(object))?;
        // The same object has the same weak reference while that is alive.
        (0..).zip(&(*core).readers.entries).find(|(_, entry)| entry.owner == owner.as_ptr()).map(|(fd, _)| fd)
    }
}

/// Creates a weak reference, or returns null if the object does not support them.
unsafe fn weakly(object: *mut PyObject) -> *mut PyObject {
    // SAFETY: the caller guarantees it.
    unsafe {
        let reference = ffi::PyWeakref_NewRef(object, null_mut());
        if reference.is_null() {
            ffi::PyErr_Clear();
        }
        reference
    }
}
