//! Time limits.
//!
//! A connection has one timer. Requests perform no timer operation: they store a deadline, and the timer checks it when it fires
//! and rearms itself.

use pelton::{Io, Reactor, Time};

use super::busy::Upload;
use super::{ClientConnection, Phase};
use crate::client::error::{ErrorKind, TimeLimit};

/// What the connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Nothing from the server.
    Nothing,
    /// To be established.
    Open,
    /// The next request.
    Idle,
    /// The server's consent to send the body.
    Continue,
    /// The head of the response.
    Head,
    /// More of the body.
    Body,
}

impl ClientConnection {
    fn waits_for(&self) -> Wait {
        match self.phase {
            Phase::Opening => Wait::Open,
            Phase::Idle => Wait::Idle,
            Phase::Closing => Wait::Nothing,
            Phase::Busy => match &self.busy {
                Some(busy) if busy.call.paused.get() => Wait::Nothing,
                Some(busy) if busy.has_head => Wait::Body,
                Some(busy) => match busy.upload {
                    Upload::Done => Wait::Head,
                    Upload::Held(_) => Wait::Continue,
                    // The reactor closes connections whose peer does not read.
                    Upload::Content(_) | Upload::Parts(..) | Upload::Stream(_) => Wait::Nothing,
                },
                None => Wait::Nothing,
            },
        }
    }

    /// Sets the deadline for what the server has to do next.
    pub(super) fn set_deadline(&mut self, io: &mut Io<'_>) {
        let wait = self.waits_for();
        let goes_on = std::mem::replace(&mut self.wait, wait) == wait;
        let settings = self.shared.settings();
        let reactor = io.reactor();
        let now = match wait {
            // A request may be sent long after the latest reading.
            Wait::Open | Wait::Continue | Wait::Head if !goes_on => reactor.clock(),
            _ => reactor.now(),
        };
        let (mut head, mut between, mut whole) = (settings.head, settings.between, Time::MAX);
        if let Some(busy) = &self.busy {
            let state = busy.call.state.borrow();
            whole = state.deadline.unwrap_or(Time::MAX);
            if let Some(parts) = &state.parts {
                head = parts.limits.head.unwrap_or(head);
                between = parts.limits.between.unwrap_or(between);
            }
        }
        self.deadline = match wait {
            Wait::Nothing => whole,
            Wait::Idle => now + settings.idle,
            // These count from their beginning, however the input is split.
            Wait::Open | Wait::Continue | Wait::Head if goes_on => return,
            Wait::Open => now + settings.connect,
            Wait::Continue => whole.min(now + settings.continues),
            Wait::Head => whole.min(now + head),
            Wait::Body => whole.min(now + between),
        };
        self.arm(io);
    }

    /// Starts the time of a new request.
    pub(super) fn restart_deadline(&mut self, io: &mut Io<'_>) {
        self.wait = Wait::Nothing;
        self.set_deadline(io);
    }

    /// Arms the timer so that it fires no later than the deadline.
    fn arm(&mut self, io: &mut Io<'_>) {
        if self.deadline == Time::MAX {
            return;
        }
        let id = io.id();
        let fire = move |reactor: &mut Reactor| {
            reactor.visit(id, |connection: &mut ClientConnection, io| connection.timer_fired(io));
        };
        self.timer.arm(io.reactor(), self.deadline, |reactor, at| reactor.at(at, fire));
    }

    fn timer_fired(&mut self, io: &mut Io<'_>) {
        self.timer.fired();
        let now = io.reactor().now();
        if now < self.deadline {
            return self.arm(io);
        }
        if let Some(busy) = &self.busy {
            let state = busy.call.state.borrow();
            let is_too_late = state.deadline.is_some_and(|deadline| deadline <= now);
            drop(state);
            if is_too_late {
                let kind = busy.call.too_late();
                return self.fail(io, kind);
            }
        }
        let settings = self.shared.settings();
        let limits = self.busy.as_ref().and_then(|busy| Some(busy.call.state.borrow().parts.as_ref()?.limits));
        let limits = limits.unwrap_or_default();
        match self.wait {
            Wait::Nothing => {}
            Wait::Open => self.opening_timed_out(io),
            Wait::Idle => {
                self.leave_pool();
                io.close();
            }
            Wait::Continue => self.send_body_anyway(io),
            Wait::Head => {
                let after = limits.head.unwrap_or(settings.head);
                self.fail(io, ErrorKind::TimedOut { limit: TimeLimit::Head, after });
            }
            Wait::Body => {
                let after = limits.between.unwrap_or(settings.between);
                self.fail(io, ErrorKind::TimedOut { limit: TimeLimit::Between, after });
            }
        }
    }
}
