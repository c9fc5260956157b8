//! Datagrams, over UDP and Unix sockets.
//!
//! This file is what one is when it comes in. Below it, `outbox.rs` is where those that go out wait, `options.rs` what may be
//! settled about a socket, `socket.rs` how one is made, and `batch.rs` how many are received and sent at once.

mod batch;
mod options;
mod outbox;
mod socket;

use crate::{Address, Chunk};

pub(crate) use batch::{Arrived, BATCH};
pub use options::{DatagramOptions, DatagramSetting, MulticastInterface};
pub use outbox::DatagramOutbox;

/// A datagram that has come in.
///
/// Its bytes are on loan from the engine, in a buffer that could hold the largest of all datagrams: whoever keeps one for long
/// asks for them to be [compacted](Chunk::compacted).
#[derive(Debug)]
pub struct Datagram {
    /// What it says. There may be nothing in it.
    pub bytes: Chunk,
    /// Who sent it. A Unix socket without a name is [`Address::Unnamed`], and cannot be answered.
    pub from: Address,
}
