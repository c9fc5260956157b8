//! Stream sockets: creating, accepting, and moving them between engines.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use socket2::{Domain, Protocol, SockAddr, Type};

use crate::endpoint::Endpoint;
use crate::socket_file::bind_with_mode;
use crate::stream::{self, Descriptor, Sink, Stream};
use crate::{Address, ConnectOptions, DescriptorOwner, ListenOptions, SocketFile, Space};

/// Flags for sending: a peer that is gone is an error to handle, not a signal that ends the process.
#[cfg(not(target_vendor = "apple"))]
pub(crate) const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL;
#[cfg(target_vendor = "apple")]
pub(crate) const SEND_FLAGS: i32 = 0;

/// A socket that belongs to no engine at the moment: one that was just accepted or detached, or that comes from elsewhere and
/// is about to be adopted. It can be sent to another thread.
///
/// As a stream, it can also be another descriptor: a pipe, a FIFO, a terminal or a character device. And it can be
/// [borrowed](Socket::borrowed) from an owner that closes it later.
#[derive(Debug)]
pub struct Socket(Kind);

/// A connection that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, to be adopted.
    pub socket: Socket,
    /// The address of the other side. `None` if it is of another kind, or if the engine cannot tell.
    pub from: Option<Address>,
}

enum Kind {
    System(OwnedFd),
    /// Created by this crate: already non-blocking and close-on-exec.
    Prepared(SystemSocket),
    /// A detached stream that is not a socket, or that somebody else owns.
    Stream(Box<Descriptor>),
    Borrowed(Box<dyn DescriptorOwner>),
    /// Borrowed, and known to be a stream socket.
    BorrowedSocket(Box<dyn DescriptorOwner>),
    Custom(Box<dyn Any + Send>),
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::System(fd) => fd.fmt(f),
            Kind::Prepared(socket) => socket.fmt(f),
            Kind::Stream(stream) => stream.fmt(f),
            Kind::Borrowed(owner) | Kind::BorrowedSocket(owner) => write!(f, "Borrowed({:?})", owner.descriptor()),
            Kind::Custom(_) => f.write_str("Custom"),
        }
    }
}

