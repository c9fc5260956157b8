//! The commands of a client: those that wait to be sent, and those that wait for their answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Io, LazyTimer, Reactor, Reason, Time};

use super::ClientStats;
use crate::link::{Cause, Down, Link, Role};
use crate::{Command, Error, Protocol, ProtocolError, ServerError, Value};

/// What to do with an answer.
pub(super) enum Answer {
    /// Call back, from the tick queue.
    Call(Callback),
    /// Settle a promise or a reply, which calls back from its own queue.
    Settle(Box<dyn FnOnce(Result<Value, Error>)>),
    Drop,
}

type Callback = Box<dyn FnOnce(&mut Reactor, Result<Value, Error>)>;

struct Request {
    command: Command,
    limit: Duration,
    deadline: Time,
    /// How many replies are missing. A transaction has several; the last one is its answer.
    replies: usize,
    /// The first error among the replies before the last.
    error: Option<ServerError>,
    /// `None` if it has got its answer, because it took too long. Its replies are still to come.
    answer: Option<Answer>,
}

/// The commands of a client. Nothing here is borrowed while code of others runs.
#[derive(Default)]
pub(crate) struct Requests {
    queues: RefCell<Queues>,
    /// Callbacks and their answers. There is a tick for each.
    answered: RefCell<VecDeque<(Callback, Result<Value, Error>)>>,
}

#[derive(Default)]
struct Queues {
    /// Not sent yet.
    waiting: VecDeque<Request>,
    waiting_bytes: usize,
    /// Sent, in order.
    sent: VecDeque<Request>,
    timer: LazyTimer,
    stats: ClientStats,
    /// Memory to pack a command in.
    scratch: Vec<u8>,
}

type Commands = Rc<Link<Requests>>;

/// Sends a command, or queues it until there is a connection.
pub(super) fn start(link: &Commands, reactor: &mut Reactor, command: Command, replies: usize, answer: Answer) {
    match command.misplaced() {
        Some(instead) => fail(link, reactor, answer, Error::Misplaced { command: command.name(), instead }),
        None => start_unchecked(link, reactor, command, replies, answer),
    }
}

pub(super) fn start_unchecked(
    link: &Commands,
    reactor: &mut Reactor,
    command: Command,
    replies: usize,
    answer: Answer,
) {
    let name = command.name();
    if link.is_closed() {
        return fail(link, reactor, answer, Error::Closed { command: name });
    }
    let limit = command.limit.unwrap_or(link.options.time_limit);
    let deadline = reactor.clock() + limit;
    let mut queues = link.role.queues.borrow_mut();
    let mut io = link.ready_connection().and_then(|id| reactor.connection(id));
    let waiting = queues.waiting.len() + queues.sent.len() + link.role.answered.borrow().len();
    let bytes = command.len() + queues.waiting_bytes + io.as_mut().map_or(0, Io::queued);
    let refusal = if waiting >= link.options.in_flight {
        Some(Error::Busy { command: name, waiting, most: link.options.in_flight })
    } else if bytes > link.options.queued_bytes {
        Some(Error::TooLarge { command: name, bytes, most: link.options.queued_bytes })
    } else {
        None
    };
    if let Some(error) = refusal {
        queues.stats.refused += 1;
        drop(queues);
        return fail(link, reactor, answer, error);
    }
    let request = Request { command, limit, deadline, replies, error: None, answer: Some(answer) };
    queues.waiting_bytes += request.command.len();
    queues.waiting.push_back(request);
    if let Some(io) = &mut io {
        queues.send(io);
    }
    queues.arm(link, reactor, deadline);
    drop(queues);
    if link.is_resting() {
        link.connect(reactor);
    }
}

/// Answers a command with an error.
pub(super) fn fail(link: &Commands, reactor: &mut Reactor, answer: Answer, error: Error) {
    give(link, reactor, answer, Err(error));
}

/// Passes an answer on. Nothing may be borrowed.
fn give(link: &Commands, reactor: &mut Reactor, answer: Answer, result: Result<Value, Error>) {
    match answer {
        Answer::Settle(settle) => settle(result),
        Answer::Call(callback) => {
            link.role.answered.borrow_mut().push_back((callback, result));
            let link = link.clone();
            reactor.next_tick(move |reactor| {
                let answered = link.role.answered.borrow_mut().pop_front();
                if let Some((callback, result)) = answered {
                    callback(reactor, result);
                }
            });
        }
        Answer::Drop => {
            if let Err(error) = result {
                tracing::debug!(%error, "a command failed whose answer does not matter");
            }
        }
    }
}

pub(super) fn stats(link: &Commands) -> ClientStats {
    let (queues, counts) = (link.role.queues.borrow(), link.counts());
    ClientStats {
        connected: link.ready_connection().is_some(),
        connects: counts.connects,
        outages: counts.outages,
        in_flight: queues.waiting.len() + queues.sent.len() + link.role.answered.borrow().len(),
        ..queues.stats
    }
}

impl Queues {
    /// Sends everything that waits.
    fn send(&mut self, io: &mut Io<'_>) {
        while let Some(mut request) = self.waiting.pop_front() {
            self.waiting_bytes -= request.command.len();
            self.scratch.clear();
            request.command.write_to(&mut self.scratch);
            // If this fails, the connection is closing. The request then learns from its end.
            let _ = io.send(&self.scratch);
            if self.scratch.capacity() > SCRATCH {
                self.scratch = Vec::new();
            }
            if !request.command.idempotent {
                request.command.forget_arguments();
            }
            self.stats.sent += 1;
            self.sent.push_back(request);
        }
    }

