//! Detects whether the peer reads while nothing can be written.
//!
//! The system buffers much of the sent data. A peer that reads a few kilobytes per second takes minutes to make room
//! for more. Until then the connection looks stalled from here. So before a time limit is reached, the engine is asked
//! how much data the peer has not taken yet. If the number has fallen, the peer makes progress. The engine is not asked
//! while there is traffic.

use std::time::Duration;

use pelton_os::{Time, Token};

use super::{ConnectionState, Io, Limit};
use crate::Reactor;

/// A measurement of undelivered data. It is dropped when something is written because only measurements without a write
/// in between can be compared.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Time,
    undelivered: u64,
}

impl ConnectionState {
    pub(super) fn sample(&self) -> Option<Sample> {
        self.extra.as_ref()?.sample
    }

    /// Drops the measurement after a write, which makes it incomparable.
    #[inline]
    pub(super) fn forget_sample(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.sample = None;
        }
    }
}

impl Io<'_> {
    /// Returns whether the peer is still taking sent data: it has read something within this time, or may have. Call it
    /// again after that time: at the latest, the second call detects a peer that reads nothing. While data is queued,
    /// the [write-stall limit](Limit::WriteStall) decides.
    ///
    /// This makes a system call, so use it when a time limit of a protocol was reached, not for every message.
    pub fn is_delivering(&mut self, within: Duration) -> bool {
        let limited = self.limit(Limit::WriteStall).is_some();
        let busy = self.reactor.stream_mut(self.id.0).is_some_and(|stream| stream.busy);
        (busy && limited) || self.reactor.peer_reads(self.id.0, within)
    }
}

impl Reactor {
    /// Returns whether the peer has taken some of the undelivered data within this time. Returns `false` if nothing is
    /// undelivered. If there is no earlier measurement, it takes one and returns `true`.
    pub(super) fn peer_reads(&mut self, token: Token, within: Duration) -> bool {
        let undelivered = self.engine.undelivered(token).unwrap_or(0);
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return false };
        let latest = Sample { at: now, undelivered };
        match stream.sample() {
            _ if undelivered == 0 => false,
            Some(before) if undelivered >= before.undelivered => before.at + within > now,
            Some(_) | None => {
                stream.extra().sample = Some(latest);
                true
            }
        }
    }

    /// Measures the undelivered data of a connection that begins to stall.
    pub(super) fn check_stall(&mut self, token: Token, since: Time) {
        let undelivered = self.engine.undelivered(token).unwrap_or(0);
        // If the engine cannot tell, the limit runs from the last write.
        let at = if undelivered > 0 { self.now } else { since };
        if let Some(stream) = self.stream_mut(token) {
            stream.extra().sample = Some(Sample { at, undelivered });
        }
    }

    /// Restarts the limit of a connection that stays open after it was reached.
    pub(super) fn restart_sample(&mut self, token: Token) {
        let now = self.now;
        if let Some(sample) = self.stream_mut(token).and_then(|stream| stream.extra().sample.as_mut()) {
            sample.at = now;
        }
    }
}
