//! Datagram transports: receiving, and sending through the reactor's datagram sockets.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

use pelton::{Address, Sending, Space};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

use crate::event_loop::state::{self, LoopState};
use crate::known::known;
use crate::readers::{datagrams_of, with_datagrams};
use crate::sockets::addresses;
use crate::sockets::guards;
use crate::sockets::syscalls::{self, is_not_now};
use crate::transports::writing::Data;
use pelton_cpython::fields;
use pelton_cpython::object::{Owned, Raised, Result, raise_io};

/// The longest name of a Unix socket that is used here. Longer ones, which some systems refuse, are left to the socket's own method.
const LONGEST_NAME: usize = 100;

/// Maximum number of datagrams received before other callbacks get their turn.
const AT_ONCE: usize = 32;

/// `_receive_datagrams(transport, fd)`: passes datagrams to the transport's protocol until there are none left or the
/// protocol pauses. Returns false if socket methods were replaced and asyncio's own implementation must be used.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn receive(loop_: *mut PyObject, [transport, fd]: [*mut PyObject; 2]) -> Result<bool> {
    // SAFETY: the caller guarantees that the arguments are alive during the call.
    unsafe {
        if !guards::methods_are_original()? {
            return Ok(false);
        }
        let names = &known().names;
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        let Some(id) = datagrams_of(core, fd) else { return Ok(false) };
        for _ in 0..AT_ONCE {
            for flag in [names._conn_lost, names._paused] {
                let flag = Owned::returned(ffi::PyObject_GetAttr(transport, flag))?;
                if fields::truth(flag.as_ptr())? {
                    return Ok(true);
                }
            }
            if datagrams_of(core, fd) != Some(id) {
                return Ok(true);
            }
            let protocol = Owned::returned(ffi::PyObject_GetAttr(transport, names._protocol))?;
            // The bytes are copied before anything else uses the shared buffer.
            let buffer = syscalls::shared_buffer();
            let received = with_datagrams(core, id, |io| io.receive_into(&mut Space::from(&mut buffer[..])))?;
            match received {
                Ok((count, from)) => {
                    let data = Owned::returned(ffi::PyBytes_FromStringAndSize(buffer.as_ptr().cast(), count as _))?;
                    let address = to_python(from.as_ref())?;
                    let arguments = [protocol.as_ptr(), data.as_ptr(), address.as_ptr()];
                    let told =
                        ffi::PyObject_VectorcallMethod(names.datagram_received, arguments.as_ptr(), 3, null_mut());
                    drop(Owned::returned(told)?);
                }
                Err(error) if is_not_now(&error) => return Ok(true),
                Err(error) => {
                    let Raised = raise_io(&error);
                    return Python::attach(|py| {
                        let raised = PyErr::fetch(py);
                        let arguments = [protocol.as_ptr(), raised.value(py).as_ptr()];
                        let told =
                            ffi::PyObject_VectorcallMethod(names.error_received, arguments.as_ptr(), 2, null_mut());
                        Owned::returned(told).map(|_| true)
                    });
                }
            }
        }
        Ok(true)
    }
}

/// Converts the address of a sender to Python's format.
///
/// # Safety
/// The interpreter lock is held.
unsafe fn to_python(address: Option<&Address>) -> Result<Owned> {
    // SAFETY: the caller holds the lock. Text is passed by pointer and length.
    unsafe {
        match address {
            Some(Address::Tcp(address)) => addresses::to_python(&(*address).into()),
            Some(Address::Unix(path)) => {
                let path = path.as_os_str().as_bytes();
                let text = ffi::PyUnicode_DecodeFSDefaultAndSize(path.as_ptr().cast(), path.len() as _);
                Owned::returned(text)
            }
            Some(Address::Abstract(name)) => {
                let name = [b"\0", &name[..]].concat();
                Owned::returned(ffi::PyBytes_FromStringAndSize(name.as_ptr().cast(), name.len() as _))
            }
            // A Unix socket without a name sends from no address.
            _ => Ok(Owned::new_reference(ffi::Py_None())),
        }
    }
}

/// Returns an address of the program if it needs no name resolution.
///
/// # Safety
/// `address` is alive.
unsafe fn from_python(address: *mut PyObject) -> Result<Option<Address>> {
    // SAFETY: the caller guarantees that the address is alive. The bytes live as long as their object.
    unsafe {
        if let Some(address) = addresses::literal(address)? {
            return Ok(Some(Address::Tcp(address)));
        }
        let name = if ffi::PyUnicode_CheckExact(address) != 0 {
            let encoded = ffi::PyUnicode_EncodeFSDefault(address);
            if encoded.is_null() {
                // The socket's own method raises the right error.
                ffi::PyErr_Clear();
                return Ok(None);
            }
            Owned::returned(encoded)?
        } else if ffi::PyBytes_CheckExact(address) != 0 {
            Owned::new_reference(address)
        } else {
            return Ok(None);
        };
        let start = ffi::PyBytes_AsString(name.as_ptr()).cast::<u8>();
        let bytes = std::slice::from_raw_parts(start, ffi::PyBytes_Size(name.as_ptr()) as usize);
        Ok(match bytes {
            long if long.len() > LONGEST_NAME => None,
            [0, name @ ..] if !name.is_empty() => Some(Address::Abstract(name.to_owned())),
            path if !path.is_empty() && CString::new(path).is_ok() => {
                Some(Address::Unix(OsStr::from_bytes(path).into()))
            }
            _ => None,
        })
    }
}

