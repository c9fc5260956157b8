//! What may be settled about datagram sockets.

use std::net::{IpAddr, Ipv4Addr};

use crate::Address;

/// How to make a datagram socket.
///
/// ```
/// use pelton_os::DatagramOptions;
///
/// // One of several that hear what is sent to a multicast group.
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
    /// Where a connected socket sends from. By default the system picks an address of the internet, and a Unix socket has no
    /// name, so that it cannot be answered.
    pub fn bind(mut self, address: Address) -> Self {
        self.bind = Some(address);
        self
    }

    /// Several sockets may have the address (`SO_REUSEADDR`), as those that listen to one multicast group do. Off by default:
    /// it would let any other program take what is meant for this one.
    pub fn reuse_address(mut self, reuse: bool) -> Self {
        self.reuse_address = reuse;
        self
    }

    /// Several sockets may share the port (`SO_REUSEPORT`), and the kernel spreads senders over them.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// An IPv6 address is for IPv6 alone. By default `[::]` takes IPv4 too.
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = only;
        self
    }

    /// It may send to broadcast addresses.
    pub fn broadcast(mut self, broadcast: bool) -> Self {
        self.broadcast = broadcast;
        self
    }

    /// The permissions of a Unix socket's file, such as `0o600`; by default what the process's umask leaves.
    pub fn permissions(mut self, mode: u32) -> Self {
        self.permissions = Some(mode);
        self
    }
}

/// Something to be changed about a datagram socket that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DatagramSetting {
    /// Receive what is sent to this group, on this interface.
    Join(IpAddr, MulticastInterface),
    /// Do not any more.
    Leave(IpAddr, MulticastInterface),
    /// What is sent to groups goes out there.
    MulticastInterface(MulticastInterface),
    /// What is sent to groups is heard on this machine too, which it is by default.
    MulticastLoop(bool),
    /// How many routers pass on what is sent to groups. By default none does: 1.
    MulticastTtl(u32),
    /// It may send to broadcast addresses.
    Broadcast(bool),
}

/// An interface of this machine that multicast comes in by or goes out by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MulticastInterface {
    /// The one that the system picks.
    #[default]
    Any,
    /// The one with this IPv4 address.
    Address(Ipv4Addr),
    /// The one with this number, as `ip link` and `if_nametoindex` tell it.
    Index(u32),
}
