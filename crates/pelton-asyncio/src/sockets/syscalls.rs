//! Nonblocking system calls on sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};

use crate::sockets::addresses::Peer;
pub(crate) use pelton_cpython::buffer::RECEIVE;
use pelton_cpython::buffer::with_shared;
use pelton_cpython::descriptor::named as borrowed;

/// Receives up to `wanted` bytes, at most [`RECEIVE`], as a `bytes` object.
pub(crate) fn receive_bytes(py: Python<'_>, fd: RawFd, wanted: usize) -> io::Result<Bound<'_, PyBytes>> {
    with_shared(py, |buffer| {
        let (count, _) = rustix::net::recv(borrowed(fd)?, &mut buffer[..wanted.min(RECEIVE)], RecvFlags::DONTWAIT)?;
        Ok(PyBytes::new(py, &buffer[..count]))
    })
}

/// Accepts a connection. Returns its descriptor, nonblocking and close-on-exec, and its address; `None` if no
/// connection is pending.
pub(crate) fn accept(listener: RawFd) -> io::Result<Option<(OwnedFd, Peer)>> {
    match accept_from(borrowed(listener)?) {
        Ok((accepted, address)) => Ok(Some((accepted, Peer::of(address.as_ref())))),
        Err(error) if is_not_now(&error) || error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}

type Accepted = (OwnedFd, Option<rustix::net::SocketAddrAny>);

#[cfg(not(target_vendor = "apple"))]
fn accept_from(listener: BorrowedFd<'_>) -> io::Result<Accepted> {
    use rustix::net::SocketFlags;
    Ok(rustix::net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Apple's systems lack `accept4`.
#[cfg(target_vendor = "apple")]
fn accept_from(listener: BorrowedFd<'_>) -> io::Result<Accepted> {
    let (accepted, address) = rustix::net::acceptfrom(listener)?;
    set_flags(accepted.as_fd())?;
    Ok((accepted, address))
}

/// Receives a datagram and its sender's address. Truncates datagrams larger than `room` or [`RECEIVE`]; no IP
/// datagram is larger than the latter.
pub(crate) fn receive_datagram(py: Python<'_>, fd: RawFd, room: usize) -> io::Result<(Bound<'_, PyBytes>, Peer)> {
    with_shared(py, |buffer| {
        let buffer = &mut buffer[..room.min(RECEIVE)];
        let (count, _, from) = rustix::net::recvfrom(borrowed(fd)?, &mut *buffer, RecvFlags::DONTWAIT)?;
        // A datagram that was truncated may report its whole size.
        Ok((PyBytes::new(py, &buffer[..count.min(buffer.len())]), Peer::of(from.as_ref())))
    })
}

/// Sends a datagram to an address.
pub(crate) fn send_to(fd: RawFd, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
    Ok(rustix::net::sendto(borrowed(fd)?, bytes, SILENTLY, &address)?)
}

/// Progress of a connection attempt.
pub(crate) enum Connecting {
    InProgress,
    /// The error number of the attempt, or 0.
    Finished(libc::c_int),
}

/// Creates a TCP socket and starts to connect it to an address.
pub(crate) fn new_connection(address: SocketAddr) -> io::Result<(OwnedFd, Connecting)> {
    let socket = new_socket(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
    let connecting = connect_to(socket.as_fd(), address)?;
    Ok((socket, connecting))
}

/// Starts to connect a socket to an address. Returns an error if the attempt cannot be started.
pub(crate) fn connect(socket: RawFd, address: SocketAddr) -> io::Result<Connecting> {
    connect_to(borrowed(socket)?, address)
}

fn connect_to(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<Connecting> {
    let attempt = || rustix::net::connect(socket, &address);
    match attempt() {
        Ok(()) => Ok(Connecting::Finished(0)),
        // Connections to this machine are made at once, but the first call still returns EINPROGRESS. The second
        // one does not.
        Err(Errno::INPROGRESS | Errno::INTR) => Ok(match attempt() {
            Err(Errno::INPROGRESS | Errno::INTR | Errno::ALREADY) => Connecting::InProgress,
            Ok(()) | Err(Errno::ISCONN) => Connecting::Finished(0),
            Err(outcome) => Connecting::Finished(outcome.raw_os_error()),
        }),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_vendor = "apple"))]
fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    use rustix::net::SocketFlags;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// Apple's systems do not accept these flags.
#[cfg(target_vendor = "apple")]
fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(family, SocketType::STREAM, Some(ipproto::TCP))?;
    set_flags(socket.as_fd())?;
    Ok(socket)
}

/// Makes a descriptor nonblocking and close-on-exec.
#[cfg(target_vendor = "apple")]
fn set_flags(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// Returns the result of a connection attempt: 0 or an error number.
pub(crate) fn connect_outcome(fd: RawFd) -> io::Result<libc::c_int> {
    Ok(sockopt::socket_error(borrowed(fd)?)?.map_or_else(Errno::raw_os_error, |()| 0))
}

/// Sends small writes immediately, without waiting for the previous one to be acknowledged (`TCP_NODELAY`).
pub(crate) fn set_no_delay(fd: RawFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_nodelay(borrowed(fd)?, true)?)
}

/// Which end of a connection.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Ours,
    Theirs,
}

/// Returns the address of one end of a connection.
pub(crate) fn address(fd: RawFd, end: End) -> Peer {
    let Ok(fd) = borrowed(fd) else { return Peer::Unknown };
    match end {
        End::Ours => rustix::net::getsockname(fd).map_or(Peer::Unknown, |address| Peer::of(Some(&address))),
        End::Theirs => rustix::net::getpeername(fd).map_or(Peer::Unknown, |address| Peer::of(address.as_ref())),
    }
}

/// Receives into `buffer`.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(borrowed(fd)?, buffer, RecvFlags::DONTWAIT)?.0)
}

/// Sends one buffer, without a signal if the peer has disconnected.
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(borrowed(fd)?, bytes, SILENTLY)?)
}

#[cfg(not(target_vendor = "apple"))]
const SILENTLY: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
/// Python ignores SIGPIPE; a program that hosts it may not.
#[cfg(target_vendor = "apple")]
const SILENTLY: SendFlags = SendFlags::DONTWAIT;

/// Returns whether the operation should be retried when the descriptor is ready.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
