//! Datagrams, over UDP and Unix sockets.
//!
//! This file has the datagram that was received. `outbox.rs` queues outgoing datagrams, `options.rs` has a socket's options,
//! `socket.rs` creates sockets, and `batch.rs` receives and sends several datagrams per system call.

mod batch;
mod options;
mod outbox;
mod socket;

use crate::{Address, Chunk};

pub(crate) use batch::{Arrived, BATCH};
pub use options::{DatagramOptions, DatagramSetting, MulticastInterface};
pub use outbox::DatagramOutbox;

/// A received datagram.
///
/// Its bytes are on loan from the engine, in a buffer that could hold the largest datagram. To keep one for a long time,
/// [compact](Chunk::compacted) it.
#[derive(Debug)]
pub struct Datagram {
    /// The contents, which may be empty.
    pub bytes: Chunk,
    /// The sender. A Unix socket without a name is [`Address::Unnamed`] and cannot be answered.
    pub from: Address,
}
