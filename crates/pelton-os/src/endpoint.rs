//! Listeners and datagram sockets: those of an engine, and those that somebody else owns.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use socket2::SockRef;

use crate::socket::SystemSocket;
use crate::stream::Descriptor;
use crate::{Accepted, Address, Space};

/// A listener or a datagram socket that an engine uses.
pub(crate) enum Endpoint {
    Own(SystemSocket),
    Borrowed(Descriptor),
}

impl Endpoint {
    /// Returns the descriptor. Fails if it belongs to somebody else, who has closed it.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Endpoint::Own(socket) => Ok(socket.as_fd()),
            Endpoint::Borrowed(descriptor) => descriptor.fd(),
        }
    }

    /// Calls `f` with the socket. Fails if it belongs to somebody else, who has closed it.
    pub(crate) fn with_socket<T>(&self, f: impl FnOnce(&socket2::Socket) -> io::Result<T>) -> io::Result<T> {
        match self {
            Endpoint::Own(socket) => f(&socket.0),
            Endpoint::Borrowed(descriptor) => f(&SockRef::from(&descriptor.fd()?)),
        }
    }

    /// Returns the number that the poller knows, also after the owner has closed it.
    pub(crate) fn number(&self) -> RawFd {
        match self {
            Endpoint::Own(socket) => socket.as_fd().as_raw_fd(),
            Endpoint::Borrowed(descriptor) => descriptor.number(),
        }
    }

    /// Returns whether the descriptor is somebody else's, who has closed it.
    pub(crate) fn is_closed_by_owner(&self) -> bool {
        match self {
            Endpoint::Own(_) => false,
            Endpoint::Borrowed(descriptor) => descriptor.is_closed_by_owner(),
        }
    }

    /// Accepts one connection.
    pub(crate) fn accept(&self) -> io::Result<SystemSocket> {
        let is_tcp = matches!(self, Endpoint::Own(socket) if socket.is_tcp());
        SystemSocket::accepted_by(self.fd()?, is_tcp)
    }

    /// Accepts one connection, together with the address of its other side.
    pub(crate) fn accept_from(&self) -> io::Result<Accepted> {
        let (socket, from) = SystemSocket::accepted_with_address(self.fd()?)?;
        Ok(Accepted { socket: socket.into(), from })
    }

    /// Receives one datagram. Bytes that do not fit are lost.
    pub(crate) fn receive_datagram(&self, space: &mut Space<'_>) -> io::Result<(usize, Option<Address>)> {
        use rustix::net::RecvFlags;
        let ((received, _), _, from) = rustix::net::recvfrom(self.fd()?, space.memory(), RecvFlags::DONTWAIT)?;
        Ok((received.len(), from.as_ref().and_then(Address::from_any)))
    }

    /// Sends one datagram.
    pub(crate) fn send_datagram(&self, to: Option<&Address>, bytes: &[u8]) -> io::Result<()> {
        use rustix::net::SendFlags;
        const FLAGS: SendFlags =
            SendFlags::from_bits_retain(crate::socket::SEND_FLAGS as u32).union(SendFlags::DONTWAIT);
        match to {
            None => rustix::net::send(self.fd()?, bytes, FLAGS)?,
            // Fast path: no address to build.
            Some(Address::Tcp(to)) => rustix::net::sendto(self.fd()?, bytes, FLAGS, to)?,
            Some(to) => {
                let flags = FLAGS.bits() as std::ffi::c_int;
                let to = to.to_socket()?.1;
                self.with_socket(|socket| socket.send_to_with_flags(bytes, &to, flags))?
            }
        };
        Ok(())
    }
}
