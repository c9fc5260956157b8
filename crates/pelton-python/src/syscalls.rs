//! Receiving and sending, without ever waiting.

use std::cell::UnsafeCell;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use pyo3::ffi;

use crate::addresses::Peer;
use crate::object::{Owned, Result};

/// What is received at once at most: as much as asyncio asks for.
pub(crate) const RECEIVE: usize = 256 * 1024;

/// What is received, for as long as it takes to copy it into an object of the right size.
///
/// An object of [`RECEIVE`] bytes for each message, most of which is given back, would be mapped and unmapped by the C library
/// each time.
///
/// It begins where a page does. The kernel copies by `rep movsb`, which on AMD's Zen 3 and 4 takes up to five times as long if it
/// copies to a few bytes further into a page than it copies from; and what it copies from often begins where a page does.
#[repr(align(4096))]
struct Shared(UnsafeCell<[u8; RECEIVE]>);

// SAFETY: it is only used with the interpreter lock held, which is not let go of between receiving and copying.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new([0; RECEIVE]));

/// Receives up to `wanted` bytes, and not more than [`RECEIVE`], as a `bytes` object.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_bytes(fd: RawFd, wanted: usize) -> io::Result<Result<Owned>> {
    // SAFETY: the shared buffer is not used beyond the copy, and nobody else gets at it before: the lock is held.
    unsafe {
        let buffer = SHARED.0.get().cast::<u8>();
        let count = receive(fd, buffer, wanted.min(RECEIVE))?;
        Ok(Owned::returned(ffi::PyBytes_FromStringAndSize(buffer.cast(), count as _)))
    }
}

/// Receives up to [`RECEIVE`] bytes into the buffer that all share: where they are, and how many. They are to be copied before anything is
/// called that could receive something else, or let go of the lock.
pub(crate) fn receive_shared(fd: RawFd) -> io::Result<(*mut u8, usize)> {
    let buffer = SHARED.0.get().cast::<u8>();
    receive(fd, buffer, RECEIVE).map(|count| (buffer, count))
}

/// Receives up to [`RECEIVE`] bytes: the first into `len` bytes of the caller's memory, and what does not fit there into the
/// buffer that all share, to be copied as with [`receive_shared`]. How many there are of both, and those in the shared one.
///
/// # Safety
/// There is so much room at `into`. The interpreter lock is held.
pub(crate) unsafe fn receive_and_rest<'a>(fd: RawFd, into: *mut u8, len: usize) -> io::Result<(usize, &'a [u8])> {
    let buffer = SHARED.0.get().cast::<u8>();
    let mut vectors = [
        libc::iovec { iov_base: into.cast(), iov_len: len },
        libc::iovec { iov_base: buffer.cast(), iov_len: RECEIVE.saturating_sub(len) },
    ];
    // SAFETY: all zeroes are a message header without anything in it.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: both vectors are memory that nobody else uses while the lock is held.
    let count = returned(unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) })?;
    // SAFETY: so much of the shared buffer has just been filled.
    Ok((count, unsafe { std::slice::from_raw_parts(buffer, count.saturating_sub(len)) }))
}

/// Accepts a connection: its descriptor, not blocking and closed on exec, and where it comes from. `None` if there is none to be
/// had.
pub(crate) fn accept(listener: RawFd) -> io::Result<Option<(OwnedFd, Peer)>> {
    // SAFETY: all zeroes are an address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = size_of_val(&storage) as libc::socklen_t;
    match accept_into(listener, (&raw mut storage).cast(), &mut len) {
        Ok(accepted) => Ok(Some((accepted, Peer::new(&storage, len)))),
        Err(error) if is_not_now(&error) || error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_vendor = "apple"))]
fn accept_into(listener: RawFd, address: *mut libc::sockaddr, len: &mut libc::socklen_t) -> io::Result<OwnedFd> {
    // SAFETY: the caller's address has room for that length; what the system has just given to us is ours.
    unsafe {
        let accepted = libc::accept4(listener, address, len, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        if accepted < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(accepted)) }
    }
}

/// Apple's systems have no `accept4`.
#[cfg(target_vendor = "apple")]
fn accept_into(listener: RawFd, address: *mut libc::sockaddr, len: &mut libc::socklen_t) -> io::Result<OwnedFd> {
    // SAFETY: the caller's address has room for that length; what the system has just given to us is ours.
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

/// Receives a datagram, and where it comes from. One that is larger than `room`, or than [`RECEIVE`], is cut off; none over IP is larger
/// than that.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn receive_datagram(fd: RawFd, room: usize) -> io::Result<(Result<Owned>, Peer)> {
    // SAFETY: all zeroes are an address of no family, with room for one of any. The shared buffer is not used beyond the copy,
    // and nobody else gets at it before: the lock is held.
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
    // SAFETY: the slice is what its pointer and length say, and so is the address.
    with_address(address, |address, len| unsafe {
        returned(libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, address, len))
    })
}

