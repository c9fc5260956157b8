//! Addresses: looking up names, and the packed form that Ruby's `Socket.unpack_sockaddr_in` reads.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd};

use pelton::Address;

use crate::lock;

/// What an address is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// An empty host means all addresses.
    Bind,
    Connect,
}

/// Looks up a host, without the lock of the interpreter. The first address is taken.
pub(crate) fn resolve(host: &str, port: u16, used: Use) -> Result<SocketAddr, String> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    if host.is_empty() && used == Use::Bind {
        return Ok(SocketAddr::from(([0, 0, 0, 0], port)));
    }
    if host.contains('\0') {
        return Err("Name or service not known".to_owned());
    }
    let look_up = || (host, port).to_socket_addrs().map(|mut found| found.next());
    // If an interrupt is pending, the look-up is not made without the lock. Ruby handles the interrupt when this returns.
    let found = lock::without(None, look_up).unwrap_or_else(look_up);
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err("Name or service not known".to_owned()),
        Err(error) => {
            let text = error.to_string();
            Err(text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned())
        }
    }
}

/// Returns the address of a Unix socket. A leading NUL is an abstract name.
pub(crate) fn unix(path: &str) -> Address {
    match path.strip_prefix('\0') {
        Some(name) => Address::Abstract(name.as_bytes().to_vec()),
        None => Address::Unix(path.into()),
    }
}

/// Which end of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Local,
    Peer,
}

/// Returns the packed address of one end of a socket.
pub(crate) fn of_socket(socket: BorrowedFd<'_>, end: End) -> Option<Vec<u8>> {
    let mut packed = [0_u8; size_of::<libc::sockaddr_storage>()];
    let mut len = packed.len() as libc::socklen_t;
    let ask = match end {
        End::Local => libc::getsockname,
        End::Peer => libc::getpeername,
    };
    // SAFETY: the descriptor is open, and the system writes at most `len` bytes to the buffer.
    let status = unsafe { ask(socket.as_raw_fd(), packed.as_mut_ptr().cast(), &raw mut len) };
    (status == 0).then(|| packed[..(len as usize).min(packed.len())].to_vec())
}

/// Packs an address as the system does.
pub(crate) fn pack(address: &Address) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    fn bytes_of<T>(value: &T) -> Vec<u8> {
        // SAFETY: the structures of the system have no padding that matters, and were zeroed first.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
    }
    match address {
        Address::Tcp(SocketAddr::V4(v4)) => {
            // SAFETY: all zeros is a valid value.
            let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            raw.sin_family = libc::AF_INET as _;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            Some(bytes_of(&raw))
        }
        Address::Tcp(SocketAddr::V6(v6)) => {
            // SAFETY: all zeros is a valid value.
            let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as _;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_flowinfo = v6.flowinfo();
            raw.sin6_scope_id = v6.scope_id();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            Some(bytes_of(&raw))
        }
        Address::Unix(path) => {
            // SAFETY: all zeros is a valid value.
            let mut raw: libc::sockaddr_un = unsafe { std::mem::zeroed() };
            raw.sun_family = libc::AF_UNIX as _;
            for (to, from) in raw.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
                *to = *from as _;
            }
            Some(bytes_of(&raw))
        }
        _ => None,
    }
}
