//! A connection to a server: one request after another.
//!
//! `opening.rs` establishes it, `sending.rs` sends requests, `reading.rs` reads responses, `intake.rs` passes their bodies on, and
//! `deadlines.rs` has the time limits.
//! State that only a connection in use needs is in [`Busy`], which is borrowed from the pool.

mod busy;
mod deadlines;
mod intake;
mod opening;
mod reading;
mod sending;

use std::rc::Rc;

use pelton::{Chunk, Connection, ConnectionId, Io, LazyTimer, Reactor, Reason, Time};

pub(super) use busy::Busy;

use self::deadlines::Wait;
use super::call::{Call, Place};
use super::error::ErrorKind;
use super::pool::Shared;
use super::proxy::Handshake;
use super::retry::Attempt;

/// A connection of a client.
pub(super) struct ClientConnection {
    shared: Rc<Shared>,
    timer: LazyTimer,
    deadline: Time,
    busy: Option<Box<Busy>>,
    /// The handshake with a proxy.
    handshake: Option<Box<Handshake>>,
    /// Its id, while it is idle.
    idle: Option<ConnectionId>,
    origin: u32,
    /// Requests so far.
    requests: u32,
    phase: Phase,
    wait: Wait,
    /// The reactor drains: the current request is the last one.
    is_last: bool,
    /// The pool expects it to take a call soon.
    is_coming: bool,
}

/// What the connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It is being established.
    Opening,
    /// It has no request.
    Idle,
    /// It has one.
    Busy,
    /// It is being closed, and its user was notified.
    Closing,
}

impl ClientConnection {
    pub(super) fn new(shared: Rc<Shared>, origin: usize) -> ClientConnection {
        ClientConnection {
            shared,
            timer: LazyTimer::default(),
            deadline: Time::MAX,
            busy: None,
            handshake: None,
            idle: None,
            // There are never as many origins.
            origin: origin as u32,
            requests: 0,
            phase: Phase::Opening,
            wait: Wait::Nothing,
            is_last: false,
            is_coming: false,
        }
    }

    fn origin(&self) -> usize {
        self.origin as usize
    }

    /// Takes the next call that waits, or becomes idle.
    fn take_next(&mut self, io: &mut Io<'_>) {
        self.phase = Phase::Idle;
        match self.shared.came(self.origin()) {
            Some(call) => self.start(io, call),
            None if self.is_last => {
                self.phase = Phase::Closing;
                io.close();
            }
            None => {
                self.idle = Some(io.id());
                self.shared.is_idle(self.origin(), io.id());
                self.set_deadline(io);
            }
        }
    }

    /// Looks at what has changed: the call was cancelled, paused or resumed, or has more to send.
    pub(super) fn check(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        if busy.call.is_over() {
            return self.drop_call(io);
        }
        self.pump(io);
        self.continue_reading(io);
    }

    /// Closes the connection, because its call does not want the rest.
    fn drop_call(&mut self, io: &mut Io<'_>) {
        self.phase = Phase::Closing;
        self.keep_busy();
        io.close();
    }

    fn keep_busy(&mut self) {
        if let Some(mut busy) = self.busy.take() {
            let call = self.shared.take_out(&mut busy.call);
            self.shared.keep_busy(busy);
            self.shared.keep_call(call);
        }
    }

    /// Ends the exchange with an error, and closes the connection. The call may be repeated.
    fn fail(&mut self, io: &mut Io<'_>, kind: ErrorKind) {
        io.close();
        self.fail_call(io.reactor(), kind);
    }

    fn fail_call(&mut self, reactor: &mut Reactor, kind: ErrorKind) {
        self.phase = Phase::Closing;
        let Some(mut busy) = self.busy.take() else { return };
        let call = self.shared.take_out(&mut busy.call);
        let attempt = Attempt { begun: busy.reader.has_begun(), kept: busy.is_kept };
        self.shared.keep_busy(busy);
        self.shared.attempt_failed(reactor, call, attempt, kind);
    }

    /// Puts the connection's new call in its place.
    fn begin(&mut self, io: &mut Io<'_>, call: Rc<Call>) -> &mut Busy {
        call.stop_waiting(io.reactor());
        call.place.set(Place::On(io.id()));
        let mut busy = self.shared.take_busy();
        busy.call = call;
        busy.is_kept = self.requests > 0;
        self.phase = Phase::Busy;
        self.requests = self.requests.saturating_add(1);
        self.busy.insert(busy)
    }
}

impl Connection for ClientConnection {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.established(io);
    }

    fn layer_ready(&mut self, io: &mut Io<'_>) {
        self.ready(io);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        match self.phase {
            Phase::Busy => {
                self.shared.add(|stats| stats.received += chunk.len() as u64);
                self.read(io, chunk);
            }
            Phase::Opening => self.read_opening(io, &chunk),
            Phase::Idle => {
                // Nothing was asked for, so it cannot be the answer to the next request either.
                tracing::debug!(bytes = chunk.len(), "unexpected data on an idle connection");
                self.shared.add(|stats| stats.unasked += 1);
                self.leave_pool();
                io.close();
            }
            Phase::Closing => {}
        }
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        self.pump(io);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        match self.phase {
            Phase::Busy => self.input_ended(io),
            Phase::Idle => {
                self.leave_pool();
                io.close();
            }
            Phase::Opening | Phase::Closing => io.close_with(Reason::Finished),
        }
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        self.is_last = true;
        if self.phase == Phase::Idle {
            self.leave_pool();
            io.close();
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        self.timer.cancel(reactor);
        let shared = self.shared.clone();
        // The pool is put in order first: user code may panic.
        if std::mem::take(&mut self.is_coming) {
            shared.comes_not(self.origin());
        }
        let failed = match self.phase {
            // It was handed over to another protocol, or its users have been told.
            Phase::Closing => None,
            Phase::Idle => {
                self.leave_pool();
                None
            }
            Phase::Opening => shared.connection_failed(self.origin()),
            Phase::Busy => None,
        };
        shared.closed(reactor, self.origin());
        if let Some(call) = failed {
            let attempt = Attempt { begun: false, kept: false };
            shared.attempt_failed(reactor, call, attempt, ErrorKind::Connect(reason));
        } else if self.phase == Phase::Busy {
            let begun = self.busy.as_ref().is_some_and(|busy| busy.reader.has_begun());
            self.fail_call(reactor, ErrorKind::Ended { reason, begun });
        }
    }
}

impl ClientConnection {
    fn leave_pool(&mut self) {
        if let Some(id) = self.idle.take() {
            self.shared.leaves(self.origin(), id);
        }
        self.phase = Phase::Closing;
    }
}
