//! Datagram sockets: creating, binding, connecting, changing.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use socket2::{Domain, Protocol, Type};

use super::{DatagramOptions, DatagramSetting, MulticastInterface};
use crate::endpoint::Endpoint;
use crate::socket::SystemSocket;
use crate::{Address, SocketFile};

impl SystemSocket {
    /// Opens a socket that receives what is sent to `address`. Replaces a stale file of a Unix socket. [`Address::Unnamed`]
    /// stands for a Unix socket that only sends.
    pub(crate) fn bound_datagrams(address: &Address, options: &DatagramOptions) -> io::Result<SystemSocket> {
        let socket = SystemSocket::new_datagrams(address)?;
        socket.prepare(address, options)?;
        socket.bind_datagrams(address, options)?;
        Ok(socket)
    }

    /// Opens a socket that sends to `address` and receives only from there.
    pub(crate) fn connected_datagrams(address: &Address, options: &DatagramOptions) -> io::Result<SystemSocket> {
        let socket = SystemSocket::new_datagrams(address)?;
        socket.prepare(address, options)?;
        if let Some(from) = &options.bind {
            socket.bind_datagrams(from, options)?;
        }
        let bound = match &options.bind {
            Some(Address::Unix(path)) => SocketFile::at(path).ok(),
            _ => None,
        };
        // This sends nothing, so it does not block.
        let connected = socket.0.connect(&address.to_socket()?.1);
        if let (Err(_), Some(file)) = (&connected, bound) {
            // This call has just created the file, and nobody needs it.
            let _ = file.remove();
        }
        connected.map(|()| socket)
    }

    fn new_datagrams(address: &Address) -> io::Result<SystemSocket> {
        let (domain, protocol) = match address {
            Address::Unnamed => (Domain::UNIX, None),
            Address::Tcp(address) => (Domain::for_address(*address), Some(Protocol::UDP)),
            address => (address.to_socket()?.0, None),
        };
        let socket = socket2::Socket::new(domain, Type::DGRAM, protocol)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    fn prepare(&self, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        let Address::Tcp(address) = address else { return Ok(()) };
        if options.reuse_address {
            self.0.set_reuse_address(true)?;
        }
        if options.reuse_port {
            self.0.set_reuse_port(true)?;
        }
        if address.is_ipv6() {
            self.0.set_only_v6(options.only_v6)?;
        }
        if options.broadcast {
            self.0.set_broadcast(true)?;
        }
        Ok(())
    }

    fn bind_datagrams(&self, address: &Address, options: &DatagramOptions) -> io::Result<()> {
        match address {
            Address::Unnamed => Ok(()),
            address => self.bind(address, options.permissions),
        }
    }
}

impl Endpoint {
    /// Changes a setting of an open socket.
    pub(crate) fn set_datagrams(&self, setting: DatagramSetting) -> io::Result<()> {
        self.with_socket(|socket| set(socket, setting))
    }
}

fn set(socket: &socket2::Socket, setting: DatagramSetting) -> io::Result<()> {
    let v6 = socket.local_addr()?.is_ipv6();
    match setting {
        DatagramSetting::Join(IpAddr::V6(group), interface) => socket.join_multicast_v6(&group, interface.number()?),
        DatagramSetting::Leave(IpAddr::V6(group), interface) => socket.leave_multicast_v6(&group, interface.number()?),
        DatagramSetting::Join(IpAddr::V4(group), MulticastInterface::Index(index)) => {
            join_by_index(socket, &group, index)
        }
        DatagramSetting::Leave(IpAddr::V4(group), MulticastInterface::Index(index)) => {
            leave_by_index(socket, &group, index)
        }
        DatagramSetting::Join(IpAddr::V4(group), interface) => socket.join_multicast_v4(&group, &interface.address()?),
        DatagramSetting::Leave(IpAddr::V4(group), interface) => {
            socket.leave_multicast_v4(&group, &interface.address()?)
        }
        DatagramSetting::MulticastInterface(interface) if v6 => socket.set_multicast_if_v6(interface.number()?),
        DatagramSetting::MulticastInterface(interface) => socket.set_multicast_if_v4(&interface.address()?),
        DatagramSetting::MulticastLoop(on) if v6 => socket.set_multicast_loop_v6(on),
        DatagramSetting::MulticastLoop(on) => socket.set_multicast_loop_v4(on),
        DatagramSetting::MulticastTtl(hops) if v6 => socket.set_multicast_hops_v6(hops),
        DatagramSetting::MulticastTtl(hops) => socket.set_multicast_ttl_v4(hops),
        DatagramSetting::Broadcast(on) => socket.set_broadcast(on),
    }
}

impl MulticastInterface {
    /// Returns the interface as IPv6 identifies it: 0 for any.
    fn number(self) -> io::Result<u32> {
        match self {
            MulticastInterface::Any => Ok(0),
            MulticastInterface::Index(index) => Ok(index),
            MulticastInterface::Address(_) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "IPv6 identifies an interface by its index"))
            }
        }
    }

    /// Returns the interface as IPv4 identifies it.
    fn address(self) -> io::Result<Ipv4Addr> {
        match self {
            MulticastInterface::Any => Ok(Ipv4Addr::UNSPECIFIED),
            MulticastInterface::Address(address) => Ok(address),
            MulticastInterface::Index(_) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "IPv4 identifies the interface to send through by its address",
            )),
        }
    }
}

#[cfg(not(any(target_os = "netbsd", target_os = "openbsd")))]
fn join_by_index(socket: &socket2::Socket, group: &Ipv4Addr, index: u32) -> io::Result<()> {
    socket.join_multicast_v4_n(group, &socket2::InterfaceIndexOrAddress::Index(index))
}

#[cfg(not(any(target_os = "netbsd", target_os = "openbsd")))]
fn leave_by_index(socket: &socket2::Socket, group: &Ipv4Addr, index: u32) -> io::Result<()> {
    socket.leave_multicast_v4_n(group, &socket2::InterfaceIndexOrAddress::Index(index))
}

#[cfg(any(target_os = "netbsd", target_os = "openbsd"))]
fn join_by_index(_: &socket2::Socket, _: &Ipv4Addr, _: u32) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system identifies an IPv4 interface by its address"))
}

#[cfg(any(target_os = "netbsd", target_os = "openbsd"))]
use join_by_index as leave_by_index;
