//! Gathers the output of one callback, to be handed to the reactor at once.

use bytes::Bytes;
use pelton::Io;

use crate::server::Shared;

/// Bodies up to this many bytes are copied behind their heads. That costs less than queueing another piece.
const COPIED: usize = 4 * 1024;

/// Output is handed over in pieces of at most this many bytes, the size of a block in the outbox.
const GATHERED: usize = 16 * 1024;

/// After this many bytes in one callback, the connection yields to others.
const PER_TURN: usize = 512 * 1024;

/// A buffer for output.
pub(super) struct Out {
    buffer: Vec<u8>,
    /// Bytes handed to the reactor so far.
    sent: usize,
    /// When `sent` reaches this, check whether the client keeps up.
    look_at: usize,
}

/// Whether the output queue is above the high mark.
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

    /// Hands the buffered output to the reactor.
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
        // This fails if the connection has ended, which `closed` reports, or if the reactor's queue limit is smaller than a few
        // heads.
        if let Err(error) = outcome {
            tracing::debug!(%error, "response not sent");
            io.close();
        }
    }

    /// Writes a piece of a body. It is much smaller than the queue limit.
    #[inline]
    pub(super) fn write(&mut self, io: &mut Io<'_>, bytes: Bytes) {
        if bytes.len() <= COPIED {
            self.buffer.extend_from_slice(&bytes);
            return;
        }
        self.send(io);
        self.sent += bytes.len();
        if let Err(error) = io.send_bytes(bytes) {
            tracing::debug!(%error, "response not sent");
            io.close();
        }
    }

    /// Counts bytes that were handed over without this buffer.
    pub(super) fn count(&mut self, bytes: u64) {
        self.sent = self.sent.saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Whether more may be written. Usually this costs two additions.
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
