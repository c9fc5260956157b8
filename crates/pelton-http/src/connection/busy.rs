//! What only connections with something to do have.

use std::collections::VecDeque;

use pelton::Connection;

use crate::body::Reader;
use crate::exchange::Callback;
use crate::wire::{Chunked, Head, Scan};
use crate::{Content, Response};

/// Memory for input beyond this is given back when it is not needed any more.
const INPUT_KEPT: usize = 16 * 1024;

/// The books of a connection with something to do. They go from one to the next that needs them, with their memory.
#[derive(Default)]
pub(crate) struct Busy {
    /// What has come in and could not be dealt with yet, from `at` on.
    input: Vec<u8>,
    at: usize,
    /// How far the head at the beginning of the input has been looked at.
    pub(super) scan: Scan,
    /// The body of the latest request, while it comes in.
    pub(super) body: Option<Receiving>,
    /// Requests that are not answered in full, in order.
    pub(super) exchanges: VecDeque<Exchange>,
    /// What follows HTTP.
    pub(super) upgraded: Option<Box<dyn Connection>>,
    /// So much waits to be sent that nothing more is, before the connection has drained.
    pub(super) choked: bool,
    /// Others get their turn before it goes on.
    pub(super) yielded: bool,
    /// The client sends nothing more, but what it has sent is not dealt with yet.
    pub(super) finished: bool,
}

impl Busy {
    pub(super) fn has_input(&self) -> bool {
        self.at < self.input.len()
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Takes the input out, to be put back by [`put_input`](Busy::put_input).
    pub(super) fn take_input(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.input), std::mem::take(&mut self.at))
    }

    pub(super) fn put_input(&mut self, mut input: Vec<u8>, at: usize) {
        if at >= input.len() {
            input.clear();
            self.at = 0;
        } else if at > input.len() / 2 {
            input.drain(..at);
            self.at = 0;
        } else {
            self.at = at;
        }
        self.input = input;
    }

    pub(super) fn drop_input(&mut self) {
        self.input.clear();
        self.at = 0;
    }

    /// Whether there is anything in the books.
    pub(super) fn is_needed(&self) -> bool {
        self.has_input()
            || self.body.is_some()
            || !self.exchanges.is_empty()
            || self.upgraded.is_some()
            || self.finished
    }

    /// Clears everything but memory that may serve again.
    pub(crate) fn clear(&mut self) {
        let (mut input, mut exchanges) = (std::mem::take(&mut self.input), std::mem::take(&mut self.exchanges));
        input.clear();
        input.shrink_to(INPUT_KEPT);
        exchanges.clear();
        *self = Busy { input, exchanges, ..Busy::default() };
    }

    pub(super) fn exchange(&mut self, sequence: u32) -> Option<&mut Exchange> {
        self.exchanges.iter_mut().find(|exchange| exchange.sequence == sequence)
    }

    /// The body of this request, if it is still coming in.
    pub(super) fn body_of(&mut self, sequence: u32) -> Option<&mut Receiving> {
        self.body.as_mut().filter(|body| body.sequence == sequence)
    }
}

/// What of a request matters to its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Only the head is sent.
    pub(super) head_only: bool,
    pub(super) is_connect: bool,
    pub(super) is_http_1_0: bool,
    pub(super) keep_alive: bool,
}

/// A request that is not answered in full.
pub(super) struct Exchange {
    pub(super) sequence: u32,
    pub(super) facts: Facts,
    pub(super) answer: Answer,
    /// To be called if the client goes first.
    pub(super) on_gone: Option<Callback>,
}

/// How far an answer is.
pub(super) enum Answer {
    Waiting,
    Ready(Box<Response>),
    Streaming(Box<Streaming>),
    Upgrade(Box<(Response, Box<dyn Connection>)>),
}

/// A body that is sent bit by bit.
#[derive(Default)]
pub(super) struct Streaming {
    /// `None` once it is sent.
    pub(super) head: Option<Response>,
    pub(super) framing: ResponseFraming,
    /// What could not be sent yet.
    pub(super) held: VecDeque<Content>,
    /// Complete, with these trailers.
    pub(super) finished: Option<Vec<u8>>,
    pub(super) when_ready: Option<Callback>,
}

/// How a body that is sent bit by bit is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum ResponseFraming {
    /// It is not sent at all, as to `HEAD`.
    #[default]
    Nothing,
    Chunked,
    /// So many bytes are missing.
    Counted(u64),
    UntilClose,
}

/// A body that is coming in.
pub(super) struct Receiving {
    pub(super) sequence: u32,
    pub(super) kind: Kind,
    pub(super) reader: Option<Reader>,
    /// How long it may be.
    pub(super) limit: u64,
    pub(super) received: u64,
    /// Bytes that have come in since its rate was last looked at.
    pub(super) window: u64,
    pub(super) paused: bool,
    /// Nobody wants it.
    pub(super) discarded: bool,
    /// The client waits to be asked for it.
    pub(super) expects_continue: bool,
    /// It is to be asked.
    pub(super) wanted: bool,
    /// What comes after it may be another protocol.
    pub(super) then_hold: bool,
}

pub(super) enum Kind {
    /// So many bytes are missing.
    Length(u64),
    Chunked(Box<Chunked>),
}

impl Receiving {
    /// The body that a head announces.
    pub(super) fn announced_by(head: &Head, sequence: u32) -> Option<Receiving> {
        let kind = match head.framing {
            crate::wire::Framing::None => return None,
            crate::wire::Framing::Length(length) => Kind::Length(length),
            crate::wire::Framing::Chunked => Kind::Chunked(Box::default()),
        };
        Some(Receiving {
            sequence,
            kind,
            reader: None,
            limit: 0,
            received: 0,
            window: 0,
            paused: false,
            discarded: false,
            expects_continue: head.expects_continue,
            wanted: false,
            then_hold: head.wants_upgrade || head.method == crate::Method::Connect,
        })
    }

    /// How many bytes are missing, if that is known.
    pub(super) fn missing(&self) -> Option<u64> {
        match &self.kind {
            Kind::Length(length) => Some(*length),
            Kind::Chunked(_) => None,
        }
    }

    /// Whether what has come in can be handed on.
    pub(super) fn flows(&self) -> bool {
        self.discarded || (self.reader.is_some() && !self.paused)
    }
}
