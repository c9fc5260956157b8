//! Nonblocking system calls on sockets.

use std::cell::UnsafeCell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use pyo3::ffi;

use crate::addresses::Peer;
use crate::object::{Owned, Result};

/// Maximum size of one receive, as in asyncio.
pub(crate) const RECEIVE: usize = 256 * 1024;

/// A buffer for received data until it is copied into an object of the right size.
///
/// With a new object of [`RECEIVE`] bytes for each message, shrunk afterwards, the C library would map and unmap
/// memory each time.
///
/// It is page-aligned. The kernel copies with `rep movsb`. On AMD's Zen 3 and 4 that takes up to five times as long if
/// the destination is a few bytes further into a page than the source, and the source often starts at a page boundary.
#[repr(align(4096))]
struct ReceiveBuffer(UnsafeCell<[u8; RECEIVE]>);

// SAFETY: it is only used with the interpreter lock held, which is not released between receiving and copying.
unsafe impl Sync for ReceiveBuffer {}

static SHARED: ReceiveBuffer = ReceiveBuffer(UnsafeCell::new([0; RECEIVE]));

/// Receives up to `wanted` bytes, at most [`RECEIVE`], as a `bytes` object.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_bytes(fd: RawFd, wanted: usize) -> io::Result<Result<Owned>> {
    // SAFETY: the caller holds the lock, so nothing else uses the shared buffer before its bytes are copied.
    unsafe {
        let buffer = SHARED.0.get().cast::<u8>();
        let count = receive(fd, buffer, wanted.min(RECEIVE))?;
        Ok(Owned::returned(ffi::PyBytes_FromStringAndSize(buffer.cast(), count as _)))
    }
}

/// Returns the shared buffer.
///
/// # Safety
/// The interpreter lock is held. The caller copies the bytes that it receives before it calls anything that could receive again or
/// release the lock, and then does not use the buffer any more.
pub(crate) unsafe fn shared_buffer<'a>() -> &'a mut [MaybeUninit<u8>; RECEIVE] {
    // SAFETY: the caller holds the lock, so nothing else uses the buffer.
    unsafe { &mut *SHARED.0.get().cast() }
}

/// Accepts a connection. Returns its descriptor, nonblocking and close-on-exec, and its address; `None` if no
/// connection is pending.
pub(crate) fn accept(listener: RawFd) -> io::Result<Option<(OwnedFd, Peer)>> {
    // SAFETY: all zeroes are a valid address without a family.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = size_of_val(&storage) as libc::socklen_t;
    // SAFETY: `storage` has room for `len` bytes.
    match unsafe { accept_into(listener, (&raw mut storage).cast(), &mut len) } {
        Ok(accepted) => Ok(Some((accepted, Peer::new(&storage, len)))),
        Err(error) if is_not_now(&error) || error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_vendor = "apple"))]
unsafe fn accept_into(listener: RawFd, address: *mut libc::sockaddr, len: &mut libc::socklen_t) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees that `address` has room for `len` bytes. The new descriptor has no other owner.
    unsafe {
        let accepted = libc::accept4(listener, address, len, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        if accepted < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(accepted)) }
    }
}

/// Apple's systems lack `accept4`.
#[cfg(target_vendor = "apple")]
unsafe fn accept_into(listener: RawFd, address: *mut libc::sockaddr, len: &mut libc::socklen_t) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees that `address` has room for `len` bytes. The new descriptor has no other owner.
    unsafe {
        let accepted = libc::accept(listener, address, len);
        if accepted < 0 {
            return Err(io::Error::last_os_error());
        }
        let accepted = OwnedFd::from_raw_fd(accepted);
        set_flags(&accepted)?;
        Ok(accepted)
    }
}

/// Receives a datagram and its sender's address. Truncates datagrams larger than `room` or [`RECEIVE`]; no IP
/// datagram is larger than the latter.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_datagram(fd: RawFd, room: usize) -> io::Result<(Result<Owned>, Peer)> {
    // SAFETY: all zeroes are a valid address without a family, and there is room for one of any family. The caller
    // holds the lock, so nothing else uses the shared buffer before its bytes are copied.
    unsafe {
        let mut storage: libc::sockaddr_storage = mem::zeroed();
        let mut len = size_of_val(&storage) as libc::socklen_t;
        let buffer = SHARED.0.get().cast::<u8>();
        let address = (&raw mut storage).cast();
        let count = libc::recvfrom(fd, buffer.cast(), room.min(RECEIVE), libc::MSG_DONTWAIT, address, &mut len);
        let count = returned(count)?;
        let data = Owned::returned(ffi::PyBytes_FromStringAndSize(buffer.cast(), count as _));
        Ok((data, Peer::new(&storage, len)))
    }
}

/// Sends a datagram to an address.
pub(crate) fn send_to(fd: RawFd, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
    let flags = SILENTLY | libc::MSG_DONTWAIT;
    // SAFETY: pointers and lengths are those of a slice and of an address.
    with_address(address, |address, len| unsafe {
        returned(libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, address, len))
    })
}

