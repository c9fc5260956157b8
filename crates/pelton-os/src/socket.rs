//! Stream sockets: made, accepted and asked about.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Protocol, Type};

use crate::Address;

/// Connections that the kernel holds for us before they are accepted. The kernel cuts this down to its own limit.
const BACKLOG: i32 = 4096;

/// A stream socket that does not block and is closed on exec. TCP is sent without delay.
#[derive(Debug)]
pub struct Socket(socket2::Socket);

impl Socket {
    /// Listens on `address`. A stale file of a Unix socket that nobody listens on any more is replaced.
    pub fn listen(address: &Address) -> io::Result<Socket> {
        let (_, name) = address.to_socket()?;
        let socket = Socket::new(address)?;
        if let Address::Tcp(address) = address {
            socket.0.set_reuse_address(true)?;
            if address.is_ipv6() {
                socket.0.set_only_v6(false)?;
            }
        }
        match (socket.0.bind(&name), address) {
            (Err(error), Address::Unix(path)) if error.kind() == io::ErrorKind::AddrInUse => {
                // Only if there is nobody: a socket that somebody listens on takes the connection.
                match Socket::new(address)?.0.connect(&name) {
                    Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path)?;
                        socket.0.bind(&name)?;
                    }
                    _ => return Err(error),
                }
            }
            (outcome, _) => outcome?,
        }
        socket.0.listen(BACKLOG)?;
        Ok(socket)
    }

    /// Begins to connect to `address`. Whether it succeeds shows when the socket is writable.
    pub fn connect(address: &Address) -> io::Result<Socket> {
        let socket = Socket::new(address)?;
        match socket.0.connect(&address.to_socket()?.1) {
            Ok(()) => Ok(socket),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            Err(error) => Err(error),
        }
    }

    fn new(address: &Address) -> io::Result<Socket> {
        let (domain, _) = address.to_socket()?;
        let protocol = matches!(address, Address::Tcp(_)).then_some(Protocol::TCP);
        let socket = socket2::Socket::new(domain, Type::STREAM, protocol)?;
        socket.set_nonblocking(true)?;
        let socket = Socket(socket);
        socket.send_without_delay();
        Ok(socket)
    }

    /// Makes use of a connected stream socket of yours.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Socket> {
        let socket = socket2::Socket::from(fd);
        socket.set_nonblocking(true)?;
        Ok(Socket(socket))
    }

    fn send_without_delay(&self) {
        // Meaningless for Unix sockets, which say so.
        let _ = self.0.set_tcp_nodelay(true);
    }

    /// Takes a connection that has come in.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let accepted = {
            use rustix::net::{SocketFlags, accept_with};
            Socket(accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?.into())
        };
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let accepted = Socket::from_fd(self.0.accept()?.0.into())?;
        accepted.send_without_delay();
        Ok(accepted)
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &self.0, buffer)
    }

    pub(crate) fn send(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        // A peer that is gone is an error to be handled, not a signal that ends the process.
        #[cfg(not(target_vendor = "apple"))]
        const FLAGS: i32 = libc::MSG_NOSIGNAL;
        #[cfg(target_vendor = "apple")]
        const FLAGS: i32 = 0;
        self.0.send_vectored_with_flags(slices, FLAGS)
    }

    pub(crate) fn finish(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)
    }

    /// The error that the socket has pending.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    /// Where it is bound.
    pub fn local_address(&self) -> io::Result<Address> {
        Ok(Address::from_socket(&self.0.local_addr()?))
    }

    /// Where its other end is.
    pub fn peer_address(&self) -> io::Result<Address> {
        Ok(Address::from_socket(&self.0.peer_addr()?))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> OwnedFd {
        socket.0.into()
    }
}
