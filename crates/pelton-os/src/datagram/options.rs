//! Options of datagram sockets.

use std::net::{IpAddr, Ipv4Addr};

use crate::Address;

/// Options for opening a datagram socket.
///
/// ```
/// use pelton_os::DatagramOptions;
///
/// // One of several sockets that receive a multicast group.
/// let options = DatagramOptions::default().reuse_address(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DatagramOptions {
    pub(crate) bind: Option<Address>,
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
    pub(crate) only_v6: bool,
    pub(crate) broadcast: bool,
    pub(crate) permissions: Option<u32>,
}

impl DatagramOptions {
    /// Sets the address that a connected socket sends from. By default the system picks an IP address, and a Unix socket has no
    /// name, so that it cannot be answered.
    pub fn bind(mut self, address: Address) -> Self {
        self.bind = Some(address);
        self
    }

    /// Lets several sockets use the address (`SO_REUSEADDR`), for example to receive the same multicast group. Off by default,
    /// because it would let other programs take this one's datagrams.
    pub fn reuse_address(mut self, reuse: bool) -> Self {
        self.reuse_address = reuse;
        self
    }

    /// Lets several sockets share the port (`SO_REUSEPORT`). The kernel distributes senders among them.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Restricts an IPv6 address to IPv6. By default `[::]` also receives IPv4.
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = only;
        self
    }

    /// Allows sending to broadcast addresses.
    pub fn broadcast(mut self, broadcast: bool) -> Self {
        self.broadcast = broadcast;
        self
    }

    /// Sets the permissions of a Unix socket's file, such as `0o600`. By default the umask decides.
    pub fn permissions(mut self, mode: u32) -> Self {
        self.permissions = Some(mode);
        self
    }
}

/// A change to an open datagram socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DatagramSetting {
    /// Receive what is sent to this group, on this interface.
    Join(IpAddr, MulticastInterface),
    /// Stop receiving what is sent to this group.
    Leave(IpAddr, MulticastInterface),
    /// Send multicast through this interface.
    MulticastInterface(MulticastInterface),
    /// Whether multicast is also delivered to this machine, as it is by default.
    MulticastLoop(bool),
    /// How many routers forward multicast, plus one. By default none does: 1.
    MulticastTtl(u32),
    /// Whether sending to broadcast addresses is allowed.
    Broadcast(bool),
}

/// A network interface for multicast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MulticastInterface {
    /// The interface that the system picks.
    #[default]
    Any,
    /// The interface with this IPv4 address.
    Address(Ipv4Addr),
    /// The interface with this index, as in `ip link` and `if_nametoindex`.
    Index(u32),
}
