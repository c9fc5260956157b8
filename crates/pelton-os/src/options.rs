//! What may be settled about sockets.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::Address;

/// Connections that the kernel holds for us before they are accepted. The kernel cuts this down to its own limit.
const BACKLOG: i32 = 4096;

/// How to listen.
///
/// ```
/// use pelton_os::ListenOptions;
///
/// let options = ListenOptions::default().permissions(0o600).backlog(16);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ListenOptions {
    pub(crate) backlog: i32,
    pub(crate) reuse_port: bool,
    pub(crate) only_v6: bool,
    pub(crate) permissions: Option<u32>,
}

impl Default for ListenOptions {
    fn default() -> ListenOptions {
        ListenOptions { backlog: BACKLOG, reuse_port: false, only_v6: false, permissions: None }
    }
}

impl ListenOptions {
    /// How many connections the kernel holds before they are accepted; by default 4,096, or the kernel's own limit if that
    /// is less.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = i32::try_from(connections).unwrap_or(i32::MAX);
        self
    }

    /// Several listeners may share the port (`SO_REUSEPORT`), and the kernel spreads connections over them.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// An IPv6 address is for IPv6 alone. By default `[::]` takes IPv4 too.
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = only;
        self
    }

    /// The permissions of a Unix socket's file, such as `0o600`; by default what the process's umask leaves.
    pub fn permissions(mut self, mode: u32) -> Self {
        self.permissions = Some(mode);
        self
    }
}

/// How to connect.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ConnectOptions {
    pub(crate) bind: Option<Address>,
}

impl ConnectOptions {
    /// Where to connect from: an address of this machine, with port 0 for any port.
    pub fn bind(mut self, address: Address) -> Self {
        self.bind = Some(address);
        self
    }

    /// Where it is to be connected from, if that matters.
    pub fn bind_address(&self) -> Option<&Address> {
        self.bind.as_ref()
    }
}

/// The system's options of a socket that is in use.
#[derive(Debug)]
pub struct SocketOptions<'a>(SockRef<'a>);

impl<'a> SocketOptions<'a> {
    /// The options of this socket.
    pub fn of(socket: &'a BorrowedFd<'_>) -> SocketOptions<'a> {
        SocketOptions(SockRef::from(socket))
    }

    /// Whether small pieces are sent at once (`TCP_NODELAY`), which they are by default.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.tcp_nodelay()
    }

    /// Has small pieces sent at once, or held back until what was sent before is acknowledged.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.set_tcp_nodelay(nodelay)
    }

    /// Whether the kernel asks a silent peer whether it is still there.
    pub fn keepalive(&self) -> io::Result<bool> {
        self.0.keepalive()
    }

    /// Has the kernel ask a peer that has been silent for so long whether it is still there; never with `None`.
    pub fn set_keepalive(&self, after: Option<Duration>) -> io::Result<()> {
        match after {
            None => self.0.set_keepalive(false),
            Some(after) => self.0.set_tcp_keepalive(&TcpKeepalive::new().with_time(after)),
        }
    }

    /// How much the kernel takes in to be sent.
    pub fn send_buffer(&self) -> io::Result<usize> {
        self.0.send_buffer_size()
    }

    /// Has the kernel take in about so many bytes to be sent.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        self.0.set_send_buffer_size(bytes)
    }

    /// How much the kernel holds before it is received.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        self.0.recv_buffer_size()
    }

    /// Has the kernel hold about so many bytes before they are received.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.0.set_recv_buffer_size(bytes)
    }

    /// Has closing the socket reset the connection after so long, at once with zero; by default it is closed in the
    /// background.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.0.set_linger(linger)
    }
}
