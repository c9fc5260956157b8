//! The time limits of connections.
//!
//! There is no scan, and I/O does no timer operations. A connection stores the time of its last activity and has at
//! most one timer, for the nearest of its limits. When the timer fires, it is set again if there was activity
//! meanwhile, or if the peer has read some of the sent data, which only the system knows (`progress.rs`).

use std::fmt;
use std::time::Duration;

use pelton_os::{Time, Token};

use super::stream::Stage;
use super::{ConnectionState, Io, Reason};
use crate::Reactor;
use crate::sources::transport::Pauses;

/// The system is first asked how much data is undelivered when the write-stall limit divided by this has passed. The
/// full limit starts then: a peer that reads is never cut off too early, and one that does not is cut off later by this
/// part.
const STALL_CHECK_DIVISOR: u32 = 8;

/// The kinds of time limits of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Limit {
    /// Time until the connection is established. By default 20 seconds.
    Connect,
    /// Time without progress while data is queued: the peer does not read. By default 60 seconds.
    ///
    /// Data that the peer acknowledges counts as progress even if the socket accepts no more yet, where the system
    /// reports it: for TCP on Linux, macOS, FreeBSD and NetBSD, for Unix sockets on Linux. Elsewhere only a writable
    /// socket counts. Progress is measured from the first query of the system, so the limit may be reached up to an
    /// eighth later than set.
    WriteStall,
    /// Time until the [layers](crate::Layer) of the connection are ready, from when it was established or a layer was
    /// pushed. By default 20 seconds.
    Handshake,
    /// Time without sending or receiving anything. Data that the peer acknowledges counts as activity. By default there
    /// is no limit.
    Inactivity,
}

impl Limit {
    const ALL: [Limit; 4] = [Limit::Connect, Limit::WriteStall, Limit::Handshake, Limit::Inactivity];
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Connect => "no connection was made",
            Limit::WriteStall => "the other side read nothing",
            Limit::Handshake => "no handshake was completed",
            Limit::Inactivity => "nothing was sent or received",
        })
    }
}

/// The duration of each limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits([Option<Duration>; Limit::ALL.len()]);

impl Default for Limits {
    fn default() -> Limits {
        Limits(Limit::ALL.map(|limit| match limit {
            Limit::Connect | Limit::Handshake => Some(Duration::from_secs(20)),
            Limit::WriteStall => Some(Duration::from_secs(60)),
            Limit::Inactivity => None,
        }))
    }
}

impl Limits {
    pub(crate) fn get(&self, limit: Limit) -> Option<Duration> {
        self.0[limit as usize]
    }

    pub(crate) fn set(&mut self, limit: Limit, after: Option<Duration>) {
        self.0[limit as usize] = after;
    }
}

impl ConnectionState {
    fn limits<'a>(&'a self, defaults: &'a Limits) -> &'a Limits {
        self.extra.as_ref().and_then(|extra| extra.limits.as_ref()).unwrap_or(defaults)
    }

    /// Returns when `limit` started, if it is running.
    fn running_since(&self, limit: Limit) -> Option<Time> {
        let connecting = self.stage == Stage::Connecting;
        match limit {
            Limit::Connect => connecting.then_some(self.active_at),
            // A peer cannot read what is held back.
            Limit::WriteStall if self.busy && !self.is_manual() && !self.holds_output => {
                Some(self.sample().map_or(self.wrote_at(), |sample| sample.at))
            }
            Limit::WriteStall => None,
            Limit::Handshake => self.layers().and_then(|layers| layers.unready_since),
            // A connection that the reactor itself has paused is not an inactive peer.
            Limit::Inactivity if connecting || self.pauses.has(Pauses::BUDGET) || self.pauses.has(Pauses::TARGET) => {
                None
            }
            Limit::Inactivity => Some(self.sample().map_or(self.active_at, |sample| sample.at.max(self.active_at))),
        }
    }

    fn wrote_at(&self) -> Time {
        self.extra.as_ref().map_or(self.active_at, |extra| extra.wrote_at)
    }

