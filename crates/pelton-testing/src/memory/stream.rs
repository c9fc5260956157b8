//! Streams of the engine, with their operations in flight.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use pelton::Chunk;
use pelton_os::{Event, Outbox, Sending, Token};

use super::Random;
use super::switchboard::End;
use crate::Duplex;

/// Pending events, each with the number of turns until it is due.
pub(super) type Outcomes = VecDeque<(usize, Event)>;

/// The maximum number of chunks that a source may have received and not yet delivered.
const PIECES: usize = 4;

/// A connection that the engine holds.
pub(super) struct Stream {
    pub(super) end: End,
    pub(super) receiving: bool,
    /// The incoming direction has ended.
    ended: bool,
    pub(super) sending: Option<InFlight>,
    /// Ends the outgoing direction in this many turns.
    pub(super) finishing: Option<usize>,
}

/// An accepted send.
pub(super) struct InFlight {
    outbox: Outbox,
    /// It continues in this many turns.
    turns: usize,
    /// It completes when there is room for more, not when the outbox is empty.
    until_room: bool,
}

impl InFlight {
    /// Whether it will make progress by itself. A send that waits for room does not: the other side wakes it.
    fn is_under_way(&self, end: &End) -> bool {
        self.turns > 0 || end.has_room() || self.is_over(end)
    }

    pub(super) fn is_over(&self, end: &End) -> bool {
        self.outbox.is_empty() && self.turns == 0 && (!self.until_room || end.has_room())
    }
}

impl Stream {
    pub(super) fn new(end: End) -> Stream {
        Stream { end, receiving: false, ended: false, sending: None, finishing: None }
    }

    /// Whether it will make progress by itself.
    pub(super) fn is_under_way(&self) -> bool {
        let sending = self.sending.as_ref();
        self.finishing.is_some() || sending.is_some_and(|sending| sending.is_under_way(&self.end))
    }

    /// The number of bytes accepted that the other side has not read.
    pub(super) fn undelivered(&self) -> u64 {
        self.sending.as_ref().map_or(0, |sending| sending.outbox.len()) + self.end.on_its_way()
    }

    /// Sends a little of the outbox at once, or accepts some or all of it for later.
    pub(super) fn send(&mut self, outbox: &mut Outbox, random: &mut Random) -> io::Result<Sending> {
        let mut in_flight = InFlight { outbox: Outbox::default(), turns: random.below(4), until_room: false };
        match random.below(4) {
            0 => {
                for _ in 0..3 {
                    trickle(&self.end, outbox, random.size())?;
                }
                if outbox.is_empty() {
                    return Ok(Sending::Idle);
                }
                in_flight.until_room = true;
            }
            1 if outbox.next_file().is_none() => {
                let mut slices = [IoSlice::new(&[])];
                outbox.gather(&mut slices);
                let count = random.size().min(slices[0].len());
                in_flight.outbox.push_copy(&slices[0][..count]);
                outbox.advance(count);
            }
            _ => in_flight.outbox = outbox.take(),
        }
        let before = self.sending.replace(in_flight);
        assert!(before.is_none(), "sent again before the engine reported room");
        Ok(Sending::Busy)
    }

    /// Advances all operations.
    pub(super) fn operate(&mut self, token: Token, outcomes: &mut Outcomes, random: &mut Random) {
        if let Some(sending) = &mut self.sending {
            if sending.turns > 0 {
                sending.turns -= 1;
            } else if let Err(error) = trickle(&self.end, &mut sending.outbox, random.size()) {
                self.fail(token, error, outcomes);
            } else {
                sending.turns = random.below(3);
            }
        }
        self.finishing = match self.finishing {
            Some(0) => {
                self.end.finish();
                None
            }
            turns => turns.map(|turns| turns - 1),
        };
        while self.receiving && !self.ended && outcomes.len() < PIECES {
            let mut buffer = vec![0; random.size()];
            let event = match self.end.receive(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Ok(count @ 1..) => {
                    buffer.truncate(count);
                    Event::Received(token, Chunk::from(buffer))
                }
                outcome => {
                    self.ended = true;
                    Event::Ended(token, outcome.map(drop))
                }
            };
            outcomes.push_back((random.below(4), event));
            if random.one_in(2) {
                break;
            }
        }
    }

    /// Ends the stream after an accepted send has failed. Bytes received before are delivered first.
    fn fail(&mut self, token: Token, error: io::Error, outcomes: &mut Outcomes) {
        self.sending = None;
        if std::mem::replace(&mut self.ended, true) {
            return outcomes.push_back((0, Event::Ended(token, Err(error))));
        }
        let mut rest = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = self.end.receive(&mut buffer) {
            rest.extend_from_slice(&buffer[..count]);
        }
        if !rest.is_empty() {
            outcomes.push_back((0, Event::Received(token, Chunk::from(rest))));
        }
        outcomes.push_back((0, Event::Ended(token, Err(error))));
    }
}

/// Sends up to `most` bytes of the outbox. A lack of room is not an error.
fn trickle(end: &End, outbox: &mut Outbox, most: usize) -> io::Result<()> {
    let sent = if let Some(part) = outbox.next_file() {
        let mut buffer = vec![0; most.min(usize::try_from(part.len).unwrap())];
        match part.file.read_at(&mut buffer, part.offset)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short")),
            count => end.send(&buffer[..count]).map(|count| outbox.advance_file(count as u64)),
        }
    } else {
        let mut slices = [IoSlice::new(&[])];
        match outbox.gather(&mut slices) {
            0 => return Ok(()),
            _ => {
                let count = slices[0].len().min(most);
                end.send(&slices[0][..count]).map(|count| outbox.advance(count))
            }
        }
    };
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        outcome => outcome,
    }
}
