//! Time limits of connections.
//!
//! They are not a scan, and I/O does no timer operation: a connection stores when something last happened, and has at most one
//! timer, for the nearest of its limits. When that fires, it is set anew if something has happened meanwhile; or if the other
//! side has read some of what was sent, which only the system knows (`progress.rs`).

use std::fmt;
use std::time::Duration;

use pelton_os::{Time, Token};

use super::stream::Stage;
use super::{ConnectionState, Io, Reason};
use crate::Reactor;

/// The system is asked how much the other side has yet to read when this part of the write-stall limit has passed. From then on
/// the limit runs in full: a peer that reads is never cut off too early, one that does not is cut off by so much later.
const LOOK_AT_STALL_AFTER: u32 = 8;

/// What a connection can take too long for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Limit {
    /// Being established. By default 20 seconds.
    Connect,
    /// Sending any of what waits to be sent: the other side does not read. By default 60 seconds.
    ///
    /// What the other side acknowledges counts, also if that makes no room to send more yet, where the system can tell: for
    /// TCP on Linux, macOS, FreeBSD and NetBSD, for Unix sockets on Linux. Elsewhere only room to send more counts. Because
    /// progress is measured from when the system was first asked, the limit may be reached an eighth later than it says.
    WriteStall,
    /// Sending or receiving anything; what the other side acknowledges counts here, too. By default there is no such limit.
    Inactivity,
}

impl Limit {
    const ALL: [Limit; 3] = [Limit::Connect, Limit::WriteStall, Limit::Inactivity];
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Connect => "no connection was made",
            Limit::WriteStall => "the other side has read nothing",
            Limit::Inactivity => "nothing was sent or received",
        })
    }
}

/// How long each may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits([Option<Duration>; Limit::ALL.len()]);

impl Default for Limits {
    fn default() -> Limits {
        Limits(Limit::ALL.map(|limit| match limit {
            Limit::Connect => Some(Duration::from_secs(20)),
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

    /// Since when `limit` is running, if it is.
    fn running_since(&self, limit: Limit) -> Option<Time> {
        let connecting = self.stage == Stage::Connecting;
        match limit {
            Limit::Connect => connecting.then_some(self.active_at),
            Limit::WriteStall if self.busy => Some(self.reading().map_or(self.wrote_at(), |reading| reading.at)),
            Limit::WriteStall => None,
            // What is held back on purpose is not the other side's silence.
            Limit::Inactivity if connecting || self.choked => None,
            Limit::Inactivity => Some(self.reading().map_or(self.active_at, |reading| reading.at.max(self.active_at))),
        }
    }

    fn wrote_at(&self) -> Time {
        self.extra.as_ref().map_or(self.active_at, |extra| extra.wrote_at)
    }

    /// When to look how much the other side has yet to read, if it stalls and that was not done yet.
    fn looks_at_stall_at(&self, defaults: &Limits) -> Option<Time> {
        let limit = self.limits(defaults).get(Limit::WriteStall)?;
        (self.busy && self.reading().is_none()).then(|| self.wrote_at() + limit / LOOK_AT_STALL_AFTER)
    }

    /// How long it waits for the other side to end, if it does.
    fn lingers_until(&self) -> Option<Time> {
        self.extra.as_ref()?.linger_until
    }

    fn deadline_of(&self, limit: Limit, defaults: &Limits) -> Option<Time> {
        Some(self.running_since(limit)? + self.limits(defaults).get(limit)?)
    }
}

impl Io<'_> {
    /// How long something may take before the connection [has timed out](super::Connection::timed_out), if there is a limit.
    pub fn limit(&mut self, limit: Limit) -> Option<Duration> {
        let defaults = self.reactor.connections.limits;
        self.reactor.stream_mut(self.id.0)?.limits(&defaults).get(limit)
    }

    /// Limits how long something may take. `None` lifts the limit. What a reactor's connections begin with is set by
    /// [`Builder::limit`](crate::Builder::limit).
    pub fn set_limit(&mut self, limit: Limit, after: Option<Duration>) {
        let defaults = self.reactor.connections.limits;
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return };
        stream.extra().limits.get_or_insert(defaults).set(limit, after);
        self.reactor.arm_limits(self.id.0);
    }
}

impl Reactor {
    /// Has the connection looked at when the nearest of its limits may be reached, or sooner.
    pub(crate) fn arm_limits(&mut self, token: Token) {
        let defaults = self.connections.limits;
        let Some(stream) = self.stream_mut(token) else { return };
        let limits = Limit::ALL.iter().filter_map(|limit| stream.deadline_of(*limit, &defaults));
        let nearest = limits.chain(stream.lingers_until()).chain(stream.looks_at_stall_at(&defaults)).min();
        let timer = stream.extra.as_ref().and_then(|extra| extra.timer);
        match (nearest, timer) {
            (None, None) => {}
            (None, Some(timer)) => {
                self.timers.cancel(timer);
                self.set_limit_timer(token, None);
            }
            // One that is early looks again: I/O only ever makes limits later.
            (Some(nearest), Some(timer)) => {
                if self.timers.deadline(timer).is_some_and(|set| set > nearest) {
                    self.timers.reset(timer, nearest);
                }
            }
            (Some(nearest), None) => {
                let timer = self.check_limits_at(nearest, token);
                self.set_limit_timer(token, Some(timer));
            }
        }
    }

    fn set_limit_timer(&mut self, token: Token, timer: Option<crate::TimerKey>) {
        if let Some(stream) = self.stream_mut(token) {
            stream.extra().timer = timer;
        }
    }

    /// The connection's timer has fired.
    pub(crate) fn check_limits(&mut self, token: Token) {
        self.set_limit_timer(token, None);
        let (now, defaults) = (self.now, self.connections.limits);
        let Some(stream) = self.stream_mut(token) else { return };
        let stalls_since = stream.wrote_at();
        let lingered = stream.lingers_until().is_some_and(|until| until <= now);
        let looks = stream.looks_at_stall_at(&defaults).is_some_and(|at| at <= now);
        if lingered && !self.lingers_on(token) {
            return self.connection_is_over(token, Reason::Local);
        }
        if looks {
            self.look_at_stall(token, stalls_since);
        }
        for limit in Limit::ALL {
            let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage != Stage::Over) else { return };
            let reached = stream.deadline_of(limit, &defaults).is_some_and(|deadline| deadline <= now);
            let Some(after) = stream.limits(&defaults).get(limit).filter(|_| reached) else { continue };
            if limit != Limit::Connect && self.peer_reads(token, after) {
                continue;
            }
            // If it goes on, it has as long again.
            match (limit, self.stream_mut(token)) {
                (Limit::WriteStall, _) => self.restart_reading(token),
                (_, Some(stream)) => stream.active_at = now,
                (_, None) => return,
            }
            self.tell(token, |handler, io| handler.timed_out(io, limit));
        }
        if self.stream_mut(token).is_some_and(|stream| stream.stage != Stage::Over) {
            self.arm_limits(token);
        }
    }
}
