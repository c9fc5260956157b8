//! What a connection is told by those who answer its requests.

use pelton::{Fault, Io};

use super::busy::{Answer, Streaming};
use super::out::Out;
use super::{HttpConnection, Phase, head};
use crate::Response;
use crate::exchange::{Command, Gone};

impl HttpConnection {
    /// Does what was told to this connection while it ran.
    pub(super) fn apply_left(&mut self, io: &mut Io<'_>, out: &mut Out) {
        while let Some((sequence, command)) = self.shared.take_left(io.id()) {
            // Who is told too late finds out by asking.
            let _ = self.apply(io, out, sequence, command);
        }
    }

    pub(super) fn apply(
        &mut self,
        io: &mut Io<'_>,
        out: &mut Out,
        sequence: u32,
        command: Command,
    ) -> Result<(), Gone> {
        if let Command::Read(reader, limit) = command {
            self.read_body(io, out, sequence, reader, limit);
            return Ok(());
        }
        let busy = self.busy.as_mut().ok_or(Gone)?;
        if let Command::Pause | Command::Resume = command {
            busy.body_of(sequence).ok_or(Gone)?.paused = matches!(command, Command::Pause);
            return Ok(());
        }
        let exchange = busy.exchange(sequence).ok_or(Gone)?;
        match (command, &mut exchange.answer) {
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
                    let message = format!("status {} does not begin another protocol", response.status());
                    io.reactor().report(Fault::new("http", message));
                    *answer = Answer::Ready(Box::new(Response::plain_status(500)));
                }
            }
            (Command::Dropped, answer @ Answer::Waiting) => {
                io.reactor().report(Fault::new("http", "a request was not answered; the client gets a 500"));
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
                tracing::debug!("the body of a response is not completed");
                self.break_off(io, out);
            }
            (Command::OnGone(callback), _) => exchange.on_gone = Some(callback),
            _ => return Err(Gone),
        }
        Ok(())
    }

    /// What has been promised cannot be sent: closing tells the client so.
    pub(super) fn break_off(&mut self, io: &mut Io<'_>, out: &mut Out) {
        out.send(io);
        self.end(io);
        io.close_after_writing();
    }

    /// Nothing more is answered.
    pub(super) fn end(&mut self, io: &mut Io<'_>) {
        (self.phase, self.last) = (Phase::Done, true);
        self.give_up(io.reactor());
    }
}