    /// Returns when to ask the system for undelivered data, if the connection stalls and was not checked yet.
    fn stall_check_at(&self, defaults: &Limits) -> Option<Time> {
        let limit = self.limits(defaults).get(Limit::WriteStall)?;
        (self.busy && !self.is_manual() && !self.holds_output && self.sample().is_none())
            .then(|| self.wrote_at() + limit / STALL_CHECK_DIVISOR)
    }

    /// Returns when lingering ends, if the connection lingers.
    fn linger_until(&self) -> Option<Time> {
        self.extra.as_ref()?.linger_until
    }

    fn deadline_of(&self, limit: Limit, defaults: &Limits) -> Option<Time> {
        Some(self.running_since(limit)? + self.limits(defaults).get(limit)?)
    }
}

impl Io<'_> {
    /// Returns the duration of a limit, if it is set. When it is reached, [`timed_out`](super::Connection::timed_out)
    /// is called.
    pub fn limit(&mut self, limit: Limit) -> Option<Duration> {
        let defaults = self.reactor.connections.limits;
        self.reactor.stream_mut(self.id.0)?.limits(&defaults).get(limit)
    }

    /// Sets the duration of a limit. `None` disables it. [`Builder::limit`](crate::Builder::limit) sets the initial
    /// limits.
    pub fn set_limit(&mut self, limit: Limit, after: Option<Duration>) {
        let defaults = self.reactor.connections.limits;
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return };
        stream.extra().limits.get_or_insert(defaults).set(limit, after);
        self.reactor.arm_limits(self.id.0);
    }
}

impl Reactor {
    /// Sets the connection's timer so that it fires when the nearest limit may be reached, or earlier.
    pub(crate) fn arm_limits(&mut self, token: Token) {
        let defaults = self.connections.limits;
        let Some(stream) = self.stream_mut(token) else { return };
        let limits = Limit::ALL.iter().filter_map(|limit| stream.deadline_of(*limit, &defaults));
        let nearest = limits.chain(stream.linger_until()).chain(stream.stall_check_at(&defaults)).min();
        let armed = stream.extra.as_ref().is_some_and(|extra| extra.timer.is_armed());
        if nearest.is_none() && !armed {
            return;
        }
        // Out of its place, because the timer is set in the same reactor.
        let mut timer = std::mem::take(&mut stream.extra().timer);
        match nearest {
            Some(nearest) => timer.arm(self, nearest, |reactor, at| reactor.check_limits_at(at, token)),
            None => timer.cancel(self),
        }
        if let Some(stream) = self.stream_mut(token) {
            stream.extra().timer = timer;
        }
    }

    /// Checks the limits of a connection whose timer has fired.
    pub(crate) fn check_limits(&mut self, token: Token) {
        let (now, defaults) = (self.now, self.connections.limits);
        let Some(stream) = self.stream_mut(token) else { return };
        stream.extra().timer.fired();
        let stalls_since = stream.wrote_at();
        let lingered = stream.linger_until().is_some_and(|until| until <= now);
        let checks_stall = stream.stall_check_at(&defaults).is_some_and(|at| at <= now);
        if lingered && !self.extend_linger(token) {
            return self.closed_after_writing(token, Reason::Local);
        }
        if checks_stall {
            self.check_stall(token, stalls_since);
        }
        for limit in Limit::ALL {
            let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage != Stage::Over) else { return };
            let reached = stream.deadline_of(limit, &defaults).is_some_and(|deadline| deadline <= now);
            let Some(after) = stream.limits(&defaults).get(limit).filter(|_| reached) else { continue };
            if matches!(limit, Limit::WriteStall | Limit::Inactivity) && self.peer_reads(token, after) {
                continue;
            }
            // If the connection stays open, the limit starts again.
            match (limit, self.stream_mut(token)) {
                (Limit::WriteStall, _) => self.restart_sample(token),
                (Limit::Handshake, Some(stream)) => {
                    if let Some(layers) = stream.layers_mut() {
                        layers.unready_since = Some(now);
                    }
                }
                (_, Some(stream)) => stream.active_at = now,
                (_, None) => return,
            }
            self.notify(token, |handler, io| handler.timed_out(io, limit));
        }
        if self.stream_mut(token).is_some_and(|stream| stream.stage != Stage::Over) {
            self.arm_limits(token);
        }
    }
}
