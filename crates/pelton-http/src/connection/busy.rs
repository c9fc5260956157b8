//! State that only active connections have.

use std::collections::VecDeque;

use pelton::Connection;

use crate::body::Reader;
use crate::exchange::Callback;
use crate::wire::{Chunked, Head, Scan};
use crate::{Content, Response};

/// Input buffers are shrunk to this many bytes when they are reused.
const INPUT_KEPT: usize = 16 * 1024;

/// The state of an active connection. Connections reuse it, including its allocations.
#[derive(Default)]
pub(crate) struct Busy {
    /// Input that is not processed yet, from `at` on.
    input: Vec<u8>,
    at: usize,
    /// How much of the head at the start of the input has been scanned.
    pub(super) scan: Scan,
    /// The body of the latest request, while it is being received.
    pub(super) body: Option<Receiving>,
    /// Requests that are not fully answered, in order.
    pub(super) exchanges: VecDeque<Exchange>,
    /// The handler that takes over after HTTP.
    pub(super) upgraded: Option<Box<dyn Connection>>,
    /// The output queue is above the high mark: nothing is written until it has drained.
    pub(super) choked: bool,
    /// The connection has used up its turn and continues in the next one.
    pub(super) yielded: bool,
    /// The client has finished sending, but its input is not fully processed.
    pub(super) finished: bool,
}

impl Busy {
    pub(super) fn has_input(&self) -> bool {
        self.at < self.input.len()
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Takes the input out; [`put_input`](Busy::put_input) puts it back.
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

    /// Whether the connection still needs this state.
    pub(super) fn is_needed(&self) -> bool {
        self.has_input()
            || self.body.is_some()
            || !self.exchanges.is_empty()
            || self.upgraded.is_some()
            || self.finished
    }

    /// Clears everything but keeps reusable allocations.
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

    /// The body of this request, if it is still being received.
    pub(super) fn body_of(&mut self, sequence: u32) -> Option<&mut Receiving> {
        self.body.as_mut().filter(|body| body.sequence == sequence)
    }
}

/// The properties of a request that affect its response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Only the head is sent.
    pub(super) head_only: bool,
    pub(super) is_connect: bool,
    pub(super) is_http_1_0: bool,
    pub(super) keep_alive: bool,
}

/// A request that is not fully answered.
pub(super) struct Exchange {
    pub(super) sequence: u32,
    pub(super) facts: Facts,
    pub(super) answer: Answer,
    /// Interim responses that are not sent yet.
    pub(super) interim: Vec<u8>,
    /// Called if the client disconnects first.
    pub(super) on_gone: Option<Callback>,
}

/// The state of a response.
pub(super) enum Answer {
    Waiting,
    Ready(Box<Response>),
    Streaming(Box<Streaming>),
    Upgrade(Box<(Response, Box<dyn Connection>)>),
}

/// A response body that is sent in pieces.
#[derive(Default)]
pub(super) struct Streaming {
    /// `None` once the head is sent.
    pub(super) head: Option<Response>,
    pub(super) framing: ResponseFraming,
    /// Pieces that are not sent yet.
    pub(super) held: VecDeque<Content>,
    /// Set when the body is complete, with its trailers.
    pub(super) finished: Option<Vec<u8>>,
    pub(super) when_ready: Option<Callback>,
}

/// How the body of a response is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum ResponseFraming {
    /// No body is sent, as for `HEAD`.
    #[default]
    Nothing,
    Chunked,
    /// This many bytes remain.
    Counted(u64),
    UntilClose,
}

/// A request body that is being received.
pub(super) struct Receiving {
    pub(super) sequence: u32,
    pub(super) kind: Kind,
    pub(super) reader: Option<Reader>,
    /// The maximum length in bytes.
    pub(super) limit: u64,
    pub(super) received: u64,
    /// Bytes received in the current rate window.
    pub(super) window: u64,
    pub(super) paused: bool,
    /// The body is read and thrown away.
    pub(super) discarded: bool,
    /// The client waits for `100 Continue`.
    pub(super) expects_continue: bool,
    /// `100 Continue` must be sent.
    pub(super) wanted: bool,
    /// Another protocol may follow the body.
    pub(super) then_hold: bool,
}

pub(super) enum Kind {
    /// This many bytes remain.
    Length(u64),
    Chunked(Box<Chunked>),
}

impl Receiving {
    /// Returns the body that a head announces.
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

    /// The number of remaining bytes, if known.
    pub(super) fn missing(&self) -> Option<u64> {
        match &self.kind {
            Kind::Length(length) => Some(*length),
            Kind::Chunked(_) => None,
        }
    }

    /// Whether received data can be delivered.
    pub(super) fn flows(&self) -> bool {
        self.discarded || (self.reader.is_some() && !self.paused)
    }
}
