//! A connection that speaks HTTP.
//!
//! This file is what the reactor tells a connection, and what the connection does after each of these: [`go_on`](HttpConnection::go_on).
//! Next to it, `reading.rs` takes requests out of what comes in and has them handled, `receiving.rs` reads their bodies; `commands.rs`
//! is what it is told by those who answer, `answering.rs` sends the answers in order, `streaming.rs` those that come bit by bit, `head.rs`
//! decides what their heads say; `busy.rs` is what only connections with something to do
//! have, `out.rs` gathers what is written, `deadlines.rs` is what may take how long, `upgrade.rs` is what comes after HTTP.

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

use pelton::{Chunk, Connection, ConnectionId, Io, Reactor, Reason, Time, TimerId};

pub(crate) use busy::Busy;
use deadlines::Wait;
use out::Out;

use crate::server::Shared;
use crate::{BodyError, BodyEvent};

/// Serves HTTP on one connection. Made by [`Server::connection`](crate::Server::connection).
///
/// There may be very many of these with nothing to do, so what is needed only while there is a request is
/// elsewhere.
pub struct HttpConnection {
    shared: Rc<Shared>,
    busy: Option<Box<Busy>>,
    id: Option<ConnectionId>,
    /// When what is [waited](Wait) for has to have happened. The timer may be earlier: it looks here when it fires.
    deadline: Time,
    timer: Option<(TimerId, Time)>,
    /// How many requests there have been.
    sequence: u32,
    phase: Phase,
    wait: Wait,
    /// No request is taken after the one at hand.
    last: bool,
    /// The reactor drains: the last answer says that the connection is closed.
    drains: bool,
    /// The client may still be sending when the connection is closed.
    lingers: bool,
    /// Reading is paused.
    paused: bool,
    /// It counts among the server's connections.
    counted: bool,
}

/// What comes next from the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The head of a request.
    Head,
    /// The body of the latest request.
    Body,
    /// Nobody knows: the latest request may be answered by speaking another protocol.
    Hold,
    /// Nothing that matters. The connection is closed when everything has been answered.
    Done,
    /// Another protocol: the connection is handed over when the callback at hand returns.
    Upgraded,
}

impl HttpConnection {
    pub(crate) fn new(shared: Rc<Shared>) -> HttpConnection {
        HttpConnection {
            shared,
            busy: None,
            id: None,
            deadline: Time::MAX,
            timer: None,
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

    /// What is needed while there is something to do.
    fn busy(&mut self) -> &mut Busy {
        self.busy.get_or_insert_with(|| self.shared.take_books())
    }

    /// How many requests wait for their answers.
    fn waiting(&self) -> usize {
        self.busy.as_ref().map_or(0, |busy| busy.exchanges.len())
    }

    /// Does all that can be done now: answers what has been answered, takes on what has come in and was held back, sends, and
    /// decides what is waited for.
    fn go_on(&mut self, io: &mut Io<'_>, mut out: Out) {
        while self.busy.is_some() {
            self.apply_commands(io, &mut out);
            self.answer(io, &mut out);
            if !self.process_kept(io, &mut out) {
                break;
            }
        }
        self.ask_for_body(&mut out);
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

    /// Closes the connection when everything has been sent.
    fn close(&mut self, io: &mut Io<'_>) {
        if self.lingers {
            // If it were closed now, what the client sends would reset it, and might take back what it has not read yet.
            io.finish();
        } else {
            io.close_after_writing();
        }
    }

    /// Reads on, or not, according to whether what is there already can be dealt with.
    fn set_paused(&mut self, io: &mut Io<'_>) {
        // As long as nothing has come in that has to wait, reading goes on: that is how one learns that a client has gone.
        let pause = self.busy.as_ref().is_some_and(|busy| busy.has_input()) && self.is_held_up();
        if pause != self.paused {
            self.paused = pause;
            if pause { io.pause() } else { io.resume() }
        }
    }

    /// What was being done for the client is in vain.
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
            // Its first request may be on its way.
            io.count_as_used();
            self.set_deadline(io);
        } else {
            let mut out = Out::new(&self.shared);
            self.turn_away(io, &mut out);
            self.go_on(io, out);
            if let Some(mut oldest) = self.shared.linger(io.id()).and_then(|id| io.reactor().connection(id)) {
                oldest.close();
            }
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let mut out = Out::new(&self.shared);
        if let Some(busy) = self.busy.as_mut().filter(|busy| busy.has_input()) {
            busy.keep(&chunk);
            // The loan goes back before anything is done.
            drop(chunk);
            self.process_kept(io, &mut out);
        } else {
            let used = self.process(io, &mut out, &chunk);
            if used < chunk.len() {
                self.busy().keep(&chunk[used..]);
            }
        }
        self.go_on(io, out);
    }

    fn drained(&mut self, io: &mut Io<'_>) {
        if let Some(busy) = &mut self.busy {
            busy.choked = false;
        }
        let out = Out::new(&self.shared);
        self.go_on(io, out);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        // Whatever has been asked for is still answered.
        self.busy().finished = true;
        let mut out = Out::new(&self.shared);
        self.process_kept(io, &mut out);
        self.go_on(io, out);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        // What has begun is finished; where nothing has, a request may be on its way.
        (self.last, self.drains) = (true, true);
        let waits = self.phase == Phase::Head && !self.busy.as_ref().is_some_and(|busy| busy.has_input());
        if waits && (self.waiting() > 0 || self.shared.settings.drain_idle.is_zero()) {
            self.phase = Phase::Done;
        }
        let out = Out::new(&self.shared);
        self.go_on(io, out);
    }

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        if let Some((timer, _)) = self.timer.take() {
            reactor.cancel(timer);
        }
        match self.id {
            Some(id) if std::mem::take(&mut self.counted) => self.shared.dismiss(id),
            Some(id) => self.shared.lingered(id),
            None => {}
        }
        self.give_up(reactor);
        if let Some(id) = self.id {
            // A handler that panicked may have sent some.
            while self.shared.inbox.take(id).is_some() {}
        }
    }
}