impl Socket {
    /// Borrows a descriptor to use it as a stream, a listener or a datagram socket. The engine that adopts it keeps `owner`,
    /// never closes the descriptor, and drops `owner` when the source is over or detached.
    ///
    /// The owner should not read, write or change the mode of the descriptor meanwhile. If it closes it early,
    /// [`DescriptorOwner`] says what happens. A listener in blocking mode is non-blocking while an engine uses it.
    ///
    /// ```
    /// use pelton_os::Socket;
    /// use std::os::unix::net::UnixStream;
    /// use std::sync::Arc;
    ///
    /// let (ours, _theirs) = UnixStream::pair()?;
    /// let ours = Arc::new(ours);
    /// let borrowed = Socket::borrowed(ours.clone());
    /// assert!(borrowed.into_fd().is_err(), "it belongs to somebody else");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn borrowed(owner: impl DescriptorOwner + 'static) -> Socket {
        Socket(Kind::Borrowed(Box::new(owner)))
    }

    /// Borrows a descriptor like [`borrowed`](Socket::borrowed), which is a connected stream socket. This saves the system calls
    /// that find out what it is. On a descriptor of another kind, receiving and sending fail.
    pub fn borrowed_socket(owner: impl DescriptorOwner + 'static) -> Socket {
        Socket(Kind::BorrowedSocket(Box::new(owner)))
    }

    /// Wraps a socket of an engine that does not use the system's sockets.
    pub fn custom(socket: Box<dyn Any + Send>) -> Socket {
        Socket(Kind::Custom(socket))
    }

    /// Returns what [`custom`](Socket::custom) wrapped, or the socket itself if it is one of the system's.
    pub fn into_custom(self) -> Result<Box<dyn Any + Send>, Socket> {
        match self.0 {
            Kind::Custom(socket) => Ok(socket),
            _ => Err(self),
        }
    }

    /// Opens a listener on `address` that belongs to no engine yet. An engine can
    /// [adopt](crate::engine::ListenEngine::adopt_listener) it. Several engines can adopt copies, which accept connections from
    /// the same backlog. Replaces a stale file of a Unix socket. The caller has to remove the file.
    pub fn listen(address: &Address, options: &ListenOptions) -> io::Result<Socket> {
        SystemSocket::listen(address, options).map(Socket::from)
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> io::Result<Socket> {
        let fd = self.as_fd().ok_or_else(no_descriptor)?;
        fd.try_clone_to_owned().map(Socket::from)
    }

    /// Returns the local address.
    pub fn local_address(&self) -> io::Result<Address> {
        let fd = self.as_fd().ok_or_else(no_descriptor)?;
        Ok(Address::from_socket(&socket2::SockRef::from(&fd).local_addr()?))
    }

    /// Returns whether connections can be accepted on it. Fails if its descriptor is not a socket.
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
        // These systems cannot tell: an unconnected stream socket may be listening.
        #[cfg(target_vendor = "apple")]
        {
            let socket = socket2::SockRef::from(&fd);
            Ok(socket.r#type()? == Type::STREAM && socket.peer_addr().is_err())
        }
    }

    /// Returns the system's descriptor, if it has one that is open.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Kind::System(fd) => Some(fd.as_fd()),
            Kind::Prepared(socket) => {
                socket.expose();
                Some(socket.as_fd())
            }
            Kind::Stream(stream) => stream.fd().ok(),
            Kind::Borrowed(owner) | Kind::BorrowedSocket(owner) => owner.descriptor(),
            Kind::Custom(_) => None,
        }
    }

    /// Returns the system's descriptor, or the socket itself if it has none or [borrows](Socket::borrowed) it.
    ///
    /// A socket that was detached from an engine is in non-blocking mode. Other descriptors are in the mode that they had when
    /// the engine adopted them.
    pub fn into_fd(self) -> Result<OwnedFd, Socket> {
        match self.0 {
            Kind::System(fd) => Ok(fd),
            Kind::Prepared(socket) => Ok(socket.0.into()),
            Kind::Stream(stream) => stream.into_fd().map_err(|stream| Socket(Kind::Stream(stream))),
            Kind::Borrowed(_) | Kind::BorrowedSocket(_) | Kind::Custom(_) => Err(self),
        }
    }

    pub(crate) fn into_listener(self) -> io::Result<Endpoint> {
        let is_borrowed = matches!(self.0, Kind::Borrowed(_) | Kind::BorrowedSocket(_));
        if is_borrowed && self.as_fd().is_some() && !self.is_listening()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket does not listen"));
        }
        match self.0 {
            Kind::Borrowed(owner) | Kind::BorrowedSocket(owner) => {
                Descriptor::borrowed_listener(owner).map(Endpoint::Borrowed)
            }
            kind => {
                let mut socket = Socket(kind).into_system()?;
                socket.identify();
                socket.send_without_delay();
                Ok(Endpoint::Own(socket))
            }
        }
    }

    pub(crate) fn into_datagrams(self) -> io::Result<Endpoint> {
        let endpoint = match self.0 {
            Kind::Borrowed(owner) | Kind::BorrowedSocket(owner) => {
                Endpoint::Borrowed(Descriptor::borrowed_socket(owner)?)
            }
            kind => Endpoint::Own(Socket(kind).into_system()?),
        };
        // Other kinds of sockets would be reported as readable forever.
        match endpoint.with_socket(|socket| socket.r#type())? {
            Type::DGRAM => Ok(endpoint),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a datagram socket")),
        }
    }

    fn into_system(self) -> io::Result<SystemSocket> {
        match self.0 {
            Kind::System(fd) => SystemSocket::from_fd(fd),
            Kind::Prepared(socket) => Ok(socket),
            Kind::Stream(_) | Kind::Borrowed(_) | Kind::BorrowedSocket(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a detached stream can be neither a listener nor a datagram socket",
            )),
            Kind::Custom(_) => Err(no_descriptor()),
        }
    }

    pub(crate) fn into_stream(self) -> io::Result<Stream> {
        match self.0 {
            Kind::System(fd) if is_socket(fd.as_fd())? => SystemSocket::from_fd(fd).map(Stream::Socket),
            Kind::System(fd) => Descriptor::owned(fd).map(Box::new).map(Stream::Descriptor),
            Kind::Prepared(socket) => Ok(Stream::Socket(socket)),
            Kind::Stream(stream) => Ok(Stream::Descriptor(stream)),
            Kind::Borrowed(owner) => Descriptor::borrowed(owner).map(Box::new).map(Stream::Descriptor),
            Kind::BorrowedSocket(owner) => Descriptor::borrowed_socket(owner).map(Box::new).map(Stream::Descriptor),
            Kind::Custom(_) => Err(no_descriptor()),
        }
    }
}

