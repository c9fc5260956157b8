//! Sockets without a transport: `sock_recv` and similar methods, datagrams, and what transports share with them.

pub(crate) mod addresses;
pub(crate) mod datagrams;
pub(crate) mod guards;
pub(crate) mod operations;
pub(crate) mod syscalls;