/// Returns the descriptor's number and the address to send to, or `None` if the socket's own methods must be used: the address needs
/// name resolution, or sockets are guarded.
unsafe fn target(fd: *mut PyObject, address: *mut PyObject) -> Result<Option<(RawFd, Option<Address>)>> {
    // SAFETY: the callers keep the arguments alive.
    unsafe {
        if guards::is_guarded()? {
            return Ok(None);
        }
        let fd = fields::whole(fd)? as RawFd;
        if address == ffi::Py_None() {
            return Ok(Some((fd, None)));
        }
        Ok(from_python(address)?.map(|address| (fd, Some(address))))
    }
}

/// `_send_datagram(fd, data, address)`: returns true if it was sent, and false if it was queued because there is no room.
/// `NotImplemented` if the socket's own methods must be tried first. Raises the system's error.
///
/// # Safety
/// `loop_` is a live `pelton.Loop`, and the arguments are alive.
pub(crate) unsafe fn send(loop_: *mut PyObject, [fd, data, address]: [*mut PyObject; 3]) -> Result<Owned> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let core = state::of(loop_)?;
        let not_here = || Ok(Owned::new_reference(ffi::Py_NotImplemented()));
        let Some((fd, to)) = target(fd, address)? else { return not_here() };
        let Ok(data) = Data::new(data) else {
            // The socket's own method raises the right error.
            ffi::PyErr_Clear();
            return not_here();
        };
        let Some(sending) = send_or_keep(core, fd, to.as_ref(), &data)? else { return not_here() };
        match sending {
            Ok(sending) => Owned::returned(ffi::PyBool_FromLong((sending == Sending::Idle).into())),
            Err(error) => Err(raise_io(&error)),
        }
    }
}

unsafe fn send_or_keep(
    core: *mut LoopState,
    fd: RawFd,
    to: Option<&Address>,
    data: &Data,
) -> Result<Option<io::Result<Sending>>> {
    // SAFETY: the caller guarantees that the core belongs to a live loop. Keeping data calls no Python code.
    unsafe {
        let Some(id) = datagrams_of(core, fd) else { return Ok(None) };
        with_datagrams(core, id, |io| io.send_or_keep(to, data.bytes(), || data.keep(0))).map(Some)
    }
}

/// `_queue_datagram(fd, data, address)`: queues a datagram after the socket's own method had no room for it. Returns false if the
/// address needs name resolution.
///
/// # Safety
/// As for [`send`].
pub(crate) unsafe fn queue(loop_: *mut PyObject, [fd, data, address]: [*mut PyObject; 3]) -> Result<bool> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let core = state::of(loop_)?;
        let fd = fields::whole(fd)? as RawFd;
        let to = if address == ffi::Py_None() { None } else { Some(from_python(address)?) };
        let Some(to) = to.map_or(Some(None), |to| to.map(Some)) else { return Ok(false) };
        let data = Data::new(data)?;
        match send_or_keep(core, fd, to.as_ref(), &data)? {
            Some(outcome) => outcome.map(|_| true).map_err(|error| raise_io(&error)),
            None => Err(raise_io(&io::Error::from_raw_os_error(libc::EBADF))),
        }
    }
}

/// `_queued_datagrams(fd)`: returns the number of queued datagrams and of their bytes.
///
/// # Safety
/// As for [`send`].
pub(crate) unsafe fn queued(loop_: *mut PyObject, fd: *mut PyObject) -> Result<Owned> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let core = state::of(loop_)?;
        let (count, bytes) = match datagrams_of(core, fields::whole(fd)? as RawFd) {
            Some(id) => with_datagrams(core, id, |io| Ok((io.queued_datagrams(), io.queued())))?.unwrap_or((0, 0)),
            None => (0, 0),
        };
        Owned::returned(ffi::Py_BuildValue(c"(nn)".as_ptr(), count as ffi::Py_ssize_t, bytes as ffi::Py_ssize_t))
    }
}

/// `_check_datagrams(fd)`: raises the error of a queued datagram that could not be sent, once for each.
///
/// # Safety
/// As for [`send`].
pub(crate) unsafe fn check(loop_: *mut PyObject, fd: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let core = state::of(loop_)?;
        let Some(id) = datagrams_of(core, fields::whole(fd)? as RawFd) else { return Ok(()) };
        with_datagrams(core, id, |io| io.take_send_error().map_or(Ok(()), Err))?.map_err(|error| raise_io(&error))
    }
}

/// `_drop_datagrams(fd)`: drops the queue.
///
/// # Safety
/// As for [`send`].
pub(crate) unsafe fn drop_queue(loop_: *mut PyObject, fd: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees it. Dropping `bytes` objects calls no Python code.
    unsafe {
        let core = state::of(loop_)?;
        let Some(id) = datagrams_of(core, fields::whole(fd)? as RawFd) else { return Ok(()) };
        with_datagrams(core, id, |io| io.drop_queued()).map(drop)
    }
}

/// `_sendto(fd, data, address)`: sends a datagram on a socket without a transport. Returns whether it was sent. If not, asyncio's own
/// implementation must be used: the socket's buffer is full, the address needs name resolution, sockets are guarded, or there was an
/// error.
///
/// # Safety
/// The arguments are alive.
pub(crate) unsafe fn send_to(_: *mut PyObject, [fd, data, address]: [*mut PyObject; 3]) -> Result<bool> {
    // SAFETY: the caller guarantees that the arguments are alive. A `bytes` object is immutable.
    unsafe {
        if ffi::PyBytes_CheckExact(data) == 0 || guards::is_guarded()? {
            return Ok(false);
        }
        let fd = fields::whole(fd)? as RawFd;
        let len = ffi::PyBytes_Size(data) as usize;
        let bytes = std::slice::from_raw_parts(ffi::PyBytes_AsString(data).cast::<u8>(), len);
        let Some(address) = addresses::literal(address)? else { return Ok(false) };
        // asyncio's own implementation will see the same error and report it.
        Ok(syscalls::send_to(fd, bytes, address).is_ok())
    }
}
