//! Applies the commands that handlers send to a connection.

use pelton::{Fault, Io};

use super::busy::{Answer, ResponseFraming, Streaming};
use super::out::Out;
use super::{HttpConnection, Phase, head, out};
use crate::Response;
use crate::exchange::{Command, Gone, SendState};

impl HttpConnection {
    /// Accepts a command outside the connection's own callbacks.
    pub(crate) fn tell(&mut self, io: &mut Io<'_>, sequence: u32, command: Command) -> Result<SendState, Gone> {
        self.shared.inbox.put((io.id(), sequence), command);
        self.apply_inbox(io)
    }

    /// Applies the command in the inbox outside the connection's own callbacks, and makes progress.
    pub(crate) fn apply_inbox(&mut self, io: &mut Io<'_>) -> Result<SendState, Gone> {
        let mut out = Out::new(&self.shared);
        let command = self.shared.inbox.take(io.id());
        let outcome = command.map_or(Ok(()), |(sequence, command)| self.apply(io, &mut out, sequence, command));
        self.advance(io, out);
        outcome.map(|()| if out::is_full(io) { SendState::Full } else { SendState::Ready })
    }

    /// Applies the commands that were sent while one of the connection's callbacks ran.
    #[inline(never)]
    pub(super) fn apply_commands(&mut self, io: &mut Io<'_>, out: &mut Out) {
        while let Some((sequence, command)) = self.shared.inbox.take(io.id()) {
            // The sender was told that the command is on its way. If it is too late, the next one fails.
            let _ = self.apply(io, out, sequence, command);
        }
    }

    fn apply(&mut self, io: &mut Io<'_>, out: &mut Out, sequence: u32, command: Command) -> Result<(), Gone> {
        if let Command::Read(reader, limit) = command {
            self.read_body(io, out, sequence, reader, limit);
            return Ok(());
        }
        let busy = self.busy.as_mut().ok_or(Gone)?;
        if let Command::Pause | Command::Resume = command {
            busy.body_of(sequence).ok_or(Gone)?.paused = matches!(command, Command::Pause);
            return Ok(());
        }
        if let Command::Discard = command {
            let body = busy.body_of(sequence).ok_or(Gone)?;
            body.discarded = true;
            let reader = body.reader.take();
            // User code is dropped outside of borrows.
            drop(reader);
            return Ok(());
        }
        let exchange = busy.exchange(sequence).ok_or(Gone)?;
        match (command, &mut exchange.answer) {
            (Command::Interim(_), Answer::Waiting) if exchange.facts.is_http_1_0 => {}
            (Command::Interim(bytes), Answer::Waiting) => exchange.interim.extend_from_slice(&bytes),
            (Command::Respond(response), answer @ Answer::Waiting) => *answer = Answer::Ready(Box::new(response)),
            (Command::Stream(mut response), answer @ Answer::Waiting) => {
                let mut streaming = Streaming::default();
                let first = response.take_content();
                if !first.is_empty() {
                    streaming.held.push_back(first);
                }
                streaming.head = Some(response);
                *answer = Answer::Streaming(Box::new(streaming));
            }
            (Command::Upgrade(response, handler), answer @ Answer::Waiting) => {
                if head::is_upgrade(&response, exchange.facts) {
                    *answer = Answer::Upgrade(Box::new((response, handler)));
                } else {
                    let message = format!("status {} cannot switch to another protocol", response.status());
                    io.reactor().report(Fault::new("http", message));
                    *answer = Answer::Ready(Box::new(Response::plain_status(500)));
                }
            }
            (Command::Dropped, answer @ Answer::Waiting) => {
                io.reactor().report(Fault::new("http", "request not answered, the client gets a 500"));
                *answer = Answer::Ready(Box::new(Response::plain_status(500)));
            }
            (Command::Data(data), Answer::Streaming(streaming)) if streaming.finished.is_none() => {
                if !data.is_empty() {
                    streaming.held.push_back(data);
                }
            }
            (Command::Finish(trailers), Answer::Streaming(streaming)) => streaming.finished = Some(trailers),
            (Command::WhenReady(callback), Answer::Streaming(streaming)) => streaming.when_ready = Some(callback),
            (Command::Abort, Answer::Streaming(streaming)) if streaming.finished.is_none() => {
                tracing::debug!("response body not completed");
                let ends_with_connection = streaming.framing == ResponseFraming::UntilClose;
                self.break_off(io, out);
                if ends_with_connection {
                    // An orderly end would look like the end of the body.
                    io.reset();
                }
            }
            (Command::OnGone(callback), _) => exchange.on_gone = Some(callback),
            _ => return Err(Gone),
        }
        Ok(())
    }

    /// Ends a response that cannot be completed: closing tells the client that it is truncated.
    pub(super) fn break_off(&mut self, io: &mut Io<'_>, out: &mut Out) {
        out.send(io);
        self.end(io);
        io.close_after_writing();
    }

    /// Ends the connection without answering further requests.
    pub(super) fn end(&mut self, io: &mut Io<'_>) {
        (self.phase, self.last) = (Phase::Done, true);
        self.give_up(io.reactor());
    }
}
