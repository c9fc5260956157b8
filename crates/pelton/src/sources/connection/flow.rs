//! Bounds send queues: per connection, and over all connections.

use pelton_os::Token;

use super::stream::Stage;
use super::{ConnectionState, Io};
use crate::reactor::source::Source;
use crate::sources::transport::Pauses;
use crate::{Fault, Reactor};

/// The water marks of a connection's send queue.
///
/// They keep a peer that does not read from using up memory. If more than `high` bytes are queued on an accepted
/// connection, the reactor stops reading from it until at most `low` bytes are left and
/// [`writable`](super::Connection::writable) is called. On any connection, a send that would raise the queue in memory
/// above `most` bytes is refused.
///
/// Outgoing connections are read from even above `high`, unless [configured otherwise](Io::throttle_reading). Without
/// this exception, a client that sends a lot and a server that answers while it reads could block each other forever.
///
/// With [layers](crate::Layer), such as TLS, the bytes count that were sent, not what the layers have made of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaterMarks {
    /// `writable` is called when at most this many bytes are queued, in memory and in files. By default 16 KiB.
    pub low: usize,
    /// Reading pauses when more bytes than this are queued, in memory and in files. By default 64 KiB.
    pub high: usize,
    /// The maximum number of bytes queued in memory. Further sends are refused. By default 16 MiB.
    pub most: usize,
}

impl Default for WaterMarks {
    fn default() -> WaterMarks {
        WaterMarks { low: 16 * 1024, high: 64 * 1024, most: 16 * 1024 * 1024 }
    }
}

/// Whether a connection is read from while its send queue is above the high [water mark](WaterMarks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Throttle {
    /// Reading pauses until the queue has fallen to the low mark.
    WhenFull,
    /// Reading continues.
    Never,
}

/// The settings that a builder collects.
#[derive(Clone, Copy)]
pub(crate) struct FlowSettings {
    pub(crate) marks: WaterMarks,
    /// Input is throttled when more bytes than this are queued on all connections.
    pub(crate) budget: usize,
    /// Connections are still accepted, and read from unless they have bytes queued.
    pub(crate) serves_over_budget: bool,
}

impl Default for FlowSettings {
    fn default() -> FlowSettings {
        // Sixteen connections at their maximum. A server so far behind gains nothing from reading more.
        FlowSettings { marks: WaterMarks::default(), budget: 256 * 1024 * 1024, serves_over_budget: false }
    }
}

/// Counts the bytes queued on all connections and datagram sockets.
pub(crate) struct Flow {
    settings: FlowSettings,
    /// Bytes in memory queued to be sent, on all connections and datagram sockets.
    queued: usize,
    /// Connections that are not read from while the budget is exceeded.
    budget_paused: Vec<Token>,
    /// The budget was exceeded at the end of a flush, and there is no room again yet.
    over_budget: bool,
}

impl Flow {
    pub(crate) fn new(settings: FlowSettings) -> Flow {
        Flow { settings, queued: 0, budget_paused: Vec::new(), over_budget: false }
    }

    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.queued += bytes;
    }

    #[inline]
    pub(crate) fn remove(&mut self, bytes: usize) {
        self.queued -= bytes;
    }

    /// Returns the water marks that connections and datagram sockets start with.
    pub(crate) fn marks(&self) -> WaterMarks {
        self.settings.marks
    }

    /// Returns whether connections with an empty send queue are read from even over budget.
    pub(super) fn serves_over_budget(&self) -> bool {
        self.settings.serves_over_budget
    }

    fn is_over_budget(&self) -> bool {
        self.queued > self.settings.budget
    }

    /// Returns whether enough was sent to resume. With a threshold at the budget itself, each byte around it would
    /// pause and resume everything.
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
    /// Returns the water marks of the send queue.
    pub fn water_marks(&mut self) -> WaterMarks {
        let Reactor { sources, flow, .. } = &mut *self.reactor;
        match sources.get(self.id.0) {
            Some(Source::Connection(stream)) => stream.marks(flow),
            _ => flow.settings.marks,
        }
    }

    /// Sets the water marks of the send queue. [`Builder::water_marks`](crate::Builder::water_marks) sets the initial
    /// ones.
    pub fn set_water_marks(&mut self, marks: WaterMarks) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.extra().marks = Some(WaterMarks { low: marks.low.min(marks.high), ..marks });
            self.reactor.request_flush(self.id.0);
        }
    }

    /// Sets whether reading pauses while the send queue is above the high [water mark](WaterMarks). By default it does
    /// on accepted connections: a client gets no further answers before it reads the earlier ones.
    pub fn throttle_reading(&mut self, throttle: Throttle) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.throttles = throttle == Throttle::WhenFull;
            self.reactor.set_receiving(self.id.0);
        }
    }
}

impl Reactor {
    /// Returns the number of bytes in memory queued to be sent, on all connections and datagram sockets.
    pub fn queued(&self) -> usize {
        self.flow.queued
    }

    /// Stops reading from a connection that was just read from if the byte budget is exceeded.
    pub(super) fn pause_if_over_budget(&mut self, token: Token) {
        if !self.flow.is_over_budget() {
            return;
        }
        let only_with_backlog = self.flow.settings.serves_over_budget;
        if let Some(stream) = self.stream_mut(token)
            && stream.stage == Stage::Open
            && !(only_with_backlog && stream.waiting() == 0)
            && stream.pauses.add(Pauses::BUDGET)
        {
            self.flow.budget_paused.push(token);
            self.set_receiving(token);
        }
    }

    /// Resumes reading from a connection whose send queue is empty, although the budget is exceeded.
    #[cold]
    pub(super) fn resume_over_budget(&mut self, token: Token) {
        if let Some(at) = self.flow.budget_paused.iter().position(|paused| *paused == token) {
            self.flow.budget_paused.swap_remove(at);
        }
        self.resume_reading(token);
    }

    fn resume_reading(&mut self, token: Token) {
        let now = self.now;
        if let Some(stream) = self.stream_mut(token) {
            stream.pauses.remove(Pauses::BUDGET);
            stream.active_at = now;
            self.set_receiving(token);
            self.arm_limits(token);
        }
    }

    /// Returns whether [`balance_flow`](Reactor::balance_flow) may have something to do.
    #[inline]
    pub(crate) fn has_flow_to_balance(&self) -> bool {
        self.flow.is_over_budget() || self.flow.over_budget || !self.flow.budget_paused.is_empty()
    }

    /// Runs at the end of a flush. If the budget is still exceeded, accepting pauses as well. If there is room again,
    /// reading and accepting resume.
    pub(crate) fn balance_flow(&mut self) {
        if self.flow.is_over_budget() && !self.flow.over_budget {
            let queued = self.flow.queued;
            let message = format!("{queued} bytes are queued to be sent, over the byte budget: input is throttled");
            self.flow.over_budget = true;
            self.update_accepting();
            self.report(Fault::new("connections", message));
        }
        if (self.flow.over_budget || !self.flow.budget_paused.is_empty()) && self.flow.has_room() {
            let over_budget = std::mem::take(&mut self.flow.over_budget);
            for token in std::mem::take(&mut self.flow.budget_paused) {
                self.resume_reading(token);
            }
            if over_budget {
                self.update_accepting();
            }
        }
    }

    /// Returns whether listeners must pause until queued bytes have been sent.
    pub(crate) fn budget_pauses_accepting(&self) -> bool {
        self.flow.over_budget && !self.flow.settings.serves_over_budget
    }
}
