//! Moves bulk from one socket to another inside the kernel.
//!
//! A message is cheaper to copy: splicing takes two calls through a pipe as well, and the pipe has to be opened. So a source
//! begins to splice only after it has filled several reads in a row, and stops when little arrives or nothing moves. An idle
//! pair holds no pipe. While the pipe is not empty, input is received as usual, behind it in the target's queue: so the
//! order never depends on which way bytes take.

use std::rc::Rc;
use std::time::Duration;

use pelton_os::{Chunk, Splice, StreamKind, Token};

use super::super::stream::Stage;
use crate::Reactor;
use crate::reactor::source::Source;
use crate::sources::connection::ConnectionState;

/// A read of this size has filled the engine's buffer, or nearly.
const FULL: u64 = 60 * 1024;

/// How many full reads in a row are bulk: half a mebibyte.
const IN_A_ROW: u32 = 8;

/// A piece below this size ends splicing: copying it would be cheaper.
const SMALL: usize = 16 * 1024;

/// How long a pipe is kept while nothing moves.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many empty pipes are kept for the next bulk. Each is two descriptors.
const KEPT: usize = 2;

/// Whether a source splices.
pub(super) enum Splicing {
    /// With the number of full reads in a row.
    Off(u32),
    On(Rc<Splice>),
    /// The engine or the system cannot, or this source must not.
    Never,
}

impl ConnectionState {
    /// Returns whether bytes may bypass everything between this connection's engine and its send queue or handler.
    fn is_plain(&self) -> bool {
        !self.layered && self.kind == StreamKind::Socket && self.stage == Stage::Open && !self.failed()
    }
}

impl Reactor {
    /// Begins to splice if the last reads were bulk.
    #[inline]
    pub(super) fn may_splice(&mut self, source: Token, bytes: u64) {
        let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) else { return };
        let Splicing::Off(in_a_row) = &mut forwarding.splicing else { return };
        *in_a_row = if bytes >= FULL { *in_a_row + 1 } else { 0 };
        if *in_a_row >= IN_A_ROW {
            self.start_splicing(source);
        }
    }

    #[cold]
    fn start_splicing(&mut self, source: Token) {
        let Some(stream) = self.stream_mut(source) else { return };
        let plain = stream.is_plain();
        let Some(forwarding) = stream.forwarding() else { return };
        // A pipe holds more than a small buffer allows.
        let (target, bounded) = (forwarding.target, forwarding.left.is_some() || forwarding.high.is_some());
        forwarding.splicing = Splicing::Never;
        let Reactor { sources, flow, .. } = self;
        let fits = match sources.get_mut(target) {
            Some(Source::Connection(stream)) => stream.is_plain() && stream.marks(flow).high as u64 >= FULL,
            _ => false,
        };
        if bounded || !plain || target == source || !fits {
            return;
        }
        // An engine that cannot is not asked again, and neither is a system without pipes to spare.
        let pipe = self.connections.pipes.pop().map_or_else(|| Splice::new().map(Rc::new), Ok);
        let Ok(pipe) = pipe else { return };
        if self.engine.splice(source, Some((target, pipe.clone())))
            && let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding())
        {
            forwarding.splicing = Splicing::On(pipe);
            let bytes = forwarding.bytes;
            self.after(PATIENCE, move |reactor| reactor.check_splicing(source, bytes));
        }
    }

    /// Stops splicing if nothing was moved since the last check.
    fn check_splicing(&mut self, source: Token, before: u64) {
        let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) else { return };
        if !matches!(forwarding.splicing, Splicing::On(_)) {
            return;
        }
        let bytes = forwarding.bytes;
        if bytes == before {
            return self.stop_splicing(source);
        }
        self.after(PATIENCE, move |reactor| reactor.check_splicing(source, bytes));
    }

    /// Stops splicing. Bytes that are in the pipe are still sent.
    pub(super) fn stop_splicing(&mut self, source: Token) {
        let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) else { return };
        let Splicing::On(pipe) = std::mem::replace(&mut forwarding.splicing, Splicing::Off(0)) else { return };
        self.engine.splice(source, None);
        // One that still holds bytes is closed when they have been sent.
        if pipe.is_empty() && self.connections.pipes.len() < KEPT {
            self.connections.pipes.push(pipe);
        }
    }

    /// Handles bytes that the engine has moved into the source's pipe.
    pub(in super::super) fn connection_spliced(&mut self, source: Token, count: usize) {
        let now = self.now;
        let Some(stream) = self.stream_mut(source) else { return };
        stream.active_at = now;
        stream.used = true;
        let usable = stream.is_plain() && stream.receives() && !stream.closes() && !stream.holds_input();
        let Some(forwarding) = stream.forwarding() else { return };
        let Splicing::On(pipe) = &forwarding.splicing else { return };
        let (pipe, target, high) = (pipe.clone(), forwarding.target, forwarding.high);
        let Reactor { sources, connections, .. } = self;
        let queue = match sources.get_mut(target) {
            Some(Source::Connection(stream)) if usable && stream.is_plain() && stream.takes_proxied() => {
                stream.used = true;
                Some(&mut stream.outbox)
            }
            _ => None,
        };
        let Some(queue) = queue else { return self.receive_spliced(source, &pipe) };
        queue.get_or_insert_with(|| connections.spare_outbox.take().unwrap_or_default()).push_splice(pipe, count);
        if let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) {
            forwarding.bytes += count as u64;
        }
        if self.stream_mut(target).is_some_and(|stream| stream.handler.is_some()) {
            self.write_and_settle(target);
        }
        self.pause_source_if_full(source, target, high);
        if count < SMALL {
            self.stop_splicing(source);
        }
        self.pause_if_over_budget(source);
    }

    /// Takes bytes out of the pipe again, for a connection that cannot be spliced any more.
    #[cold]
    fn receive_spliced(&mut self, source: Token, pipe: &Splice) {
        self.stop_splicing(source);
        if let Some(forwarding) = self.stream_mut(source).and_then(|stream| stream.forwarding()) {
            forwarding.splicing = Splicing::Never;
        }
        match pipe.take() {
            Ok(bytes) => self.connection_received(source, Chunk::from(bytes)),
            Err(error) => self.connection_is_over(source, crate::Reason::Failed(error)),
        }
    }
}