    /// Makes the timer fire by this time.
    fn arm(&mut self, link: &Commands, reactor: &mut Reactor, deadline: Time) {
        let link = link.clone();
        self.timer.arm(reactor, deadline, |reactor, at| reactor.at(at, move |reactor| expire(&link, reactor)));
    }

    /// Takes the answers of all requests whose time is up.
    fn take_late(&mut self, now: Time, reason: &std::sync::Arc<str>) -> Vec<(Answer, Error)> {
        let mut late = Vec::new();
        let mut bytes = self.waiting_bytes;
        self.waiting.retain_mut(|request| {
            if request.deadline > now {
                return true;
            }
            bytes -= request.command.len();
            let (command, limit) = (request.command.name(), request.limit);
            let error = Error::Unavailable { command, limit, reason: reason.clone() };
            late.extend(request.answer.take().map(|answer| (answer, error)));
            false
        });
        self.waiting_bytes = bytes;
        for request in self.sent.iter_mut().filter(|request| request.deadline <= now) {
            let error = Error::TimedOut { command: request.command.name(), limit: request.limit };
            late.extend(request.answer.take().map(|answer| (answer, error)));
            // It is not sent again.
            request.command.idempotent = false;
        }
        self.stats.timed_out += late.len() as u64;
        late
    }
}

/// More memory than this for packing commands is returned.
const SCRATCH: usize = 64 << 10;

/// Handles the requests whose time is up, and gives up a connection on which nothing arrives.
fn expire(link: &Commands, reactor: &mut Reactor) {
    let now = reactor.clock();
    let reason = link.last_reason();
    let mut queues = link.role.queues.borrow_mut();
    queues.timer.fired();
    let late = queues.take_late(now, &reason);
    let silent_at = link.received_at() + link.silence();
    let overdue = queues.sent.front().is_some_and(|request| request.answer.is_none());
    let dead = overdue && silent_at <= now;
    let open = queues.waiting.iter().chain(&queues.sent).filter(|request| request.answer.is_some());
    let mut next = open.map(|request| request.deadline).min();
    if overdue && !dead {
        next = Some(next.map_or(silent_at, |next| next.min(silent_at)));
    }
    if let Some(next) = next {
        queues.arm(link, reactor, next);
    }
    drop(queues);
    for (answer, error) in late {
        fail(link, reactor, answer, error);
    }
    if dead {
        link.give_up(
            reactor,
            format!("the server has sent nothing for {:?}, and an answer is overdue", link.silence()),
        );
    }
}

impl Role for Requests {
    fn ready(link: &Commands, io: &mut Io<'_>, _: Protocol) {
        link.role.queues.borrow_mut().send(io);
    }

    fn value(link: &Commands, io: &mut Io<'_>, value: Value) -> Result<(), ProtocolError> {
        let mut queues = link.role.queues.borrow_mut();
        if let Value::Push(_) = value {
            queues.stats.pushed += 1;
            return Ok(());
        }
        let request = queues.sent.front_mut().ok_or(ProtocolError::Unasked)?;
        if request.replies > 1 {
            request.replies -= 1;
            if let Value::Error(error) = value {
                request.error.get_or_insert(error);
            }
            return Ok(());
        }
        let Some(Request { answer, error, .. }) = queues.sent.pop_front() else { return Ok(()) };
        queues.stats.answered += 1;
        let result = match value {
            // The error that was first is the cause of the last one.
            Value::Error(last) => Err(Error::Server(error.unwrap_or(last))),
            value => Ok(value),
        };
        queues.stats.server_errors += u64::from(result.is_err());
        drop(queues);
        let demoted =
            link.has_sentinels() && matches!(&result, Err(Error::Server(error)) if error.code() == "READONLY");
        if let Some(answer) = answer {
            give(link, io.reactor(), answer, result);
        }
        if demoted {
            io.close_with(Reason::layer("the server is no longer the master"));
        }
        Ok(())
    }

    fn down(link: &Commands, reactor: &mut Reactor, down: &Down) {
        let mut queues = link.role.queues.borrow_mut();
        let mut failed = Vec::new();
        let closed = matches!(down.cause, Cause::Closed);
        for mut request in std::mem::take(&mut queues.sent).into_iter().rev() {
            let command = request.command.name();
            if request.command.idempotent && !closed {
                request.error = None;
                queues.waiting_bytes += request.command.len();
                queues.waiting.push_front(request);
                continue;
            }
            let error = match &down.cause {
                Cause::Nonsense(error) => Error::Protocol { command, error: *error },
                _ => Error::Interrupted { command, reason: down.reason.clone() },
            };
            failed.extend(request.answer.map(|answer| (answer, error)));
        }
        // In the order in which they were sent.
        failed.reverse();
        queues.stats.interrupted += failed.len() as u64;
        if let Cause::Refused(_) | Cause::Closed = &down.cause {
            queues.waiting_bytes = 0;
            for request in std::mem::take(&mut queues.waiting) {
                let command = request.command.name();
                let error = match &down.cause {
                    Cause::Refused(error) => Error::Refused { command, error: error.clone() },
                    _ => Error::Closed { command },
                };
                failed.extend(request.answer.map(|answer| (answer, error)));
            }
        }
        if closed {
            queues.timer.cancel(reactor);
        }
        drop(queues);
        for (answer, error) in failed {
            fail(link, reactor, answer, error);
        }
    }

    fn is_idle(&self) -> bool {
        let queues = self.queues.borrow();
        queues.waiting.is_empty() && queues.sent.is_empty()
    }
}