fn is_socket(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode).is_socket())
}

fn no_descriptor() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the socket belongs to another engine and has no descriptor")
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

impl From<Stream> for Socket {
    fn from(stream: Stream) -> Socket {
        match stream {
            Stream::Socket(socket) => socket.into(),
            Stream::Descriptor(stream) => Socket(Kind::Stream(stream)),
        }
    }
}

/// The standard library's types that own a descriptor.
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
from_std![std::net::UdpSocket, std::os::unix::net::UnixDatagram, io::PipeReader, io::PipeWriter, File];
from_std![std::process::ChildStdin, std::process::ChildStdout, std::process::ChildStderr];

/// A non-blocking, close-on-exec socket.
#[derive(Debug)]
pub(crate) struct SystemSocket(pub(crate) socket2::Socket, Origin);

/// What is known of a socket without asking the system.
#[derive(Debug)]
struct Origin(AtomicU8);

impl Origin {
    /// Any socket, of which there may be duplicates.
    const UNKNOWN: u8 = 0;
    /// A TCP socket that this crate has opened, and that nobody else has had a chance to duplicate.
    const SOLE_TCP: u8 = 1;
    /// A TCP socket of which there may be duplicates.
    const TCP: u8 = 2;

    fn new(origin: u8) -> Origin {
        Origin(AtomicU8::new(origin))
    }

    fn tcp_if(is_tcp: bool) -> Origin {
        Origin::new(if is_tcp { Origin::SOLE_TCP } else { Origin::UNKNOWN })
    }
}

impl From<socket2::Socket> for SystemSocket {
    fn from(socket: socket2::Socket) -> SystemSocket {
        SystemSocket(socket, Origin::new(Origin::UNKNOWN))
    }
}

impl SystemSocket {
    /// Listens on `address`. Replaces a stale file of a Unix socket.
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

    /// Creates a socket to [connect](SystemSocket::connect) to `address`, bound as the options say.
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

