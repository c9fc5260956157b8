//! Datagram transports: receiving, and sending through the reactor's datagram sockets.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

use pelton::{Address, Sending, Space};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::event_loop::state::{Loop, LoopState};
use crate::known::name;
use crate::readers::{datagrams_of, with_datagrams};
use crate::sockets::syscalls::{self, is_not_now};
use crate::sockets::{addresses, guards};
use crate::transports::writing::Data;
use pelton_cpython::arguments::Argument;
use pelton_cpython::buffer::with_shared;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise_io, take_raised};
use pelton_cpython::class::This;
use pelton_cpython::object::{Raised, Result};

/// The longest name of a Unix socket that is used here. Longer ones, which some systems refuse, are left to the socket's own method.
const LONGEST_NAME: usize = 100;

/// Maximum number of datagrams received before other callbacks get their turn.
const AT_ONCE: usize = 32;

/// `_receive_datagrams(transport, fd)`: passes datagrams to the transport's protocol until there are none left or the
/// protocol pauses. Returns false if socket methods were replaced and asyncio's own implementation must be used.
pub(crate) fn receive<'py>(this: This<'_, 'py, Loop>, [transport, fd]: [Argument<'_, 'py>; 2]) -> Result<bool> {
    let py = this.py();
    if !guards::methods_are_original(py)? {
        return Ok(false);
    }
    let (fd, state) = (fd.whole()? as RawFd, this.state()?);
    let Some(id) = datagrams_of(state, fd) else { return Ok(false) };
    for _ in 0..AT_ONCE {
        for flag in [name!(py, _conn_lost), name!(py, _paused)] {
            if transport.attribute(flag)?.truth()? {
                return Ok(true);
            }
        }
        if datagrams_of(state, fd) != Some(id) {
            return Ok(true);
        }
        let protocol = transport.attribute(name!(py, _protocol))?;
        let received = with_shared(py, |buffer| {
            let received = with_datagrams(py, state, id, |io| io.receive_into(&mut Space::from(&mut *buffer)))?;
            Ok(received.map(|(count, from)| (PyBytes::new(py, &buffer[..count]), from)))
        })?;
        match received {
            Ok((data, from)) => {
                let address = to_python(py, from.as_ref())?;
                protocol.method_two(name!(py, datagram_received), &data, &address)?;
            }
            Err(error) if is_not_now(&error) => return Ok(true),
            Err(error) => {
                let Raised = raise_io(py, &error);
                let Some(raised) = take_raised(py) else { return Ok(true) };
                return protocol.method_one(name!(py, error_received), &raised).map(|_| true);
            }
        }
    }
    Ok(true)
}

/// Converts the address of a sender to Python's format.
fn to_python<'py>(py: Python<'py>, address: Option<&Address>) -> Result<Bound<'py, PyAny>> {
    match address {
        Some(Address::Tcp(address)) => addresses::to_python(py, &(*address).into()),
        Some(Address::Unix(path)) => path.as_os_str().into_pyobject(py).map(Bound::into_any).or_raise(py),
        Some(Address::Abstract(name)) => Ok(PyBytes::new(py, &[b"\0", &name[..]].concat()).into_any()),
        // A Unix socket without a name sends from no address.
        _ => Ok(py.None().into_bound(py)),
    }
}

/// Returns an address of the program if it needs no name resolution.
fn from_python(address: &Bound<'_, PyAny>) -> Option<Address> {
    if let Some(address) = addresses::literal(address) {
        return Some(Address::Tcp(address));
    }
    let name = if address.is_exact_instance_of::<PyString>() {
        // If it cannot be encoded, the socket's own method raises the right error.
        address.extract::<OsString>().ok()?
    } else {
        OsStr::from_bytes(address.cast_exact::<PyBytes>().ok()?.as_bytes()).to_owned()
    };
    match name.as_bytes() {
        long if long.len() > LONGEST_NAME => None,
        [0, name @ ..] if !name.is_empty() => Some(Address::Abstract(name.to_owned())),
        path if !path.is_empty() && CString::new(path).is_ok() => Some(Address::Unix(OsStr::from_bytes(path).into())),
        _ => None,
    }
}

/// Returns the descriptor's number and the address to send to, or `None` if the socket's own methods must be used: the address needs
/// name resolution, or sockets are guarded.
fn target(fd: &Bound<'_, PyAny>, address: &Bound<'_, PyAny>) -> Result<Option<(RawFd, Option<Address>)>> {
    if guards::is_guarded(fd.py())? {
        return Ok(None);
    }
    let fd = fd.whole()? as RawFd;
    if address.is_none() {
        return Ok(Some((fd, None)));
    }
    Ok(from_python(address).map(|address| (fd, Some(address))))
}