/// Calls `call` with an address in the system's format.
fn with_address<R>(address: SocketAddr, call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> R) -> R {
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: all zeroes are a valid address to fill in.
            let mut system: libc::sockaddr_in = unsafe { mem::zeroed() };
            system.sin_family = libc::AF_INET as _;
            system.sin_port = address.port().to_be();
            system.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            call((&raw const system).cast(), size_of_val(&system) as libc::socklen_t)
        }
        SocketAddr::V6(address) => {
            // SAFETY: all zeroes are a valid address to fill in.
            let mut system: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            system.sin6_family = libc::AF_INET6 as _;
            system.sin6_port = address.port().to_be();
            system.sin6_addr.s6_addr = address.ip().octets();
            call((&raw const system).cast(), size_of_val(&system) as libc::socklen_t)
        }
    }
}

/// Progress of a connection attempt.
pub(crate) enum Connecting {
    InProgress,
    /// The error number of the attempt, or 0.
    Finished(libc::c_int),
}

/// Creates a TCP socket and starts to connect it to an address.
pub(crate) fn new_connection(address: SocketAddr) -> io::Result<(OwnedFd, Connecting)> {
    let socket = new_socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 })?;
    let connecting = connect(socket.as_raw_fd(), address)?;
    Ok((socket, connecting))
}

/// Starts to connect a socket to an address. Returns an error if the attempt cannot be started.
pub(crate) fn connect(socket: RawFd, address: SocketAddr) -> io::Result<Connecting> {
    let attempt = || {
        // SAFETY: pointer and length are those of an address.
        let outcome = with_address(address, |address, len| unsafe { libc::connect(socket, address, len) });
        if outcome == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
    };
    match attempt() {
        0 => Ok(Connecting::Finished(0)),
        // Connections to this machine are made at once, but the first call still returns EINPROGRESS. The second
        // one does not.
        libc::EINPROGRESS | libc::EINTR => Ok(match attempt() {
            libc::EINPROGRESS | libc::EINTR | libc::EALREADY => Connecting::InProgress,
            libc::EISCONN => Connecting::Finished(0),
            outcome => Connecting::Finished(outcome),
        }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(not(target_vendor = "apple"))]
fn new_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers. The new descriptor has no other owner.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = libc::socket(family, kind, libc::IPPROTO_TCP);
        if socket < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(socket)) }
    }
}

/// Apple's systems do not accept these flags.
#[cfg(target_vendor = "apple")]
fn new_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers. The new descriptor has no other owner.
    unsafe {
        let socket = libc::socket(family, libc::SOCK_STREAM, libc::IPPROTO_TCP);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        set_flags(&socket)?;
        Ok(socket)
    }
}

/// Makes a descriptor nonblocking and close-on-exec.
#[cfg(target_vendor = "apple")]
fn set_flags(fd: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    for request in [libc::FIOCLEX, libc::FIONBIO] {
        // SAFETY: both requests take a pointer to an int, or ignore it.
        if unsafe { libc::ioctl(fd.as_raw_fd(), request, &on) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns the result of a connection attempt: 0 or an error number.
pub(crate) fn connect_outcome(fd: RawFd) -> io::Result<libc::c_int> {
    let mut error: libc::c_int = 0;
    let mut len = size_of_val(&error) as libc::socklen_t;
    // SAFETY: the option is an int, and there is room for it.
    let outcome =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(error) }
}

/// Sends small writes immediately, without waiting for the previous one to be acknowledged (`TCP_NODELAY`).
pub(crate) fn set_no_delay(fd: RawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the option is an int.
    let outcome = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), len) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Which end of a connection.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Ours,
    Theirs,
}

/// Returns the address of one end of a connection.
pub(crate) fn address(fd: RawFd, end: End) -> Peer {
    // SAFETY: all zeroes are a valid address without a family, and there is room for one of any family.
    unsafe {
        let mut storage: libc::sockaddr_storage = mem::zeroed();
        let mut len = size_of_val(&storage) as libc::socklen_t;
        let into = (&raw mut storage).cast();
        let outcome = match end {
            End::Ours => libc::getsockname(fd, into, &raw mut len),
            End::Theirs => libc::getpeername(fd, into, &raw mut len),
        };
        if outcome < 0 { Peer::Unknown } else { Peer::new(&storage, len) }
    }
}

/// Receives up to `len` bytes.
///
/// # Safety
/// `into` has room for `len` bytes, which nothing else uses during the call.
pub(crate) unsafe fn receive(fd: RawFd, into: *mut u8, len: usize) -> io::Result<usize> {
    // SAFETY: the caller guarantees the room.
    returned(unsafe { libc::recv(fd, into.cast(), len, libc::MSG_DONTWAIT) })
}

/// Sends one buffer, without a signal if the peer has disconnected.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length are those of a slice.
    returned(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), SILENTLY | libc::MSG_DONTWAIT) })
}

#[cfg(not(target_vendor = "apple"))]
const SILENTLY: libc::c_int = libc::MSG_NOSIGNAL;
/// Python ignores SIGPIPE; a program that hosts it may not.
#[cfg(target_vendor = "apple")]
const SILENTLY: libc::c_int = 0;

fn returned(count: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Returns whether the operation should be retried when the descriptor is ready.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
