//! How large the records are that this side sends.

use std::time::Duration;

use pelton::Time;

use crate::session::LARGEST_PLAINTEXT;

/// The plaintext of the first records of a burst. The peer can decrypt a record when all of it has arrived. The first
/// flight of a TCP connection is about 14 KiB, so a record of 16 KiB would need a second round trip before its first byte is
/// readable.
const SMALL: usize = 4 * 1024 - 64;

/// Bytes that are sent in small records. After these, the congestion window has grown.
const SMALL_UNTIL: usize = 32 * 1024;

/// After this time without sending, the congestion window counts as small again.
const QUIET: Duration = Duration::from_secs(1);

/// Sizes the records of one connection.
#[derive(Default)]
pub(crate) struct Sizing {
    /// Bytes in the current burst.
    sent: usize,
    last: Option<Time>,
}

impl Sizing {
    /// Notes that something is sent now.
    pub(crate) fn at(&mut self, now: Time) {
        if self.last.is_some_and(|last| now - last > QUIET) {
            self.sent = 0;
        }
        self.last = Some(now);
    }

    /// Returns the largest plaintext of the next record.
    pub(crate) fn largest(&self) -> usize {
        if self.sent < SMALL_UNTIL { SMALL } else { LARGEST_PLAINTEXT }
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes);
    }
}
