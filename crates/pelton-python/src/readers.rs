//! Descriptors, and the handles that wait for them to be ready.
//!
//! As in asyncio, a descriptor has at most one reader and one writer, and is watched for as long as it has either. When it is
//! ready, their handles are queued.

mod table;

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, null_mut};

use pelton::Mode;
use pelton_os::{Event, Readiness};
use pyo3::ffi::{self, PyObject};

use crate::core::{self, Core};
use crate::descriptors::descriptor;
use crate::object::{Owned, Raised, Result, raise_io};
use crate::{handle, handle_memory, sockets};
pub(crate) use table::{Kept, Readers, Side};

/// Makes `new` (an owned reference, or null for none) the reader or writer of `fd`, and gives back what it was.
///
/// # Safety
/// `core` is that of a live loop; no Rust reference into it is held. `fd` is not negative.
pub(crate) unsafe fn set(core: *mut Core, fd: RawFd, side: Side, new: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: as the caller says; nothing here calls into Python before it is over. Until the table has it, `new` is ours.
    unsafe {
        if let Err(raised) = check_number(core, fd).and_then(|()| check_engine(core)) {
            ffi::Py_XDECREF(new);
            return Err(raised);
        }
        let old = (*core).readers.exchange(fd, side, new);
        let entry = (*core).readers.entry(fd);
        if side == Side::Reader && entry.kept != Kept::Not {
            // Whether it still is the file that is being watched, only the kernel can tell.
            entry.kept = Kept::Not;
            if let (Some(token), false, Some(engine)) = (entry.token, (*core).parked, (*core).engine.as_mut()) {
                let _ = engine.forget(token);
                entry.token = None;
            }
        }
        if (*core).parked {
            (*core).readers.postponed.push(fd);
            core::wake(core);
            return Ok(old);
        }
        if let Err(error) = apply(core, fd) {
            (*core).readers.exchange(fd, side, old);
            ffi::Py_XDECREF(new);
            return Err(raise_io(&error));
        }
        Ok(old)
    }
}

/// Refuses a number that is no descriptor before the table grows for it: it may be any number.
unsafe fn check_number(core: *mut Core, fd: RawFd) -> Result<()> {
    // SAFETY: as the caller says; asking for a descriptor's flags does nothing to it.
    unsafe {
        if (fd as usize) < (*core).readers.entries.len() || libc::fcntl(fd, libc::F_GETFD) >= 0 {
            return Ok(());
        }
        Err(raise_io(&io::Error::last_os_error()))
    }
}

/// Sees to it that the engine can be used, unless it is lent.
unsafe fn check_engine(core: *mut Core) -> Result<()> {
    // SAFETY: as the caller says.
    unsafe { if (*core).parked { Ok(()) } else { core::engine(core).map(drop) } }
}

/// Has the engine watch `fd` for what its entry says.
unsafe fn apply(core: *mut Core, fd: RawFd) -> io::Result<()> {
    // SAFETY: nothing in here calls Python, and engine and table are different fields. A descriptor whose owner has closed it is
    // an error that the kernel reports, or a file that the owner will have to answer for.
    unsafe {
        let Some(engine) = (*core).engine.as_mut() else { return Ok(()) };
        let readers = &mut (*core).readers;
        let borrowed = BorrowedFd::borrow_raw(fd);
        let (interest, token) = (readers.entry(fd).interest(), readers.entry(fd).token);
        match token {
            None if interest.is_none() => {}
            Some(token) if interest.is_none() => {
                let _ = engine.forget(token);
                readers.entry(fd).token = None;
            }
            Some(token) if engine.rewatch(token, interest, Mode::Level).is_ok() => {}
            known => {
                // Its number may have changed hands without our being told; then it is to be watched anew.
                if let Some(token) = known {
                    let _ = engine.forget(token);
                    readers.entry(fd).token = None;
                }
                let token = readers.next_token(fd);
                engine.watch(token, borrowed, interest, Mode::Level)?;
                readers.entry(fd).token = Some(token);
            }
        }
        Ok(())
    }
}