    /// Starts to connect to `address`. The socket becomes writable when the outcome is known.
    pub(crate) fn connect(&self, address: &Address) -> io::Result<()> {
        match self.0.connect(&address.to_socket()?.1) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            outcome => outcome,
        }
    }

    fn new(address: &Address) -> io::Result<SystemSocket> {
        let (domain, _) = address.to_socket()?;
        let protocol = matches!(address, Address::Tcp(_)).then_some(Protocol::TCP);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let socket = socket2::Socket::new(domain, Type::STREAM.nonblocking(), protocol)?;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let socket = {
            let socket = socket2::Socket::new(domain, Type::STREAM, protocol)?;
            socket.set_nonblocking(true)?;
            socket
        };
        let socket = SystemSocket(socket, Origin::tcp_if(protocol.is_some()));
        socket.send_without_delay();
        Ok(socket)
    }

    fn from_fd(fd: OwnedFd) -> io::Result<SystemSocket> {
        let socket = socket2::Socket::from(fd);
        socket.set_nonblocking(true)?;
        socket.set_cloexec(true)?;
        Ok(socket.into())
    }

    /// Finds out whether this is a TCP socket. Listeners pass that on to the connections that they accept.
    pub(crate) fn identify(&mut self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Ok(Some(rustix::net::ipproto::TCP)) = rustix::net::sockopt::socket_protocol(&self.0) {
            self.1 = Origin::new(Origin::TCP);
        }
    }

    /// Returns whether this is known to be a TCP socket.
    pub(crate) fn is_tcp(&self) -> bool {
        self.1.0.load(Relaxed) != Origin::UNKNOWN
    }

    /// Returns whether closing this socket certainly closes the connection, in this process.
    pub(crate) fn is_sole(&self) -> bool {
        self.1.0.load(Relaxed) == Origin::SOLE_TCP
    }

    /// Records that somebody is about to see the descriptor, and could duplicate it.
    pub(crate) fn expose(&self) {
        if self.is_sole() {
            self.1.0.store(Origin::TCP, Relaxed);
        }
    }

    pub(crate) fn send_without_delay(&self) {
        // Fails for Unix sockets, which have no such option.
        let _ = self.0.set_tcp_nodelay(true);
    }

    /// Accepts one connection. It is a TCP connection if the listener is known to be one.
    pub(crate) fn accepted_by(listener: BorrowedFd<'_>, is_tcp: bool) -> io::Result<SystemSocket> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            // TCP_NODELAY is inherited from the listener.
            use rustix::net::{SocketFlags, accept_with};
            let socket = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            Ok(SystemSocket(socket.into(), Origin::tcp_if(is_tcp)))
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let _ = is_tcp;
            let accepted = SystemSocket::accepted_with_address(listener)?.0;
            accepted.send_without_delay();
            Ok(accepted)
        }
    }

    /// Accepts one connection, with the address of its other side. Its options are those that the system gives it.
    pub(crate) fn accepted_with_address(listener: BorrowedFd<'_>) -> io::Result<(SystemSocket, Option<Address>)> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::net::{SocketFlags, acceptfrom_with};
            let (accepted, from) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            Ok((socket2::Socket::from(accepted).into(), from.as_ref().and_then(Address::from_any)))
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let (accepted, from) = socket2::SockRef::from(&listener).accept()?;
            Ok((SystemSocket::from_fd(accepted.into())?, Some(Address::from_socket(&from))))
        }
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, buffer, rustix::net::RecvFlags::empty())?.0)
    }

    pub(crate) fn receive_into(&self, spaces: &mut [Space<'_>]) -> io::Result<usize> {
        stream::receive_into(self.as_fd(), spaces, rustix::net::RecvFlags::empty())
    }

    /// Returns whether there are bytes to receive.
    pub(crate) fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(&self.0).is_ok_and(|bytes| bytes > 0)
    }

    /// Returns how many sent bytes the other side has not read yet, or `None` if the system cannot tell.
    ///
    /// For TCP these are the bytes that the peer has not acknowledged. For Unix sockets on Linux it is the memory that sent
    /// messages occupy until the peer has read all of them: not a number of bytes, but it falls as the peer reads. On macOS and
    /// the BSDs, bytes sent on a Unix socket belong to the receiver at once, so the number is always 0.
    pub(crate) fn undelivered(&self) -> Option<u64> {
        crate::send_queue::length(self.as_fd())
    }

    pub(crate) fn finish(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)
    }

    /// Takes the socket's pending error.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }
}

impl Sink for SystemSocket {
    fn send_one(&self, bytes: &[u8]) -> io::Result<usize> {
        const FLAGS: rustix::net::SendFlags = rustix::net::SendFlags::from_bits_retain(SEND_FLAGS as u32);
        Ok(rustix::net::send(&self.0, bytes, FLAGS)?)
    }

    fn send(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(slices, SEND_FLAGS)
    }

    fn send_splice(&self, pipe: &crate::Splice, most: usize) -> io::Result<usize> {
        pipe.send_to(self.as_fd(), most)
    }

    /// Does not copy the bytes through user space where the system can do that.
    fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        match stream::send_file_in_kernel(self.as_fd(), file, offset, count) {
            Some(outcome) => outcome,
            None => self.send_file_by_copying(file, offset, count),
        }
    }
}

impl AsFd for SystemSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
