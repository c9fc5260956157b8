//! Whether the other side reads, although nothing is written.
//!
//! The system buffers much of what is sent. At a few kilobytes a second a peer takes minutes to make room for more, and until
//! then the connection looks stalled from here. Before a time limit is reached, the engine is therefore asked how much the
//! other side has yet to take. A number that has fallen is progress. While there is traffic, nothing is asked.

use std::time::Duration;

use pelton_os::{Time, Token};

use super::{ConnectionState, Io, Limit};
use crate::Reactor;

/// How much the other side had yet to take, and when that was. Dropped when something is written, so a later reading can be
/// compared with it.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) at: Time,
    undelivered: u64,
}

impl ConnectionState {
    pub(super) fn reading(&self) -> Option<Reading> {
        self.extra.as_ref()?.reading
    }

    /// Something was written: earlier readings say nothing any more.
    #[inline]
    pub(super) fn forget_reading(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.reading = None;
        }
    }
}

impl Io<'_> {
    /// Whether the other side is still taking what was sent to it: it has read something within this time, or may have. Ask
    /// again after that time; a peer that reads nothing is found out the second time at the latest. As long as something waits
    /// to be sent, the [write-stall limit](Limit::WriteStall) decides.
    ///
    /// This asks the system, so it is for when a time limit of a protocol has been reached, not for every message.
    pub fn is_delivering(&mut self, within: Duration) -> bool {
        let limited = self.limit(Limit::WriteStall).is_some();
        let busy = self.reactor.stream_mut(self.id.0).is_some_and(|stream| stream.busy);
        (busy && limited) || self.reactor.peer_reads(self.id.0, within)
    }
}

impl Reactor {
    /// Whether the other side has taken something within this time of what it has yet to take. If it was not looked at for so
    /// long, nobody knows yet.
    pub(super) fn peer_reads(&mut self, token: Token, within: Duration) -> bool {
        let undelivered = self.engine.undelivered(token).unwrap_or(0);
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return false };
        let latest = Reading { at: now, undelivered };
        match stream.reading() {
            _ if undelivered == 0 => false,
            Some(before) if undelivered >= before.undelivered => before.at + within > now,
            Some(_) | None => {
                stream.extra().reading = Some(latest);
                true
            }
        }
    }

    /// Has it known how much the other side had yet to take when it began to stall.
    pub(super) fn look_at_stall(&mut self, token: Token, since: Time) {
        let undelivered = self.engine.undelivered(token).unwrap_or(0);
        // Where the engine cannot tell, nothing is lost: the limit runs from the last write.
        let at = if undelivered > 0 { self.now } else { since };
        if let Some(stream) = self.stream_mut(token) {
            stream.extra().reading = Some(Reading { at, undelivered });
        }
    }

    /// A limit was reached and the connection goes on: it has as long again.
    pub(super) fn restart_reading(&mut self, token: Token) {
        let now = self.now;
        if let Some(reading) = self.stream_mut(token).and_then(|stream| stream.extra().reading.as_mut()) {
            reading.at = now;
        }
    }
}
