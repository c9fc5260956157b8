//! Sources: everything that the engine reports events about.
//!
//! [`connection`], [`listener`] and [`datagram`] are sockets that the reactor reads and writes. [`watch`] reports the
//! readiness of descriptors that the caller owns. [`signals`] delivers Unix signals on the loop.

pub(crate) mod connection;
pub(crate) mod datagram;
pub(crate) mod listener;
pub(crate) mod signals;
pub(crate) mod watch;
