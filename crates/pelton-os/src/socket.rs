//! Stream sockets: made, accepted, and moved between engines.

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use socket2::{Domain, Protocol, SockAddr, Type};

use crate::socket_file::bind_with_mode;
use crate::{Address, ConnectOptions, ListenOptions, SocketFile};

/// Of a file that the kernel cannot send by itself, so much is copied at a time.
const COPIED_AT_ONCE: usize = 16 * 1024;

/// Flags for sending: a peer that is gone is an error to handle, not a signal that ends the process.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL;
#[cfg(target_vendor = "apple")]
pub(crate) const SEND_FLAGS: i32 = 0;

/// A stream or a listener that no engine has at the moment: it was just accepted or detached, or comes from elsewhere and is
/// about to be adopted. It may go to another thread.
#[derive(Debug)]
pub struct Socket(Kind);

#[derive(Debug)]
enum Kind {
    System(OwnedFd),
    /// One that an engine or we have made: it does not block already, and is closed on exec.
    Prepared(SystemSocket),
    Custom(Box<dyn Any + Send>),
}

impl Socket {
    /// One that is not the system's, of an engine with sockets of its own.
    pub fn custom(socket: Box<dyn Any + Send>) -> Socket {
        Socket(Kind::Custom(socket))
    }

    /// The engine's own kind of socket; the socket itself if it is another.
    pub fn into_custom(self) -> Result<Box<dyn Any + Send>, Socket> {
        match self.0 {
            Kind::Custom(socket) => Ok(socket),
            Kind::System(_) | Kind::Prepared(_) => Err(self),
        }
    }

    /// A listener on `address` that no engine has yet, for one to [adopt](crate::engine::Engine::adopt_listener), or for
    /// several: copies of it take connections from the same queue. A stale file of a Unix socket that nobody listens on any more
    /// is replaced; the file is the caller's to remove.
    pub fn listen(address: &Address, options: &ListenOptions) -> io::Result<Socket> {
        SystemSocket::listen(address, options).map(Socket::from)
    }

    /// Another descriptor of the same socket.
    pub fn try_clone(&self) -> io::Result<Socket> {
        let fd = self.as_fd().ok_or_else(no_descriptor)?;
        fd.try_clone_to_owned().map(Socket::from)
    }

    /// Where it is at this end.
    pub fn local_address(&self) -> io::Result<Address> {
        let fd = self.as_fd().ok_or_else(no_descriptor)?;
        Ok(Address::from_socket(&socket2::SockRef::from(&fd).local_addr()?))
    }

    /// Whether connections can be accepted on it. Fails if its descriptor is not that of a socket.
    ///
    /// ```
    /// use pelton_os::Socket;
    /// use std::net::{TcpListener, UdpSocket};
    ///
    /// assert!(Socket::from(std::os::fd::OwnedFd::from(TcpListener::bind("127.0.0.1:0")?)).is_listening()?);
    /// assert!(!Socket::from(std::os::fd::OwnedFd::from(UdpSocket::bind("127.0.0.1:0")?)).is_listening()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn is_listening(&self) -> io::Result<bool> {
        let fd = self.as_fd().ok_or_else(no_descriptor)?;
        #[cfg(not(target_vendor = "apple"))]
        return Ok(rustix::net::sockopt::socket_acceptconn(fd)?);
        // These systems do not tell. A stream that is not connected may listen.
        #[cfg(target_vendor = "apple")]
        {
            let socket = socket2::SockRef::from(&fd);
            Ok(socket.r#type()? == Type::STREAM && socket.peer_addr().is_err())
        }
    }

    /// The system's descriptor, if it has one.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Kind::System(fd) => Some(fd.as_fd()),
            Kind::Prepared(socket) => Some(socket.as_fd()),
            Kind::Custom(_) => None,
        }
    }

    /// The system's descriptor; the socket itself if it has none.
    pub fn into_fd(self) -> Result<OwnedFd, Socket> {
        match self.0 {
            Kind::System(fd) => Ok(fd),
            Kind::Prepared(socket) => Ok(socket.0.into()),
            Kind::Custom(_) => Err(self),
        }
    }

    pub(crate) fn into_system(self) -> io::Result<SystemSocket> {
        match self.0 {
            Kind::System(fd) => SystemSocket::from_fd(fd),
            Kind::Prepared(socket) => Ok(socket),
            Kind::Custom(_) => Err(no_descriptor()),
        }
    }
}

fn no_descriptor() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "a socket of another engine, without a descriptor")
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Socket {
        Socket(Kind::System(fd))
    }
}

impl From<SystemSocket> for Socket {
    fn from(socket: SystemSocket) -> Socket {
        Socket(Kind::Prepared(socket))
    }
}

/// What the standard library has of sockets.
macro_rules! from_std {
    ($($socket:ty),*) => {
        $(impl From<$socket> for Socket {
            fn from(socket: $socket) -> Socket {
                Socket(Kind::System(socket.into()))
            }
        })*
    };
}

from_std![std::net::TcpStream, std::net::TcpListener, std::os::unix::net::UnixStream, std::os::unix::net::UnixListener];
from_std![std::net::UdpSocket, std::os::unix::net::UnixDatagram];

/// A socket that does not block and is closed on exec.
#[derive(Debug)]
pub(crate) struct SystemSocket(pub(crate) socket2::Socket);

impl SystemSocket {
    /// Listens on `address`. A stale file of a Unix socket that nobody listens on any more is replaced.
    pub(crate) fn listen(address: &Address, options: &ListenOptions) -> io::Result<SystemSocket> {
        let socket = SystemSocket::new(address)?;
        if let Address::Tcp(address) = address {
            socket.0.set_reuse_address(true)?;
            if options.reuse_port {
                socket.0.set_reuse_port(true)?;
            }
            if address.is_ipv6() {
                socket.0.set_only_v6(options.only_v6)?;
            }
        }
        socket.bind(address, options.permissions)?;
        socket.0.listen(options.backlog)?;
        Ok(socket)
    }

