//! A connection that speaks HTTP.
//!
//! This file implements the reactor's callbacks. Each ends in [`advance`](HttpConnection::advance). `reading.rs` parses requests and
//! calls the handler, and `receiving.rs` reads request bodies. `commands.rs` applies the commands that handlers send,
//! `answering.rs` writes the responses in order, `streaming.rs` writes bodies in pieces, and `head.rs` decides what goes into a
//! response head. `busy.rs` holds the state of a connection that is not idle, `out.rs` buffers output, `deadlines.rs` enforces
//! the time limits, and `upgrade.rs` hands the connection to another protocol.

mod answering;
mod busy;
mod commands;
mod deadlines;
mod head;
mod out;
mod reading;
mod receiving;
mod streaming;
mod upgrade;

use std::rc::Rc;

use pelton::{Chunk, Connection, ConnectionId, Io, LazyTimer, Reactor, Reason, Time};

pub(crate) use busy::Busy;
use deadlines::Wait;
use out::Out;

use crate::server::Shared;
use crate::{BodyError, BodyEvent};

/// Serves HTTP on one connection. Made by [`Server::connection`](crate::Server::connection).
///
/// Idle connections are numerous, so the state of a request is kept in `Busy`.
pub struct HttpConnection {
    shared: Rc<Shared>,
    busy: Option<Box<Busy>>,
    id: Option<ConnectionId>,
    /// When the current [wait](Wait) times out. The timer may fire earlier, and then checks this.
    deadline: Time,
    timer: LazyTimer,
    /// The number of requests so far.
    sequence: u32,
    phase: Phase,
    wait: Wait,
    /// No request is accepted after the current one.
    last: bool,
    /// The reactor is draining: the last response announces that the connection closes.
    drains: bool,
    /// The client may still be sending when the connection is closed.
    lingers: bool,
    /// Reading is paused.
    paused: bool,
    /// The connection counts towards the server's limits.
    counted: bool,
}

/// What the client sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The head of a request.
    Head,
    /// The body of the latest request.
    Body,
    /// Unknown: the response to the latest request may switch to another protocol.
    Hold,
    /// Nothing that matters. The connection closes when all requests are answered.
    Done,
    /// Another protocol. The connection is handed over when the current callback returns.
    Upgraded,
}

impl HttpConnection {
    pub(crate) fn new(shared: Rc<Shared>) -> HttpConnection {
        HttpConnection {
            shared,
            busy: None,
            id: None,
            deadline: Time::MAX,
            timer: LazyTimer::default(),
            sequence: 0,
            phase: Phase::Head,
            wait: Wait::Nothing,
            last: false,
            drains: false,
            lingers: false,
            paused: false,
            counted: false,
        }
    }

    /// Returns the state of the active connection, and creates it if there is none.
    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_with(|| self.shared.take_books())
    }

    /// The number of unanswered requests.
    fn waiting(&self) -> usize {
        self.busy.as_ref().map_or(0, |busy| busy.exchanges.len())
    }

    /// Makes all progress that is possible now: writes responses, processes buffered input, flushes, and sets the deadline.
    fn advance(&mut self, io: &mut Io<'_>, mut out: Out) {
        while self.busy.is_some() {
            self.apply_commands(io, &mut out);
            self.answer(io, &mut out);
            if !self.process_kept(io, &mut out) {
                break;
            }
        }
        self.send_continue(&mut out);
        out.send(io);
        self.shared.put_out(out.into_buffer());
        if self.phase == Phase::Upgraded {
            return self.hand_over(io);
        }
        self.set_paused(io);
        if let Some(busy) = self.busy.take() {
            if busy.is_needed() {
                self.busy = Some(busy);
            } else {
                self.shared.put_books(busy);
            }
        }
        if self.phase == Phase::Done && self.waiting() == 0 {
            self.close(io);
        }
        self.set_deadline(io);
    }

    /// Closes the connection when all output is written.
    fn close(&mut self, io: &mut Io<'_>) {
        if self.lingers {
            // If the socket were closed now, further input would cause a reset, which can discard output that the client has not
            // read.
            io.finish();
        } else {
            io.close_after_writing();
        }
    }

    /// Pauses or resumes reading, depending on whether the buffered input can be processed.
    fn set_paused(&mut self, io: &mut Io<'_>) {
        // Keep reading while no input is held back: that is how a disconnect is noticed.
        let pause = self.busy.as_ref().is_some_and(|busy| busy.has_input()) && self.is_blocked();
        if pause != self.paused {
            self.paused = pause;
            if pause { io.pause() } else { io.resume() }
        }
    }

    /// Drops all unanswered requests and tells their handlers.
    fn give_up(&mut self, reactor: &mut Reactor) {
        let Some(mut busy) = self.busy.take() else { return };
        let reader = busy.body.take().and_then(|body| body.reader);
        let callbacks: Vec<_> = busy.exchanges.drain(..).filter_map(|exchange| exchange.on_gone).collect();
        self.shared.put_books(busy);
        if let Some(mut reader) = reader {
            reader(reactor, BodyEvent::Failed(BodyError::Gone));
        }
        for callback in callbacks {
            callback(reactor);
        }
    }
}

impl Connection for HttpConnection {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.id = Some(io.id());
        self.shared.handle.get_or_init(|| io.reactor().handle());
        let has_room = io.reactor().queued() <= self.shared.settings.queued;
        self.counted = has_room && self.shared.admit(io.id(), || io.peer_address());
        if self.counted {
            // The first request may be on its way.
            io.count_as_used();
            self.set_deadline(io);
        } else {
            let mut out = Out::new(&self.shared);
            self.turn_away(io, &mut out);
            self.advance(io, out);
            if let Some(mut oldest) = self.shared.linger(io.id()).and_then(|id| io.reactor().connection(id)) {
                oldest.close();
            }
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let mut out = Out::new(&self.shared);
        if let Some(busy) = self.busy.as_mut().filter(|busy| busy.has_input()) {
            busy.keep(&chunk);
            // Returns the borrowed buffer first.
            drop(chunk);
            self.process_kept(io, &mut out);
        } else {
            let used = self.process(io, &mut out, &chunk);
            if used < chunk.len() {
                self.busy().keep(&chunk[used..]);
            }
        }
        self.advance(io, out);
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        if let Some(busy) = &mut self.busy {
            busy.choked = false;
        }
        let out = Out::new(&self.shared);
        self.advance(io, out);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        // Requests received so far are still answered.
        self.busy().finished = true;
        let mut out = Out::new(&self.shared);
        self.process_kept(io, &mut out);
        self.advance(io, out);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        // Requests in progress are finished. On an idle connection, a request may be on its way.
        (self.last, self.drains) = (true, true);
        let waits = self.phase == Phase::Head && !self.busy.as_ref().is_some_and(|busy| busy.has_input());
        if waits && (self.waiting() > 0 || self.shared.settings.drain_idle.is_zero()) {
            self.phase = Phase::Done;
        }
        let out = Out::new(&self.shared);
        self.advance(io, out);
    }

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        self.timer.cancel(reactor);
        match self.id {
            Some(id) if std::mem::take(&mut self.counted) => self.shared.dismiss(id),
            Some(id) => self.shared.lingered(id),
            None => {}
        }
        self.give_up(reactor);
        if let Some(id) = self.id {
            // A handler that panicked may have left commands.
            while self.shared.inbox.take(id).is_some() {}
        }
    }
}
