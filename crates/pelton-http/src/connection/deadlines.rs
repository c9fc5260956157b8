//! Time limits.
//!
//! A connection has one timer. Requests perform no timer operation: they store a deadline, and the timer checks it when it fires
//! and rearms itself.

use pelton::{Io, Reactor, Time};

use super::out::Out;
use super::{HttpConnection, Phase};
use crate::wire::Refusal;

/// What the connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Nothing from the client.
    Nothing,
    /// The next request.
    Idle,
    /// A last request, while the reactor drains.
    Last,
    /// The rest of a head.
    Head,
    /// More of a body.
    Body,
    /// The end of input, after the last response.
    End,
}

impl HttpConnection {
    fn waits_for(&self) -> Wait {
        let busy = self.busy.as_ref();
        match self.phase {
            Phase::Head if busy.is_some_and(|busy| busy.has_input()) && !self.is_blocked() => Wait::Head,
            Phase::Head if self.waiting() == 0 && self.drains => Wait::Last,
            Phase::Head if self.waiting() == 0 && self.sequence == 0 => Wait::Head,
            Phase::Head if self.waiting() == 0 => Wait::Idle,
            Phase::Body if !self.is_blocked() => Wait::Body,
            Phase::Done if self.lingers && self.waiting() == 0 => Wait::End,
            _ => Wait::Nothing,
        }
    }

    /// Sets the deadline for what the client has to do next.
    pub(super) fn set_deadline(&mut self, io: &mut Io<'_>) {
        let wait = self.waits_for();
        let goes_on = std::mem::replace(&mut self.wait, wait) == wait;
        let settings = &self.shared.settings;
        let now = io.reactor().now();
        self.deadline = match wait {
            Wait::Nothing => Time::MAX,
            Wait::Idle => now + settings.idle,
            // The time for a head counts from its first byte, however it is split; that for a body counts per window.
            Wait::Head | Wait::Body | Wait::Last | Wait::End if goes_on => return,
            Wait::Last => now + settings.drain_idle,
            Wait::Head => now + settings.header_time,
            Wait::Body => now + settings.body_window,
            Wait::End => now + settings.linger,
        };
        if wait == Wait::Body
            && let Some(body) = self.busy.as_mut().and_then(|busy| busy.body.as_mut())
        {
            body.window = 0;
        }
        self.arm(io);
    }

    /// Arms the timer so that it fires no later than the deadline.
    fn arm(&mut self, io: &mut Io<'_>) {
        if self.deadline == Time::MAX {
            return;
        }
        let id = io.id();
        let fire = move |reactor: &mut Reactor| {
            reactor.visit(id, |http: &mut HttpConnection, io| http.timer_fired(io));
        };
        self.timer.arm(io.reactor(), self.deadline, |reactor, at| reactor.at(at, fire));
    }

    fn timer_fired(&mut self, io: &mut Io<'_>) {
        self.timer.fired();
        if io.reactor().now() < self.deadline || self.still_delivers(io) {
            return self.arm(io);
        }
        let mut out = Out::new(&self.shared);
        match self.wait {
            Wait::Nothing => {}
            Wait::Idle | Wait::Last => self.phase = Phase::Done,
            // No request has arrived, so there is nothing to answer.
            Wait::Head if self.sequence == 0 && self.busy.is_none() => self.phase = Phase::Done,
            Wait::Head => self.refuse(io, &mut out, Refusal::new(408, "the head of a request took too long")),
            Wait::Body => self.check_rate(io, &mut out),
            Wait::End => io.close(),
        }
        self.advance(io, out);
    }

    /// Extends a deadline that counts from the end of a response if the client has not received all of it: most of a large
    /// response may still be in flight.
    fn still_delivers(&mut self, io: &mut Io<'_>) -> bool {
        let allowed = match self.wait {
            Wait::Idle => self.shared.settings.idle,
            Wait::End => self.shared.settings.linger,
            Wait::Nothing | Wait::Last | Wait::Head | Wait::Body => return false,
        };
        let more = match self.wait {
            _ if io.is_delivering(allowed) => allowed,
            // The time counts from the last write of the response.
            Wait::Idle => allowed.saturating_sub(io.idle_time()),
            // Input does not count: a client that only sends gets no extension.
            _ => return false,
        };
        self.deadline = io.reactor().now() + more;
        !more.is_zero()
    }

    fn check_rate(&mut self, io: &mut Io<'_>, out: &mut Out) {
        let settings = &self.shared.settings;
        let window = u64::try_from(settings.body_window.as_millis()).unwrap_or(u64::MAX);
        let least = u64::from(settings.body_rate).saturating_mul(window) / 1000;
        let came = self.busy.as_ref().and_then(|busy| busy.body.as_ref()).map_or(0, |body| body.window);
        if came < least.max(1) {
            self.body_fails(io, out, Refusal::new(408, "the request body arrived too slowly").into());
        } else {
            // Another window begins.
            self.wait = Wait::Nothing;
        }
    }
}