/// `_send_datagram(fd, data, address)`: returns true if it was sent, and false if it was queued because there is no room.
/// `NotImplemented` if the socket's own methods must be tried first. Raises the system's error.
pub(crate) fn send<'py>(
    this: This<'_, 'py, Loop>,
    [fd, data, address]: [Argument<'_, 'py>; 3],
) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let not_here = || Ok(py.NotImplemented().into_bound(py));
    let Some((fd, to)) = target(&fd, &address)? else { return not_here() };
    let Ok(data) = Data::new(&data) else {
        // The socket's own method raises the right error.
        clear_raised(py);
        return not_here();
    };
    match send_or_keep(py, this.state()?, fd, to.as_ref(), &data)? {
        None => not_here(),
        Some(Ok(sending)) => {
            (sending == Sending::Idle).into_pyobject(py).map(|sent| sent.to_owned().into_any()).or_raise(py)
        }
        Some(Err(error)) => Err(raise_io(py, &error)),
    }
}

fn send_or_keep(
    py: Python<'_>,
    state: &LoopState,
    fd: RawFd,
    to: Option<&Address>,
    data: &Data<'_>,
) -> Result<Option<io::Result<Sending>>> {
    let Some(id) = datagrams_of(state, fd) else { return Ok(None) };
    data.read(|bytes| with_datagrams(py, state, id, |io| io.send_or_keep(to, bytes, || data.keep(0)))).map(Some)
}

/// `_queue_datagram(fd, data, address)`: queues a datagram after the socket's own method had no room for it. Returns false if the
/// address needs name resolution.
pub(crate) fn queue<'py>(this: This<'_, 'py, Loop>, [fd, data, address]: [Argument<'_, 'py>; 3]) -> Result<bool> {
    let py = this.py();
    let fd = fd.whole()? as RawFd;
    let to = match address.is_none() {
        true => None,
        false => match from_python(&address) {
            Some(to) => Some(to),
            None => return Ok(false),
        },
    };
    match send_or_keep(py, this.state()?, fd, to.as_ref(), &Data::new(&data)?)? {
        Some(outcome) => outcome.map(|_| true).map_err(|error| raise_io(py, &error)),
        None => Err(raise_io(py, &io::Error::from_raw_os_error(libc::EBADF))),
    }
}

/// `_queued_datagrams(fd)`: returns the number of queued datagrams and of their bytes.
pub(crate) fn queued<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let (py, state) = (this.py(), this.state()?);
    let (count, bytes) = match datagrams_of(state, fd.whole()? as RawFd) {
        Some(id) => with_datagrams(py, state, id, |io| Ok((io.queued_datagrams(), io.queued())))?.unwrap_or((0, 0)),
        None => (0, 0),
    };
    (count, bytes).into_pyobject(py).map(Bound::into_any).or_raise(py)
}

/// `_check_datagrams(fd)`: raises the error of a queued datagram that could not be sent, once for each.
pub(crate) fn check<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<()> {
    let (py, state) = (this.py(), this.state()?);
    let Some(id) = datagrams_of(state, fd.whole()? as RawFd) else { return Ok(()) };
    let sent = with_datagrams(py, state, id, |io| io.take_send_error().map_or(Ok(()), Err))?;
    sent.map_err(|error| raise_io(py, &error))
}

/// `_drop_datagrams(fd)`: drops the queue.
pub(crate) fn drop_queue<'py>(this: This<'_, 'py, Loop>, fd: Argument<'_, 'py>) -> Result<()> {
    let (py, state) = (this.py(), this.state()?);
    let Some(id) = datagrams_of(state, fd.whole()? as RawFd) else { return Ok(()) };
    with_datagrams(py, state, id, |io| io.drop_queued()).map(drop)
}

/// `_sendto(fd, data, address)`: sends a datagram on a socket without a transport. Returns whether it was sent. If not, asyncio's own
/// implementation must be used: the socket's buffer is full, the address needs name resolution, sockets are guarded, or there was an
/// error.
pub(crate) fn send_to<'py>(this: This<'_, 'py, Loop>, [fd, data, address]: [Argument<'_, 'py>; 3]) -> Result<bool> {
    let Ok(data) = data.cast_exact::<PyBytes>() else { return Ok(false) };
    if guards::is_guarded(this.py())? {
        return Ok(false);
    }
    let fd = fd.whole()? as RawFd;
    let Some(address) = addresses::literal(&address) else { return Ok(false) };
    // asyncio's own implementation will see the same error and report it.
    Ok(syscalls::send_to(fd, data.as_bytes(), address).is_ok())
}
