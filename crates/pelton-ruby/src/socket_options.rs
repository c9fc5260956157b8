//! Socket options.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use magnus::{Error, RString, Ruby, TryConvert, Value};
use pelton::Reactor;
use rb_sys::VALUE;

use crate::access::ask;
use crate::errors;
use crate::machine::{Machine, Source};

/// The largest value of an option that is read.
const LARGEST: usize = 256;

/// Returns the error that is pending on a socket, and clears it.
pub(crate) fn pending_error(socket: BorrowedFd<'_>) -> i32 {
    let value = get(socket, libc::SOL_SOCKET, libc::SO_ERROR).ok();
    value.and_then(|value| Some(i32::from_ne_bytes(value.get(..4)?.try_into().ok()?))).unwrap_or(0)
}

fn get(socket: BorrowedFd<'_>, level: c_int, option: c_int) -> io::Result<Vec<u8>> {
    let mut value = [0_u8; LARGEST];
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the system writes at most `len` bytes.
    let status =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut len) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(value[..len as usize].to_vec()) }
}

fn set(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the system reads the bytes of the slice.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Calls `f` with the socket that a signature names.
fn with_socket<T>(
    machine: &Machine,
    reactor: &mut Reactor,
    sig: u64,
    f: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let none = || io::Error::from_raw_os_error(libc::EBADF);
    match machine.source(sig) {
        Some(Source::Connection(id)) => {
            f(reactor.connection(id).as_ref().and_then(|io| io.descriptor()).ok_or_else(none)?)
        }
        Some(Source::Datagrams(id)) => {
            f(reactor.datagrams(id).as_ref().and_then(|io| io.descriptor()).ok_or_else(none)?)
        }
        Some(Source::Watch(_)) => {
            let attached = machine.entries.borrow().get(&sig).and_then(|entry| entry.attached).ok_or_else(none)?;
            // SAFETY: the program owns the descriptor; one that is closed makes the call fail.
            f(unsafe { BorrowedFd::borrow_raw(attached) })
        }
        _ => Err(none()),
    }
}

/// `get_sock_opt`
pub(crate) fn get_sock_opt(ruby: &Ruby, sig: u64, level: c_int, option: c_int) -> Result<RString, Error> {
    let value = ask("get_sock_opt", move |machine, reactor| {
        with_socket(machine, reactor, sig, |socket| get(socket, level, option))
    })?;
    value.map(|value| ruby.str_from_slice(&value)).map_err(|error| errors::errno(&error))
}

/// `set_sock_opt`
pub(crate) fn set_sock_opt(sig: u64, level: c_int, option: c_int, value: Value) -> Result<i32, Error> {
    let value = match RString::from_value(value) {
        // SAFETY: no Ruby code runs while the slice is copied.
        Some(value) => unsafe { value.as_slice() }.to_vec(),
        None => {
            let number = match bool_of(value) {
                Some(on) => c_int::from(on),
                None => c_int::try_convert(value)?,
            };
            number.to_ne_bytes().to_vec()
        }
    };
    let done = ask("set_sock_opt", move |machine, reactor| {
        with_socket(machine, reactor, sig, |socket| set(socket, level, option, &value))
    })?;
    done.map(|()| 0).map_err(|error| errors::errno(&error))
}

fn bool_of(value: Value) -> Option<bool> {
    use magnus::rb_sys::AsRawValue;
    match value.as_raw() {
        raw if raw == rb_sys::Qtrue as VALUE => Some(true),
        raw if raw == rb_sys::Qfalse as VALUE => Some(false),
        _ => None,
    }
}

/// `enable_keepalive`: the idle time and interval in seconds, and the number of probes; `nil` leaves the system's.
pub(crate) fn enable_keepalive(
    sig: u64,
    idle: Option<c_int>,
    interval: Option<c_int>,
    count: Option<c_int>,
) -> Result<(), Error> {
    let done = ask("enable_keepalive", move |machine, reactor| {
        with_socket(machine, reactor, sig, |socket| {
            set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1_i32.to_ne_bytes())?;
            #[cfg(target_os = "linux")]
            for (option, value) in
                [(libc::TCP_KEEPIDLE, idle), (libc::TCP_KEEPINTVL, interval), (libc::TCP_KEEPCNT, count)]
            {
                if let Some(value) = value {
                    set(socket, libc::IPPROTO_TCP, option, &value.to_ne_bytes())?;
                }
            }
            #[cfg(not(target_os = "linux"))]
            let _ = (idle, interval, count);
            Ok(())
        })
    })?;
    done.map_err(|error| errors::errno(&error))
}

/// `disable_keepalive`
pub(crate) fn disable_keepalive(sig: u64) -> Result<(), Error> {
    let done = ask("disable_keepalive", move |machine, reactor| {
        with_socket(machine, reactor, sig, |socket| {
            set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &0_i32.to_ne_bytes())
        })
    })?;
    done.map_err(|error| errors::errno(&error))
}
