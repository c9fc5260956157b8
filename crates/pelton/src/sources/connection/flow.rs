//! How much may wait: on one connection, and on all of them.

use pelton_os::Token;

use super::stream::Stage;
use super::{ConnectionState, Io};
use crate::reactor::source::Source;
use crate::{Fault, Reactor};

/// How much may wait to be sent on a connection.
///
/// A peer that does not read must not use up the memory. So above `high` bytes nothing more is read from a connection that
/// came in, until no more than `low` are left and [`drained`](super::Connection::drained) is called; and on any connection
/// a single send that would make more than `most` bytes of memory wait is refused.
///
/// Connections that this side has made are read from all the same, unless [told otherwise](Io::throttle_reading): one that
/// sends a lot to a peer which answers as it reads would otherwise wait for that peer, and the peer for it, for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaterMarks {
    /// `drained` is called when there are no more than these bytes, in memory and in files. By default 16 KiB.
    pub low: usize,
    /// Reading pauses above these, in memory and in files. By default 64 KiB.
    pub high: usize,
    /// More than these in memory are refused. By default 16 MiB.
    pub most: usize,
}

impl Default for WaterMarks {
    fn default() -> WaterMarks {
        WaterMarks { low: 16 * 1024, high: 64 * 1024, most: 16 * 1024 * 1024 }
    }
}

/// What a builder settles.
#[derive(Clone, Copy)]
pub(crate) struct FlowSettings {
    pub(crate) marks: WaterMarks,
    /// Over this many bytes that wait on all connections, nothing more is taken in.
    pub(crate) budget: usize,
    /// Connections are accepted all the same, and read from unless something waits on them.
    pub(crate) serves_over_budget: bool,
}

impl Default for FlowSettings {
    fn default() -> FlowSettings {
        // Sixteen connections at their most: a server that is so far behind gains nothing from reading on.
        FlowSettings { marks: WaterMarks::default(), budget: 256 * 1024 * 1024, serves_over_budget: false }
    }
}

/// The reactor's books on what waits.
pub(crate) struct Flow {
    settings: FlowSettings,
    /// Bytes of memory that wait to be sent, on all connections and datagram sockets.
    queued: usize,
    /// Connections that nothing is read from while the budget is exceeded.
    choked: Vec<Token>,
    /// Listeners accept nothing either.
    turned_away: bool,
}

impl Flow {
    pub(crate) fn new(settings: FlowSettings) -> Flow {
        Flow { settings, queued: 0, choked: Vec::new(), turned_away: false }
    }

    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.queued += bytes;
    }

    #[inline]
    pub(crate) fn remove(&mut self, bytes: usize) {
        self.queued -= bytes;
    }

    /// What there is to begin with.
    pub(crate) fn marks(&self) -> WaterMarks {
        self.settings.marks
    }

    /// Whether connections on which nothing waits are read from in any case.
    pub(super) fn serves_over_budget(&self) -> bool {
        self.settings.serves_over_budget
    }

    fn is_over_budget(&self) -> bool {
        self.queued > self.settings.budget
    }

    /// Whether enough has gone out to go on: not at the first byte below, or each would stop and start everything.
    fn has_room(&self) -> bool {
        self.queued <= self.settings.budget / 4 * 3
    }
}

impl ConnectionState {
    pub(super) fn marks(&self, flow: &Flow) -> WaterMarks {
        self.extra.as_ref().and_then(|extra| extra.marks).unwrap_or(flow.settings.marks)
    }
}

impl Io<'_> {
    /// How much may wait to be sent.
    pub fn water_marks(&mut self) -> WaterMarks {
        let Reactor { sources, flow, .. } = &mut *self.reactor;
        match sources.get(self.id.0) {
            Some(Source::Connection(stream)) => stream.marks(flow),
            _ => flow.settings.marks,
        }
    }

    /// Sets how much may wait to be sent. What a reactor's connections begin with is set by
    /// [`Builder::water_marks`](crate::Builder::water_marks).
    pub fn set_water_marks(&mut self, marks: WaterMarks) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.extra().marks = Some(WaterMarks { low: marks.low.min(marks.high), ..marks });
            self.reactor.request_flush(self.id.0);
        }
    }

    /// Whether nothing is read while more than the high [water mark](WaterMarks) waits to be sent. It is so by default for
    /// connections that came in: whoever asks gets no further answers before taking those there are.
    pub fn throttle_reading(&mut self, throttle: bool) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.throttles = throttle;
            self.reactor.set_receiving(self.id.0);
        }
    }
}

impl Reactor {
    /// How many bytes of memory wait to be sent, on all connections and datagram sockets together.
    pub fn queued(&self) -> usize {
        self.flow.queued
    }

    /// Stops reading from a connection that has just been read from, if more waits than the budget allows.
    pub(super) fn choke_if_over_budget(&mut self, token: Token) {
        if !self.flow.is_over_budget() {
            return;
        }
        let only_debtors = self.flow.settings.serves_over_budget;
        if let Some(stream) = self.stream_mut(token)
            && stream.stage == Stage::Open
            && !(only_debtors && stream.outbox.as_ref().is_none_or(|outbox| outbox.is_empty()))
            && !std::mem::replace(&mut stream.choked, true)
        {
            self.flow.choked.push(token);
            self.set_receiving(token);
        }
    }

    /// Reads on from a connection on which nothing waits any more, though the budget is exceeded.
    #[cold]
    pub(super) fn unchoke_early(&mut self, token: Token) {
        if let Some(at) = self.flow.choked.iter().position(|choked| *choked == token) {
            self.flow.choked.swap_remove(at);
        }
        self.unchoke(token);
    }

    fn unchoke(&mut self, token: Token) {
        let now = self.now;
        if let Some(stream) = self.stream_mut(token) {
            stream.choked = false;
            stream.active_at = now;
            self.set_receiving(token);
            self.arm_limits(token);
        }
    }

    /// At the end of a flush: if more waits than the budget allows, though everything was sent that could be, no connection is
    /// accepted either; and if there is room again, everything goes on.
    pub(crate) fn balance_flow(&mut self) {
        if self.flow.is_over_budget() && !self.flow.turned_away {
            let queued = self.flow.queued;
            let message = format!("{queued} bytes wait to be sent, over the byte budget: nothing more is taken in");
            self.flow.turned_away = true;
            self.let_listeners_accept();
            self.report(Fault::new("connections", message));
        }
        if (self.flow.turned_away || !self.flow.choked.is_empty()) && self.flow.has_room() {
            let turned_away = std::mem::take(&mut self.flow.turned_away);
            for token in std::mem::take(&mut self.flow.choked) {
                self.unchoke(token);
            }
            if turned_away {
                self.let_listeners_accept();
            }
        }
    }

    /// Whether listeners have to wait for what is queued to go out.
    pub(crate) fn makes_newcomers_wait(&self) -> bool {
        self.flow.turned_away && !self.flow.settings.serves_over_budget
    }
}
