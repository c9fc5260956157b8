//! Runs a codec and a protocol. The loop and the pool share this.

use super::mailbox::Letter;
use super::pending::{Answer, Pending};
use super::{Peer, Protocol, Replies};
use crate::messages::codec::Buffer;
use crate::{Codec, FrameError, Reactor, SendError};

/// Encoded replies are flushed when they reach this many bytes, so that a peer that does not read is noticed before all
/// replies are in memory.
pub(super) const BLOCK: usize = 64 * 1024;

/// The destination of encoded replies.
pub(super) trait Sink {
    /// Returns the encoded replies that have not been flushed.
    fn block(&mut self) -> &mut Vec<u8>;
    /// Flushes the encoded replies.
    fn flush_block(&mut self) -> Result<(), Stop>;
    /// Returns the reactor, if this is its thread.
    fn reactor(&mut self) -> Option<&mut Reactor>;
}

/// Why processing has stopped.
pub(super) enum Stop {
    /// The conversation is over.
    Done,
    Frame(FrameError),
    /// A slot was dropped without an answer.
    Unanswered,
    Unsent(SendError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Stop {
        Stop::Frame(error)
    }
}

/// Why the input ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// The peer has finished sending.
    PeerFinished,
    /// This side wants to close.
    Finish,
}

/// The result of one processing step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Processed,
    /// No message is complete.
    Empty,
    /// Processing is blocked for now.
    Blocked,
}

pub(super) struct Dialogue<C: Codec, P: Protocol<Message = C::Message>> {
    codec: C,
    pub(super) protocol: P,
    /// Replies that wait for an earlier one.
    pending: Pending<C::Message>,
    /// `None` until [`connect`](Dialogue::connect) is called.
    peer: Option<Peer<C::Message>>,
    paused: bool,
    last: Option<Last>,
    /// Takes effect when no replies are pending. Nothing more is processed.
    ending: Option<Stop>,
}

impl<C: Codec, P: Protocol<Message = C::Message>> Dialogue<C, P> {
    pub(super) fn new(codec: C, protocol: P) -> Dialogue<C, P> {
        Dialogue { codec, protocol, pending: Pending::new(), peer: None, paused: false, last: None, ending: None }
    }

    pub(super) fn into_parts(self) -> (C, P) {
        (self.codec, self.protocol)
    }

    /// Sets the peer. Nothing is processed before this.
    pub(super) fn connect(&mut self, peer: Peer<C::Message>) {
        self.peer = Some(peer);
    }

    pub(super) fn opened(&mut self, sink: &mut impl Sink) -> Result<(), Stop> {
        let Some(peer) = self.peer.clone() else { return Ok(()) };
        self.call(sink, |protocol, replies| protocol.opened(&peer, replies))
    }

    /// Marks the end of the input.
    pub(super) fn ends_with(&mut self, last: Last) {
        match last {
            Last::PeerFinished => _ = self.last.get_or_insert(last),
            Last::Finish => self.last = Some(last),
        }
    }

    /// Returns whether further input is ignored.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Returns whether received messages have to wait.
    pub(super) fn is_blocked(&self) -> bool {
        let full = || self.pending.len() >= self.protocol.pending_limit().max(1);
        self.ending.is_none() && (self.paused || (!self.pending.is_empty() && full()))
    }

    /// Processes the next message in `buffer`.
    pub(super) fn step(&mut self, buffer: &mut Buffer, sink: &mut impl Sink) -> Result<Step, Stop> {
        if self.is_blocked() {
            if self.paused && self.last == Some(Last::Finish) {
                self.end(Stop::Done)?;
            }
            return Ok(Step::Blocked);
        }
        if self.ending.is_some() {
            return Ok(Step::Blocked);
        }
        match self.codec.decode(buffer) {
            Ok(Some(message)) => {
                self.process(message, sink)?;
                Ok(Step::Processed)
            }
            Ok(None) => {
                self.end_of_input(buffer, sink)?;
                Ok(Step::Empty)
            }
            Err(error) => {
                self.end(Stop::Frame(error))?;
                Ok(Step::Blocked)
            }
        }
    }

    /// Handles the end of the input, after everything received has been processed.
    fn end_of_input(&mut self, buffer: &mut Buffer, sink: &mut impl Sink) -> Result<(), Stop> {
        match self.last {
            None => Ok(()),
            Some(Last::Finish) => self.end(Stop::Done),
            Some(Last::PeerFinished) => match self.codec.finished(buffer) {
                Ok(None) => self.end(Stop::Done),
                Ok(Some(message)) => {
                    self.process(message, sink)?;
                    self.end(Stop::Done)
                }
                Err(error) => self.end(Stop::Frame(error)),
            },
        }
    }

    fn process(&mut self, message: C::Message, sink: &mut impl Sink) -> Result<(), Stop> {
        self.call(sink, |protocol, replies| protocol.process(message, replies))
    }

    /// Calls the protocol, and sends or queues its replies.
    fn call(
        &mut self,
        sink: &mut impl Sink,
        act: impl FnOnce(&mut P, &mut Replies<'_, C::Message>),
    ) -> Result<(), Stop> {
        let Some(peer) = &self.peer else { return Ok(()) };
        let mut replies = Replies::connected(&mut self.pending, peer, sink.reactor());
        act(&mut self.protocol, &mut replies);
        let (batch, pauses) = replies.into_batch();
        self.paused |= pauses;
        if self.pending.is_empty() {
            batch.try_for_each(|message| encode(&mut self.codec, &message, sink))?;
        } else {
            batch.queue_in(&mut self.pending);
            // Replies before the first unanswered slot need not wait.
            self.send_ready(sink)?;
        }
        if self.protocol.should_close() { self.end(Stop::Done) } else { Ok(()) }
    }

    /// Processes letters from other code, and sends the replies that were waiting for them.
    pub(super) fn deliver(&mut self, letters: Vec<Letter<C::Message>>, sink: &mut impl Sink) -> Result<(), Stop> {
        for letter in letters {
            match letter {
                Letter::Push(message) => encode(&mut self.codec, &message, sink)?,
                Letter::Answer(number, answer) => self.pending.answer(number, answer),
                Letter::Pause => self.paused = true,
                Letter::Resume => self.paused = false,
            }
        }
        self.send_ready(sink)?;
        if self.pending.is_empty() { self.ending.take().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// Sends the answered replies at the front of the queue.
    fn send_ready(&mut self, sink: &mut impl Sink) -> Result<(), Stop> {
        while let Some(answer) = self.pending.next() {
            match answer {
                Answer::One(message) => encode(&mut self.codec, &message, sink)?,
                Answer::Many(messages) => {
                    messages.iter().try_for_each(|message| encode(&mut self.codec, message, sink))?
                }
                Answer::Dropped => return Err(Stop::Unanswered),
            }
        }
        Ok(())
    }

    /// Processes nothing more, and stops once no replies are pending.
    fn end(&mut self, stop: Stop) -> Result<(), Stop> {
        if self.pending.is_empty() {
            return Err(stop);
        }
        self.ending.get_or_insert(stop);
        Ok(())
    }
}

fn encode<C: Codec>(codec: &mut C, message: &C::Message, sink: &mut impl Sink) -> Result<(), Stop> {
    codec.encode(message, sink.block())?;
    if sink.block().len() >= BLOCK { sink.flush_block() } else { Ok(()) }
}
