//! Moves bytes, and the end of them, from a source to its target.

use pelton_os::{Chunk, Token};

use super::super::io::Input;
use super::super::stream::{Extra, Stage};
use super::{PassOn, ProxyEnd};
use crate::Reactor;
use crate::reactor::source::Source;
use crate::sources::connection::{ConnectionId, Io};
use crate::sources::transport::Pauses;

/// The state of a target.
#[derive(Clone, Copy)]
pub(in super::super) struct Feed {
    pub(super) source: Token,
    /// A paused source resumes when at most this many bytes are queued on the target.
    pub(super) low: usize,
}

/// Whether input was forwarded, or can be delivered to the handler now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Progress {
    Some,
    /// The input is held until the target has room or is gone.
    None,
}

/// Who is told of the end of a source's input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum EndGoes {
    ToTarget,
    ToHandler,
}

/// What became of a chunk.
enum Queued {
    Yes,
    /// The target is full or about to be reaped. The source waits.
    NotYet(Chunk),
    /// The target does not send any more.
    Never(Chunk),
}

impl Extra {
    /// Queues the end of input once more, for a new recipient, if the peer has finished.
    pub(in super::super) fn repeat_end(&mut self, peer_finished: bool) {
        if peer_finished && !matches!(self.held.back(), Some(Input::End)) {
            self.held.push_back(Input::End);
        }
    }
}

impl Reactor {
    /// Forwards input of a source to its target.
    pub(in super::super) fn forward(&mut self, source: Token, mut chunk: Chunk) -> Progress {
        let Some(stream) = self.stream_mut(source) else { return Progress::None };
        let Some(forwarding) = stream.forwarding() else { return Progress::None };
        let target = forwarding.target;
        if let Some(left) = forwarding.left
            && left < chunk.len() as u64
        {
            // The handler gets the rest. A limit ends proxying, so this copy is made once.
            let (first, rest) = chunk.split_at(left as usize);
            let first = Chunk::from(first.to_vec());
            stream.extra().held.push_front(Input::Chunk(Chunk::from(rest.to_vec())));
            chunk = first;
        }
        let bytes = chunk.len() as u64;
        match self.queue_forwarded(target, chunk) {
            Queued::Yes => {}
            Queued::NotYet(chunk) => {
                self.hold_forwarded(source, chunk);
                self.pause_source(source, target);
                return Progress::None;
            }
            Queued::Never(chunk) => {
                self.hold_forwarded(source, chunk);
                self.proxying_ended(source, ProxyEnd::TargetClosed);
                return Progress::Some;
            }
        }
        let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) else {
            return Progress::None;
        };
        forwarding.bytes += bytes;
        if let Some(left) = &mut forwarding.left {
            *left -= bytes;
        }
        let high = forwarding.high;
        // If the target's handler is running, its bytes are written when it returns.
        if self.stream_mut(target).is_some_and(|stream| stream.handler.is_some()) {
            self.write_and_settle(target);
        }
        self.pause_source_if_full(source, target, high);
        self.may_splice(source, bytes);
        self.end_if_limit_is_reached(source);
        Progress::Some
    }

    /// Puts a chunk that cannot be forwarded now before the other input of its connection.
    fn hold_forwarded(&mut self, source: Token, chunk: Chunk) {
        if let Some(stream) = self.stream_mut(source)
            && !chunk.is_empty()
        {
            let held = &mut stream.extra().held;
            held.push_front(Input::Chunk(chunk.compacted()));
        }
    }

    fn queue_forwarded(&mut self, target: Token, mut chunk: Chunk) -> Queued {
        let Reactor { sources, connections, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(target) else { return Queued::Never(chunk) };
        if stream.stage == Stage::Over || stream.failed() {
            // The reap phase ends proxying, and knows the reason.
            return Queued::NotYet(chunk);
        }
        if !stream.takes_proxied() {
            return Queued::Never(chunk);
        }
        let queued = stream.outbox.as_ref().map_or(0, |outbox| outbox.in_memory());
        // A chunk that would never fit goes into an empty queue.
        if queued > 0 && queued + chunk.len() > stream.marks(flow).most {
            return Queued::NotYet(chunk);
        }
        if stream.busy || stream.stage != Stage::Open {
            // It stays here for a while.
            chunk.compact();
        }
        flow.add(chunk.len());
        stream.used = true;
        stream.outbox.get_or_insert_with(|| connections.spare_outbox.take().unwrap_or_default()).push_chunk(chunk);
        Queued::Yes
    }

    #[inline]
    pub(super) fn pause_source_if_full(&mut self, source: Token, target: Token, high: Option<usize>) {
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(target) else { return };
        let waiting = stream.towards_marks();
        if waiting > 0 && waiting > high.unwrap_or_else(|| stream.marks(flow).high) as u64 {
            self.pause_source(source, target);
        }
    }

    fn pause_source(&mut self, source: Token, target: Token) {
        if let Some(stream) = self.stream_mut(target) {
            stream.holds_back = true;
        }
        if let Some(stream) = self.stream_mut(source)
            && stream.pauses.add(Pauses::TARGET)
        {
            self.set_receiving(source);
        }
    }

    /// Resumes the source of a target that has room again. Called while the target holds its source back.
    #[cold]
    pub(in super::super) fn resume_source(&mut self, target: Token, waiting: u64) {
        let Some(stream) = self.stream_mut(target) else { return };
        let Some(feed) = stream.feed().filter(|feed| waiting <= feed.low as u64) else { return };
        stream.holds_back = false;
        let now = self.now;
        if let Some(stream) = self.stream_mut(feed.source) {
            stream.pauses.remove(Pauses::TARGET);
            stream.active_at = now;
            self.set_receiving(feed.source);
            self.arm_limits(feed.source);
        }
    }

    /// Passes the end of a source's input on, and tells the source's handler that proxying has ended.
    pub(in super::super) fn forward_end(&mut self, source: Token) -> EndGoes {
        let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) else {
            return EndGoes::ToHandler;
        };
        let (target, pass_on) = (forwarding.target, forwarding.pass_on);
        match pass_on {
            PassOn::Everything => {
                Io { reactor: self, id: ConnectionId(target) }.finish();
                self.proxying_ended(source, ProxyEnd::PeerFinished);
                EndGoes::ToTarget
            }
            PassOn::Bytes => {
                self.proxying_ended(source, ProxyEnd::PeerFinished);
                EndGoes::ToHandler
            }
        }
    }

    pub(super) fn end_if_limit_is_reached(&mut self, source: Token) {
        let forwarding = self.stream_mut(source).and_then(|stream| stream.forwarding());
        if forwarding.is_some_and(|forwarding| forwarding.left == Some(0)) {
            self.proxying_ended(source, ProxyEnd::LimitReached);
        }
    }
}