/// Does what other threads have asked for while the engine was lent.
///
/// # Safety
/// `core` is that of a live loop that is not parked; no Rust reference into it is held.
pub(crate) unsafe fn apply_postponed(core: *mut Core) {
    // SAFETY: as the caller says.
    unsafe {
        while let Some(fd) = (*core).readers.postponed.pop() {
            if let Err(error) = apply(core, fd) {
                // Whoever asked has gone on long ago.
                let readers = &mut (*core).readers;
                let dropped = [Side::Reader, Side::Writer].map(|side| readers.exchange(fd, side, null_mut()));
                raise_io(&error);
                ffi::PyErr_WriteUnraisable(null_mut());
                for handle in dropped {
                    ffi::Py_XDECREF(handle);
                }
            }
        }
    }
}

/// Queues the handles of all descriptors that the engine has found ready.
///
/// # Safety
/// `core` is that of a live loop that is open and not parked; no Rust reference into it is held.
pub(crate) unsafe fn collect(core: *mut Core) {
    let mut cancelled: Vec<(RawFd, Side)> = Vec::new();
    let mut unwanted: Vec<RawFd> = Vec::new();
    // SAFETY: as the caller says. Nothing in the loop calls Python: handles of readers and writers are all ours, so asking
    // whether they are cancelled is reading a field.
    unsafe {
        let Some(engine) = (*core).engine.as_mut() else { return };
        while let Some(event) = (*core).found.take().or_else(|| engine.next()) {
            let Event::Ready(token, readiness) = event else { continue };
            let fd = token.index() as RawFd;
            let entry = (*core).readers.entry(fd);
            if entry.token != Some(token) {
                continue;
            }
            (*core).counters.events += 1;
            let sides =
                [(entry.reader, Side::Reader, Readiness::READABLE), (entry.writer, Side::Writer, Readiness::WRITABLE)];
            for (handle, side, needed) in sides {
                if !readiness.contains(needed) {
                    continue;
                }
                if handle.is_null() {
                    if side == Side::Reader && entry.kept != Kept::Not {
                        unwanted.push(fd);
                    }
                    continue;
                }
                if matches!(handle::is_cancelled(handle), Ok(true)) {
                    cancelled.push((fd, side));
                } else {
                    ffi::Py_INCREF(handle);
                    (*core).ready.push_back(handle);
                }
            }
        }
        for fd in unwanted {
            (*core).readers.entry(fd).kept = Kept::Not;
            // It only gets less, which an engine does not refuse.
            let _ = apply(core, fd);
        }
        for (fd, side) in cancelled {
            if let Ok(handle) = set(core, fd, side, null_mut()) {
                ffi::Py_XDECREF(handle);
            }
        }
    }
}

/// Whether the descriptor of a socket object is still being watched for it.
///
/// # Safety
/// `core` is that of a live loop, `sock` alive; `fd` is not negative.
pub(crate) unsafe fn keeps(core: *mut Core, fd: RawFd, sock: *mut PyObject) -> Result<Kept> {
    // SAFETY: as the caller says. An object has only one weak reference without a callback at a time, and ours is kept, so that
    // being the same reference is being to the same object.
    unsafe {
        if (*core).readers.kept(fd).0 == Kept::Not || (*core).parked {
            return Ok(Kept::Not);
        }
        let owner = Owned::returned(ffi::PyWeakref_NewRef(sock, null_mut()))?;
        let (kept, known_owner) = (*core).readers.kept(fd);
        Ok(if known_owner == owner.as_ptr() { kept } else { Kept::Not })
    }
}