/// Hands an address to a system call, as that wants it.
fn with_address<R>(address: SocketAddr, call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> R) -> R {
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: all zeroes are an address to fill in.
            let mut system: libc::sockaddr_in = unsafe { mem::zeroed() };
            system.sin_family = libc::AF_INET as _;
            system.sin_port = address.port().to_be();
            system.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            call((&raw const system).cast(), size_of_val(&system) as libc::socklen_t)
        }
        SocketAddr::V6(address) => {
            // SAFETY: all zeroes are an address to fill in.
            let mut system: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            system.sin6_family = libc::AF_INET6 as _;
            system.sin6_port = address.port().to_be();
            system.sin6_addr.s6_addr = address.ip().octets();
            call((&raw const system).cast(), size_of_val(&system) as libc::socklen_t)
        }
    }
}

/// How far an attempt to connect has come.
pub(crate) enum Connecting {
    UnderWay,
    /// 0, or the number of the error that it has failed with.
    Over(libc::c_int),
}

/// Makes a socket, and begins to connect it to an address, over TCP.
pub(crate) fn new_connection(address: SocketAddr) -> io::Result<(OwnedFd, Connecting)> {
    let socket = new_socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 })?;
    let connecting = connect(socket.as_raw_fd(), address)?;
    Ok((socket, connecting))
}

/// Begins to connect a socket to an address. What is refused outright is an error.
pub(crate) fn connect(socket: RawFd, address: SocketAddr) -> io::Result<Connecting> {
    let attempt = || {
        // SAFETY: the address is what pointer and length say.
        let outcome = with_address(address, |address, len| unsafe { libc::connect(socket, address, len) });
        if outcome == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
    };
    match attempt() {
        0 => Ok(Connecting::Over(0)),
        // To this machine it takes no time, but the first call says that it does. The second one knows.
        libc::EINPROGRESS | libc::EINTR => Ok(match attempt() {
            libc::EINPROGRESS | libc::EINTR | libc::EALREADY => Connecting::UnderWay,
            libc::EISCONN => Connecting::Over(0),
            outcome => Connecting::Over(outcome),
        }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(not(target_vendor = "apple"))]
fn new_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: what the system has just given to us is ours.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = libc::socket(family, kind, libc::IPPROTO_TCP);
        if socket < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(socket)) }
    }
}

/// Apple's systems do not take these flags.
#[cfg(target_vendor = "apple")]
fn new_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: what the system has just given to us is ours.
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

/// Has a descriptor not block, and closed on exec.
#[cfg(target_vendor = "apple")]
fn set_flags(fd: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    for request in [libc::FIOCLEX, libc::FIONBIO] {
        // SAFETY: both requests take a pointer to a number, or none.
        if unsafe { libc::ioctl(fd.as_raw_fd(), request, &on) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What has become of an attempt to connect: 0, or the number of an error.
pub(crate) fn connect_outcome(fd: RawFd) -> io::Result<libc::c_int> {
    let mut error: libc::c_int = 0;
    let mut len = size_of_val(&error) as libc::socklen_t;
    // SAFETY: the option is a number, and there is room for it.
    let outcome =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(error) }
}

/// Has small writes sent at once, and not when the last one has been acknowledged.
pub(crate) fn set_no_delay(fd: RawFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the option is a number.
    let outcome = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const on).cast(), len) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Which end of a connection.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Ours,
    Theirs,
}

/// The address of one end of a connection.
pub(crate) fn address(fd: RawFd, end: End) -> Peer {
    // SAFETY: all zeroes are an address of no family, with room for one of any.
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

/// Receives what fits.
pub(crate) fn receive(fd: RawFd, into: *mut u8, len: usize) -> io::Result<usize> {
    // SAFETY: the callers have a buffer of that length, which nobody else uses while the lock is held.
    returned(unsafe { libc::recv(fd, into.cast(), len, libc::MSG_DONTWAIT) })
}

/// Sends one piece, without raising a signal if nobody is there to receive it.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the slice is what its pointer and length say.
    returned(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), SILENTLY | libc::MSG_DONTWAIT) })
}

/// Sends several pieces with one system call, likewise.
pub(crate) fn send_vectors(fd: RawFd, vectors: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: all zeroes are a message header without anything in it.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: the vectors describe memory that lives, and that nobody changes, while the lock is held.
    returned(unsafe { libc::sendmsg(fd, &message, SILENTLY | libc::MSG_DONTWAIT) })
}

#[cfg(not(target_vendor = "apple"))]
const SILENTLY: libc::c_int = libc::MSG_NOSIGNAL;
/// Python ignores the signal anyway; only a program that hosts it may not.
#[cfg(target_vendor = "apple")]
const SILENTLY: libc::c_int = 0;

fn returned(count: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Whether an operation is just to be tried again when the descriptor is ready.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
