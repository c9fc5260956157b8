//! What a connection writes during one of its callbacks, put together and handed over at once.

use bytes::Bytes;
use pelton::Io;

use crate::server::Shared;

/// Bodies up to this are copied behind their heads; it costs less than to keep account of one more piece.
const COPIED: usize = 4 * 1024;

/// What is gathered is handed over when it is more than this, in pieces of at most that: as much as a block of the outbox has.
const GATHERED: usize = 16 * 1024;

/// When so much has been written in one callback, others get their turn.
const PER_TURN: usize = 512 * 1024;

/// Gathers what is written.
pub(super) struct Out {
    buffer: Vec<u8>,
    /// Bytes that were handed over.
    sent: usize,
    /// When so much was handed over, it is looked whether the client takes it.
    look_at: usize,
}

/// Whether so much waits to be sent that more should wait.
pub(super) fn is_full(io: &mut Io<'_>) -> bool {
    let high = io.water_marks().high as u64;
    io.queued() as u64 + io.queued_in_files() > high
}

/// Whether more may be written now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Yes,
    /// Not before the connection has drained.
    Full,
    /// Not in this turn.
    NextTurn,
}

impl Out {
    pub(super) fn new(shared: &Shared) -> Out {
        Out { buffer: shared.take_out(), sent: 0, look_at: 4 * GATHERED }
    }

    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Hands over what has been gathered.
    pub(super) fn send(&mut self, io: &mut Io<'_>) {
        if self.buffer.is_empty() {
            return;
        }
        self.sent += self.buffer.len();
        let outcome = if self.buffer.len() <= GATHERED {
            io.send_block(&mut self.buffer)
        } else {
            self.buffer.chunks(GATHERED).try_for_each(|piece| io.send(piece))
        };
        self.buffer.clear();
        // It is refused only if the connection is over, which it will be told, or if the reactor allows less to wait than a few
        // heads, which is to be seen.
        if let Err(error) = outcome {
            tracing::debug!(%error, "a response is not sent");
            io.close();
        }
    }

    /// Writes bytes of a body, which are far fewer than what may wait.
    #[inline]
    pub(super) fn write(&mut self, io: &mut Io<'_>, bytes: Bytes) {
        if bytes.len() <= COPIED {
            self.buffer.extend_from_slice(&bytes);
            return;
        }
        self.send(io);
        self.sent += bytes.len();
        if let Err(error) = io.send_bytes(bytes) {
            tracing::debug!(%error, "a response is not sent");
            io.close();
        }
    }

    /// Something was handed over past this.
    pub(super) fn count(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Whether more may be written. Most of the time this is two additions.
    #[inline]
    pub(super) fn room(&mut self, io: &mut Io<'_>) -> Room {
        if self.sent.saturating_add(self.buffer.len()) < self.look_at {
            return Room::Yes;
        }
        self.send(io);
        io.flush();
        if is_full(io) {
            Room::Full
        } else if self.sent > PER_TURN {
            Room::NextTurn
        } else {
            self.look_at = self.sent + 4 * GATHERED;
            Room::Yes
        }
    }
}