/// Makes a handle that waits to receive the reader of a socket's descriptor, which may be watched for it already.
///
/// # Safety
/// As for [`set`]; `sock` is alive.
pub(crate) unsafe fn wait(core: *mut Core, fd: RawFd, sock: *mut PyObject, handle: Owned) -> Result<()> {
    // SAFETY: as the caller says.
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

/// Queues the handle that waits to receive from `fd` if its socket was closed meanwhile: it will find out, and fail. Says whether it
/// has. The number may be that of another file already.
///
/// # Safety
/// As for [`set`].
pub(crate) unsafe fn fail_if_closed(core: *mut Core, fd: RawFd) -> Result<bool> {
    // SAFETY: as the caller says. Asking the socket may call anything, so the handle is looked up again.
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

/// Takes away the reader of a socket's descriptor, which goes on being watched, and gives it back.
///
/// # Safety
/// As for [`set`]; `sock` is alive.
pub(crate) unsafe fn keep(core: *mut Core, fd: RawFd, sock: *mut PyObject, emptied: bool) -> Result<*mut PyObject> {
    // SAFETY: as the caller says. A weak reference is let go of last.
    unsafe {
        let owner = Owned::returned(ffi::PyWeakref_NewRef(sock, null_mut()))?;
        if (*core).closed || fd as usize >= (*core).readers.entries.len() {
            return Ok(null_mut());
        }
        let reader = (*core).readers.exchange(fd, Side::Reader, null_mut());
        let entry = (*core).readers.entry(fd);
        if entry.token.is_some() {
            entry.kept = if emptied { Kept::Emptied } else { Kept::Watched };
        }
        ffi::Py_XDECREF(ptr::replace(&raw mut entry.owner, owner.into_ptr()));
        Ok(reader)
    }
}

/// Makes `callback(*arguments)` the reader or writer of `fd`, in place of the one there was.
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
    // SAFETY: as the caller says. What is given as a descriptor is asked for it only if the loop is open.
    unsafe {
        let core = core::core(loop_)?;
        core::check_open(core)?;
        let number = descriptor(fd)?;
        let handle = add_number(loop_, number, side, callback, arguments)?;
        remember_owner(core, number, fd);
        Ok(handle)
    }
}

/// Likewise, for whoever knows the number.
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
    // SAFETY: as the caller says. `set` takes over one reference to the handle, and gives back one to the previous.
    unsafe {
        let core = core::core(loop_)?;
        core::check_open(core)?;
        let handle = handle::new(loop_, callback, arguments, null_mut())?;
        // It may stay for as long as the loop does.
        handle_memory::track(handle.as_ptr());
        fail_if_closed(core, fd)?;
        ffi::Py_INCREF(handle.as_ptr());
        let previous = Owned::taken(set(core, fd, side, handle.as_ptr())?);
        if let Some(previous) = previous {
            handle::cancel(previous.as_ptr())?;
        }
        Ok(handle)
    }
}

/// Takes away the reader or writer of `fd`, and says whether there was one.
///
/// # Safety
/// Both are live objects, `loop_` a `pelton.Loop`.
pub(crate) unsafe fn remove(loop_: *mut PyObject, fd: *mut PyObject, side: Side) -> Result<bool> {
    // SAFETY: as the caller says. What is given as a descriptor is asked for it only if the loop is open.
    unsafe {
        let core = core::core(loop_)?;
        if (*core).closed {
            return Ok(false);
        }
        let number = match descriptor(fd) {
            Ok(number) => number,
            // A socket that was closed before it is taken away no longer has a number, but had one.
            Err(Raised) if ffi::PyErr_ExceptionMatches(ffi::PyExc_ValueError) == 0 => return Err(Raised),
            Err(Raised) => match owned_by(core, fd) {
                Some(number) => number,
                None => descriptor(fd)?,
            },
        };
        remove_number(loop_, number, side)
    }
}

/// Likewise, for whoever knows the number.
///
/// # Safety
/// As for [`remove`]; `fd` is not negative.
pub(crate) unsafe fn remove_number(loop_: *mut PyObject, fd: RawFd, side: Side) -> Result<bool> {
    // SAFETY: as the caller says. `set` gives back a reference to the previous handle.
    unsafe {
        let core = core::core(loop_)?;
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

/// Notes which object a descriptor was given as, so that it is found when that object has been closed.
unsafe fn remember_owner(core: *mut Core, fd: RawFd, object: *mut PyObject) {
    // SAFETY: as the caller says. A weak reference is let go of last.
    unsafe {
        let owner = if ffi::PyLong_Check(object) != 0 {
            // It may be another file than the owner's by now, unless that is still being watched for the owner.
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

/// The descriptor that was given as this object. Clears the error that is set.
unsafe fn owned_by(core: *mut Core, object: *mut PyObject) -> Option<RawFd> {
    // SAFETY: as the caller says.
    unsafe {
        ffi::PyErr_Clear();
        let owner = Owned::taken(weakly(object))?;
        // The same object has the same weak reference, for as long as somebody has it.
        (0..).zip(&(*core).readers.entries).find(|(_, entry)| entry.owner == owner.as_ptr()).map(|(fd, _)| fd)
    }
}

/// A new weak reference; null if there can be none to such an object.
unsafe fn weakly(object: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let reference = ffi::PyWeakref_NewRef(object, null_mut());
        if reference.is_null() {
            ffi::PyErr_Clear();
        }
        reference
    }
}
