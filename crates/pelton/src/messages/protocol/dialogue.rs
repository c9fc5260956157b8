//! A codec and a protocol at work: what is the same on the loop and on a pool.

use super::line::{Answer, Line};
use super::mailbox::Letter;
use super::{Peer, Protocol, Replies};
use crate::messages::codec::Buffer;
use crate::{Codec, FrameError, Reactor, SendError};

/// Replies are handed on when they come to this many bytes, so that a connection whose peer does not read is noticed before
/// all its replies are in memory.
pub(super) const BLOCK: usize = 64 * 1024;

/// Where replies go once they are bytes.
pub(super) trait Sink {
    /// Encoded replies that have not been handed on.
    fn block(&mut self) -> &mut Vec<u8>;
    /// Hands on the block.
    fn hand_on(&mut self) -> Result<(), Stop>;
    /// The reactor, if this is its thread.
    fn reactor(&mut self) -> Option<&mut Reactor>;
}

/// Why nothing more is processed.
pub(super) enum Stop {
    /// All has been said.
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

/// What ends the input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// The other side has finished sending.
    PeerFinished,
    /// This side wants to close.
    Finish,
}

/// What came of looking for a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Processed,
    /// No message is complete.
    Empty,
    /// None may be processed now.
    HeldUp,
}

pub(super) struct Dialogue<C: Codec, P: Protocol<Message = C::Message>> {
    codec: C,
    pub(super) protocol: P,
    /// Replies that wait for an earlier one.
    line: Line<C::Message>,
    /// `None` until they [meet](Dialogue::meets).
    peer: Option<Peer<C::Message>>,
    paused: bool,
    last: Option<Last>,
    /// What happens when the line is empty. Nothing more is processed.
    ending: Option<Stop>,
}

impl<C: Codec, P: Protocol<Message = C::Message>> Dialogue<C, P> {
    pub(super) fn new(codec: C, protocol: P) -> Dialogue<C, P> {
        Dialogue { codec, protocol, line: Line::new(), peer: None, paused: false, last: None, ending: None }
    }

    pub(super) fn into_parts(self) -> (C, P) {
        (self.codec, self.protocol)
    }

    /// Nothing is processed before this.
    pub(super) fn meets(&mut self, peer: Peer<C::Message>) {
        self.peer = Some(peer);
    }

    pub(super) fn opened(&mut self, sink: &mut impl Sink) -> Result<(), Stop> {
        let Some(peer) = self.peer.clone() else { return Ok(()) };
        self.ask(sink, |protocol, replies| protocol.opened(&peer, replies))
    }

    /// No input comes after what is there.
    pub(super) fn ends_with(&mut self, last: Last) {
        match last {
            Last::PeerFinished => _ = self.last.get_or_insert(last),
            Last::Finish => self.last = Some(last),
        }
    }

    /// Whether input is of no interest any more.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether messages that are there have to wait.
    pub(super) fn is_held_up(&self) -> bool {
        let full = || self.line.len() >= self.protocol.pending_limit().max(1);
        self.ending.is_none() && (self.paused || (!self.line.is_empty() && full()))
    }

    /// Processes the next message in `buffer`.
    pub(super) fn step(&mut self, buffer: &mut Buffer, sink: &mut impl Sink) -> Result<Step, Stop> {
        if self.is_held_up() {
            if self.paused && self.last == Some(Last::Finish) {
                self.end(Stop::Done)?;
            }
            return Ok(Step::HeldUp);
        }
        if self.ending.is_some() {
            return Ok(Step::HeldUp);
        }
        match self.codec.decode(buffer) {
            Ok(Some(message)) => {
                self.process(message, sink)?;
                Ok(Step::Processed)
            }
            Ok(None) => {
                self.come_to_the_end(buffer, sink)?;
                Ok(Step::Empty)
            }
            Err(error) => {
                self.end(Stop::Frame(error))?;
                Ok(Step::HeldUp)
            }
        }
    }

    /// Everything that came in has been processed.
    fn come_to_the_end(&mut self, buffer: &mut Buffer, sink: &mut impl Sink) -> Result<(), Stop> {
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
        self.ask(sink, |protocol, replies| protocol.process(message, replies))
    }

    /// Lets the protocol act, and says what it has to say or puts that in line.
    fn ask(
        &mut self,
        sink: &mut impl Sink,
        act: impl FnOnce(&mut P, &mut Replies<'_, C::Message>),
    ) -> Result<(), Stop> {
        let Some(peer) = &self.peer else { return Ok(()) };
        let mut replies = Replies::connected(&mut self.line, peer, sink.reactor());
        act(&mut self.protocol, &mut replies);
        let (said, pauses) = replies.into_said();
        self.paused |= pauses;
        if self.line.is_empty() {
            said.try_for_each(|message| say(&mut self.codec, &message, sink))?;
        } else {
            said.line_up(&mut self.line);
            // What was said before the first open place need not wait.
            self.say_ready(sink)?;
        }
        if self.protocol.should_close() { self.end(Stop::Done) } else { Ok(()) }
    }

    /// Takes in what other code has for this connection, and says what waited for it.
    pub(super) fn deliver(&mut self, letters: Vec<Letter<C::Message>>, sink: &mut impl Sink) -> Result<(), Stop> {
        for letter in letters {
            match letter {
                Letter::Push(message) => say(&mut self.codec, &message, sink)?,
                Letter::Answer(place, answer) => self.line.answer(place, answer),
                Letter::Pause => self.paused = true,
                Letter::Resume => self.paused = false,
            }
        }
        self.say_ready(sink)?;
        if self.line.is_empty() { self.ending.take().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// Says the replies at the front of the line that are there.
    fn say_ready(&mut self, sink: &mut impl Sink) -> Result<(), Stop> {
        while let Some(answer) = self.line.next() {
            match answer {
                Answer::One(message) => say(&mut self.codec, &message, sink)?,
                Answer::Many(messages) => {
                    messages.iter().try_for_each(|message| say(&mut self.codec, message, sink))?
                }
                Answer::Dropped => return Err(Stop::Unanswered),
            }
        }
        Ok(())
    }

    /// Processes nothing more, and stops when the line is empty.
    fn end(&mut self, stop: Stop) -> Result<(), Stop> {
        if self.line.is_empty() {
            return Err(stop);
        }
        self.ending.get_or_insert(stop);
        Ok(())
    }
}

fn say<C: Codec>(codec: &mut C, message: &C::Message, sink: &mut impl Sink) -> Result<(), Stop> {
    codec.encode(message, sink.block())?;
    if sink.block().len() >= BLOCK { sink.hand_on() } else { Ok(()) }
}
