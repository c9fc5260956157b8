//! A connection with several requests in flight, which the HTTP client does not offer.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use pelton::{Chunk, Connection, Io, Reactor, Reason, Time, TimerId};
use pelton_http::wire::responses::{Finished, Malformed, Responses};

use super::load::Load;

pub struct Pipelined {
    load: Rc<Load>,
    responses: Responses,
    /// Requests waiting for their responses.
    waiting: VecDeque<Waiting>,
    /// Checks whether the oldest of them has timed out. Set when the first request is sent, not for each request.
    timer: Option<TimerId>,
    opened: bool,
    /// The connection reported itself free because it had nothing to send.
    is_free: bool,
    /// No more requests are sent on this connection.
    last: bool,
    /// The server announced that its last response closes the connection.
    server_closes: bool,
    /// The server sent something that is not a valid response.
    malformed: Option<Malformed>,
    timed_out: bool,
}

/// A request waiting for its response.
struct Waiting {
    /// When it was due.
    due: Instant,
    /// Deadline for its complete response.
    deadline: Time,
}

impl Pipelined {
    pub fn new(load: Rc<Load>) -> Pipelined {
        Pipelined {
            load,
            responses: Responses::default(),
            waiting: VecDeque::new(),
            timer: None,
            opened: false,
            is_free: false,
            last: false,
            server_closes: false,
            malformed: None,
            timed_out: false,
        }
    }

    /// Sends requests until the pipeline is full.
    pub fn send_more(&mut self, io: &mut Io<'_>) {
        self.is_free = false;
        if self.last || !self.opened {
            return;
        }
        while self.waiting.len() < self.load.plan.pipeline {
            let Some(due) = self.load.take() else {
                if !std::mem::replace(&mut self.is_free, true) {
                    self.load.is_free(io.id());
                }
                return;
            };
            let deadline = io.reactor().now() + self.load.plan.timeout;
            self.waiting.push_back(Waiting { due, deadline });
            self.arm(io);
            // Sending fails only on a connection that has ended; `closed` will report that.
            let _ = io.send(&self.load.plan.request);
        }
    }

    /// Sets the timer to the deadline of the oldest request.
    fn arm(&mut self, io: &mut Io<'_>) {
        if self.timer.is_some() {
            return;
        }
        let Some(first) = self.waiting.front() else { return };
        let id = io.id();
        let look = move |reactor: &mut Reactor| {
            reactor.visit(id, |client: &mut Pipelined, io| client.look_at_time(io));
        };
        self.timer = Some(io.reactor().at(first.deadline, look));
    }

    /// Fails the request if its response is not complete by the deadline, however much of it has arrived.
    fn look_at_time(&mut self, io: &mut Io<'_>) {
        self.timer = None;
        let now = io.reactor().now();
        if self.waiting.front().is_some_and(|first| first.deadline <= now) {
            self.timed_out = true;
            io.close();
        } else {
            self.arm(io);
        }
    }

    fn finished(&mut self, Finished { status, keep_alive, body }: Finished) {
        let Some(Waiting { due, .. }) = self.waiting.pop_front() else { return };
        self.load.answered(status, body, due);
        self.server_closes |= !keep_alive;
        self.last |= !keep_alive;
    }

    fn read(&mut self, mut input: &[u8]) -> Result<(), Malformed> {
        while !input.is_empty() {
            if self.waiting.is_empty() {
                return Err(Malformed("no request was waiting for it"));
            }
            let (used, finished) = self.responses.advance(self.load.plan.to, input)?;
            input = &input[used..];
            if let Some(finished) = finished {
                self.finished(finished);
                if !finished.keep_alive {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Connection for Pipelined {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.opened = true;
        self.load.is_reached();
        self.send_more(io);
        if self.load.is_over() {
            io.close();
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.load.tally.borrow_mut().received_bytes += chunk.len() as u64;
        if let Err(malformed) = self.read(&chunk) {
            self.malformed = Some(malformed);
            return io.close();
        }
        drop(chunk);
        if self.server_closes || (self.last && self.waiting.is_empty()) {
            io.close();
        } else if !self.is_free {
            self.send_more(io);
        }
        self.load.end_if_done(io.reactor());
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        if let Some(finished) = self.responses.end() {
            self.finished(finished);
        }
        io.close();
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let load = self.load.clone();
        if let Some(timer) = self.timer.take() {
            reactor.cancel(timer);
        }
        if !self.opened {
            load.connecting_failed(reactor, &reason.to_string());
            return load.end_if_done(reactor);
        }
        let unanswered = self.waiting.len() as u64;
        if let Some(Malformed(why)) = self.malformed {
            // Bytes after the last response belong to no request, but are still an error.
            load.failed(unanswered, |_, _| {});
            let mut tally = load.tally.borrow_mut();
            tally.errors.malformed += unanswered.max(1);
            tally.first_fault.get_or_insert_with(|| format!("a response was malformed: {why}"));
            drop(tally);
        } else if self.timed_out {
            load.failed(unanswered, |tally, count| tally.errors.timeout += count);
        } else if self.server_closes && !load.is_over() {
            self.waiting.drain(..).for_each(|request| load.send_again(request.due));
        } else {
            load.failed(unanswered, |tally, count| {
                tally.errors.reset += count;
                tally.first_fault.get_or_insert_with(|| format!("a connection was lost: {reason}"));
            });
        }
        load.connect(reactor);
        load.end_if_done(reactor);
    }
}
