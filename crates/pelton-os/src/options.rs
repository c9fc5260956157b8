//! Options of sockets.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::Address;

/// The default backlog. The kernel reduces it to its own limit.
const BACKLOG: i32 = 4096;

/// Options for listening.
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
    /// Sets how many connections the kernel holds before they are accepted. The default is 4,096, or the kernel's own limit if
    /// that is lower.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = i32::try_from(connections).unwrap_or(i32::MAX);
        self
    }

    /// Lets several listeners share the port (`SO_REUSEPORT`). The kernel distributes connections among them.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Restricts an IPv6 address to IPv6. By default `[::]` also accepts IPv4.
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = only;
        self
    }

    /// Sets the permissions of a Unix socket's file, such as `0o600`. By default the umask decides.
    pub fn permissions(mut self, mode: u32) -> Self {
        self.permissions = Some(mode);
        self
    }
}

/// Options for connecting.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ConnectOptions {
    pub(crate) bind: Option<Address>,
}

impl ConnectOptions {
    /// Sets the local address to connect from, with port 0 for any port.
    pub fn bind(mut self, address: Address) -> Self {
        self.bind = Some(address);
        self
    }

    /// Returns the local address to connect from, if one was set.
    pub fn bind_address(&self) -> Option<&Address> {
        self.bind.as_ref()
    }
}

/// The options of an open socket.
#[derive(Debug)]
pub struct SocketOptions<'a>(SockRef<'a>);

impl<'a> SocketOptions<'a> {
    /// Returns the options of this socket.
    pub fn of(socket: &'a BorrowedFd<'_>) -> SocketOptions<'a> {
        SocketOptions(SockRef::from(socket))
    }

    /// Returns whether small pieces are sent at once (`TCP_NODELAY`). The reactor's sockets do that by default.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.0.tcp_nodelay()
    }

    /// Sends small pieces at once, or holds them back until earlier ones are acknowledged.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.set_tcp_nodelay(nodelay)
    }

    /// Returns whether the kernel probes silent peers.
    pub fn keepalive(&self) -> io::Result<bool> {
        self.0.keepalive()
    }

    /// Lets the kernel probe a peer that has been silent for this long. `None` turns probing off.
    pub fn set_keepalive(&self, after: Option<Duration>) -> io::Result<()> {
        match after {
            None => self.0.set_keepalive(false),
            Some(after) => self.0.set_tcp_keepalive(&TcpKeepalive::new().with_time(after)),
        }
    }

    /// Returns the size of the kernel's send buffer.
    pub fn send_buffer(&self) -> io::Result<usize> {
        self.0.send_buffer_size()
    }

    /// Sets the approximate size of the kernel's send buffer, in bytes.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        self.0.set_send_buffer_size(bytes)
    }

    /// Returns the size of the kernel's receive buffer.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        self.0.recv_buffer_size()
    }

    /// Sets the approximate size of the kernel's receive buffer, in bytes.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.0.set_recv_buffer_size(bytes)
    }

    /// Limits how long the kernel delivers queued bytes after the socket is closed. After that it resets the connection, with
    /// zero at once. By default it delivers them in the background.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.0.set_linger(linger)
    }
}
