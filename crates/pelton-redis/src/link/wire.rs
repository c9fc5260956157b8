//! One connection of a link.

use std::rc::Rc;

use pelton::{Chunk, Connection, Io, Reactor, Reason};

use super::greeting::{Greeting, Progress};
use super::{Cause, Link, Role};
use crate::{Parser, ProtocolError, Value};

pub(super) struct Wire<R> {
    link: Rc<Link<R>>,
    attempt: u64,
    parser: Parser,
    /// `None` once the connection is ready.
    greeting: Option<Greeting>,
    /// Why this side ends the connection.
    cause: Cause,
}

impl<R: Role> Wire<R> {
    pub(super) fn new(link: Rc<Link<R>>, attempt: u64) -> Wire<R> {
        let parser = Parser::new(link.options.limits);
        let greeting = Some(Greeting::new(&link.options));
        Wire { link, attempt, parser, greeting, cause: Cause::Outage }
    }

    fn greet(&mut self, io: &mut Io<'_>, progress: Progress) {
        match progress {
            Progress::Send(command) => {
                let mut bytes = Vec::new();
                command.write_to(&mut bytes);
                // If it fails, the connection is closing, which `closed` reports.
                let _ = io.send(&bytes);
            }
            Progress::Ready(protocol) => {
                self.greeting = None;
                let link = self.link.clone();
                link.is_ready(io, protocol);
            }
            Progress::Refused(error) => {
                let reason = Reason::layer(format!("the server refuses the connection: {error}"));
                self.cause = Cause::Refused(error);
                io.close_with(reason);
            }
            Progress::NotYet(error) => io.close_with(Reason::layer(format!("the server is not ready: {error}"))),
            Progress::Nonsense => self.fail(io, ProtocolError::BadGreeting),
        }
    }

    fn value(&mut self, io: &mut Io<'_>, value: Value) -> Result<(), ProtocolError> {
        match &mut self.greeting {
            Some(greeting) => {
                let progress = greeting.answered(value, &self.link.options);
                self.greet(io, progress);
                Ok(())
            }
            None => R::value(&self.link, io, value),
        }
    }

    fn fail(&mut self, io: &mut Io<'_>, error: ProtocolError) {
        self.cause = Cause::Nonsense(error);
        io.close_with(Reason::layer(error));
    }

    /// On a draining loop, closes the connection if nothing waits for the server.
    fn rest_if_idle(&self, io: &mut Io<'_>) {
        if io.reactor().stopping() && self.link.role.is_idle() {
            self.link.rest(io);
        }
    }
}

impl<R: Role> Connection for Wire<R> {
    fn opened(&mut self, io: &mut Io<'_>) {
        if let Some(greeting) = &mut self.greeting {
            let progress = greeting.begin(&self.link.options);
            self.greet(io, progress);
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.link.state.borrow_mut().received_at = io.reactor().now();
        let mut input = &chunk[..];
        loop {
            match self.parser.parse(&mut input) {
                Ok(None) => break,
                Ok(Some(value)) => {
                    if let Err(error) = self.value(io, value) {
                        return self.fail(io, error);
                    }
                }
                Err(error) => return self.fail(io, error),
            }
            if !io.is_open() {
                return;
            }
        }
        self.rest_if_idle(io);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        self.rest_if_idle(io);
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        if let Reason::HandedOver = reason {
            return;
        }
        let cause = std::mem::replace(&mut self.cause, Cause::Outage);
        self.link.is_over(reactor, self.attempt, &reason.to_string(), cause);
    }
}
