//! Sources: everything that the engine reports events about.
//!
//! [`connection`], [`listener`] and [`datagram`] are sockets that the reactor reads and writes. [`watch`] reports the
//! readiness of descriptors that the caller owns, [`path_watch`] changes of files and directories, [`process`] the exit of processes. [`signals`] delivers Unix signals on the loop.

pub(crate) mod connection;
pub(crate) mod datagram;
pub(crate) mod listener;
pub(crate) mod path_watch;
pub mod process;
pub(crate) mod short_queue;
pub(crate) mod signals;
pub(crate) mod transport;
pub(crate) mod watch;