    /// Binds to `address`. The file of a Unix socket gets these permissions, and replaces a stale one.
    pub(crate) fn bind(&self, address: &Address, permissions: Option<u32>) -> io::Result<()> {
        let (_, name) = address.to_socket()?;
        let Address::Unix(path) = address else { return self.0.bind(&name) };
        bind_with_mode(self.as_fd(), path, permissions, || match self.0.bind(&name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let Some(stale) = self.stale(path, &name)? else { return Err(error) };
                stale.remove()?;
                self.0.bind(&name)
            }
            outcome => outcome,
        })
    }

    /// Returns the file at `path` if it is a socket of this type that no process has open.
    fn stale(&self, path: &Path, name: &SockAddr) -> io::Result<Option<SocketFile>> {
        // A file that is not a socket would refuse the connection below in the same way.
        let Ok(file) = SocketFile::at(path) else { return Ok(None) };
        let probe = socket2::Socket::new(Domain::UNIX, self.0.r#type()?, None)?;
        probe.set_nonblocking(true)?;
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        Ok(probe.connect(name).is_err_and(refused).then_some(file))
    }

    /// A socket that may be [connected](SystemSocket::connect) to `address`, bound if that is asked for.
    pub(crate) fn unconnected(address: &Address, options: &ConnectOptions) -> io::Result<SystemSocket> {
        let socket = SystemSocket::new(address)?;
        if let Some(bind) = &options.bind {
            if matches!(bind, Address::Tcp(_)) {
                socket.0.set_reuse_address(true)?;
            }
            socket.0.bind(&bind.to_socket()?.1)?;
        }
        Ok(socket)
    }

    /// Begins to connect to `address`. Whether it succeeds shows when the socket is writable.
    pub(crate) fn connect(&self, address: &Address) -> io::Result<()> {
        match self.0.connect(&address.to_socket()?.1) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            outcome => outcome,
        }
    }

    fn new(address: &Address) -> io::Result<SystemSocket> {
        let (domain, _) = address.to_socket()?;
        let protocol = matches!(address, Address::Tcp(_)).then_some(Protocol::TCP);
        let socket = socket2::Socket::new(domain, Type::STREAM, protocol)?;
        socket.set_nonblocking(true)?;
        let socket = SystemSocket(socket);
        socket.send_without_delay();
        Ok(socket)
    }

    fn from_fd(fd: OwnedFd) -> io::Result<SystemSocket> {
        let socket = socket2::Socket::from(fd);
        socket.set_nonblocking(true)?;
        socket.set_cloexec(true)?;
        Ok(SystemSocket(socket))
    }

    pub(crate) fn send_without_delay(&self) {
        // Meaningless for Unix sockets, which say so.
        let _ = self.0.set_tcp_nodelay(true);
    }

    /// Takes a connection that has come in.
    pub(crate) fn accept(&self) -> io::Result<SystemSocket> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            // That TCP is sent without delay, it has from the listener.
            use rustix::net::{SocketFlags, accept_with};
            Ok(SystemSocket(accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?.into()))
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let accepted = SystemSocket::from_fd(self.0.accept()?.0.into())?;
            accepted.send_without_delay();
            Ok(accepted)
        }
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, buffer, rustix::net::RecvFlags::empty())?.0)
    }

    pub(crate) fn send_one(&self, bytes: &[u8]) -> io::Result<usize> {
        const FLAGS: rustix::net::SendFlags = rustix::net::SendFlags::from_bits_retain(SEND_FLAGS as u32);
        Ok(rustix::net::send(&self.0, bytes, FLAGS)?)
    }

    pub(crate) fn send(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(slices, SEND_FLAGS)
    }

    /// Sends up to `count` bytes of `file`, without them passing through here where the system can do that. 0 at its end.
    pub(crate) fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            let mut offset = offset;
            match rustix::fs::sendfile(&self.0, file, Some(&mut offset), count) {
                // Not every file can: those of some special file systems cannot.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {}
                outcome => return Ok(outcome?),
            }
        }
        self.send_file_by_copying(file, offset, count)
    }

    fn send_file_by_copying(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        let mut block = [0; COPIED_AT_ONCE];
        let wanted = count.min(block.len());
        let read = file.read_at(&mut block[..wanted], offset)?;
        if read == 0 { Ok(0) } else { self.send_one(&block[..read]) }
    }

    /// Whether there is something to be received.
    pub(crate) fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&self.0).is_ok_and(|bytes| bytes > 0)
    }

    /// How many bytes were sent that the other side has not taken yet, if the system can tell.
    ///
    /// For TCP these are the bytes that the peer has not acknowledged. For Unix sockets on Linux it is the memory that sent
    /// messages take up until the peer has read all of them: not a number of bytes, but it falls as the peer reads. On macOS
    /// and the BSDs, what is sent on a Unix socket belongs to the receiver at once, so the number is always 0.
    pub(crate) fn undelivered(&self) -> Option<u64> {
        crate::send_queue::length(self.as_fd())
    }

    pub(crate) fn finish(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)
    }

    /// The error that the socket has pending.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    pub(crate) fn local_address(&self) -> io::Result<Address> {
        Ok(Address::from_socket(&self.0.local_addr()?))
    }

    pub(crate) fn peer_address(&self) -> io::Result<Address> {
        Ok(Address::from_socket(&self.0.peer_addr()?))
    }
}

impl AsFd for SystemSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
