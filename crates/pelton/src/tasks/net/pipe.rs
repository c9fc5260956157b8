//! The state that a stream shares with the handler of its connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::listener::Arrivals;
use crate::{Chunk, Connection, Io, Reactor, Reason, StreamKind};

/// Reading pauses when more than this many bytes are buffered. The default high-water mark for sending is the same.
const READ_AHEAD: usize = 64 * 1024;

/// Reading resumes when this many bytes or fewer are left, so that it does not stop and start with every read.
const READ_AGAIN_AT: usize = READ_AHEAD / 4;

/// The overhead of a buffered chunk: its queue entry and an allocation.
const CHUNK_OVERHEAD: usize = 64;

/// The stage of a stream's life.
pub(super) enum Stage {
    Connecting,
    Open,
    Over(Arc<Reason>),
}

/// The progress of closing the sending side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    No,
    Asked,
    /// Everything has been sent, including the end of the stream.
    Done,
}

pub(super) struct Pipe {
    pub(super) stage: Stage,
    inbox: VecDeque<Chunk>,
    /// The memory used by the inbox, including overhead.
    kept: usize,
    /// No more input follows the contents of the inbox.
    pub(super) ended: bool,
    paused: bool,
    /// The last layer that the stream has pushed is ready.
    pub(super) layer_ready: bool,
    /// Nobody will read further input.
    abandoned: bool,
    pub(super) finish: Finish,
    /// The turn of the last explicit flush.
    pub(super) flushed_in: Option<u64>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl Pipe {
    pub(super) fn new() -> Rc<RefCell<Pipe>> {
        Rc::new(RefCell::new(Pipe {
            stage: Stage::Connecting,
            inbox: VecDeque::new(),
            kept: 0,
            ended: false,
            paused: false,
            layer_ready: false,
            abandoned: false,
            finish: Finish::No,
            flushed_in: None,
            reader: None,
            writer: None,
        }))
    }

    /// Copies buffered input to `buffer`. Returns the number of bytes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < buffer.len()
            && let Some(chunk) = self.inbox.front_mut()
        {
            let count = chunk.len().min(buffer.len() - filled);
            buffer[filled..filled + count].copy_from_slice(&chunk[..count]);
            chunk.advance(count);
            filled += count;
            self.kept -= count;
            if chunk.is_empty() {
                self.inbox.pop_front();
                self.kept -= CHUNK_OVERHEAD;
            }
        }
        if self.inbox.is_empty() {
            // An idle stream keeps no buffer.
            self.inbox = VecDeque::new();
        }
        filled
    }

    pub(super) fn read_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.inbox.pop_front()?;
        self.kept -= chunk.len() + CHUNK_OVERHEAD;
        Some(chunk)
    }

    /// Takes the unread input for a layer, which will report when it is ready.
    pub(super) fn begin_layer(&mut self) -> Vec<u8> {
        self.layer_ready = false;
        self.paused = false;
        self.kept = 0;
        std::mem::take(&mut self.inbox).into_iter().flat_map(Chunk::into_vec).collect()
    }

    /// Returns whether there is unread input.
    pub(super) fn holds_input(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Drops all input, now and in the future.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.inbox = VecDeque::new();
        self.kept = 0;
    }

    /// Returns whether reading was paused and should resume.
    pub(super) fn takes_more(&mut self) -> bool {
        self.kept <= READ_AGAIN_AT && std::mem::take(&mut self.paused)
    }
}

/// Wakes a waiting task after the borrow of the pipe has ended.
fn wake(pipe: &RefCell<Pipe>, waiting: impl FnOnce(&mut Pipe) -> Option<Waker>) {
    let waker = waiting(&mut pipe.borrow_mut());
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Handles a connection on behalf of a stream.
pub(super) struct Filler {
    pub(super) pipe: Rc<RefCell<Pipe>>,
    /// Where the stream waits to be accepted. `Some` until it is open.
    pub(super) arrivals: Option<Rc<Arrivals>>,
}

impl Connection for Filler {
    fn opened(&mut self, io: &mut Io<'_>) {
        let mut pipe = self.pipe.borrow_mut();
        pipe.stage = Stage::Open;
        pipe.ended = io.stream_kind() == StreamKind::WriteOnly;
        drop(pipe);
        if let Some(arrivals) = self.arrivals.take() {
            arrivals.arrived(io, &self.pipe);
        }
        wake(&self.pipe, |pipe| pipe.reader.take());
        wake(&self.pipe, |pipe| pipe.writer.take());
    }

    fn layer_ready(&mut self, _: &mut Io<'_>) {
        self.pipe.borrow_mut().layer_ready = true;
        wake(&self.pipe, |pipe| pipe.reader.take());
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let mut pipe = self.pipe.borrow_mut();
        if pipe.abandoned {
            return;
        }
        pipe.kept += chunk.len() + CHUNK_OVERHEAD;
        // It may be kept for a long time, and on very many connections.
        pipe.inbox.push_back(chunk.compacted());
        if pipe.kept > READ_AHEAD && !pipe.paused {
            pipe.paused = true;
            io.pause();
        }
        drop(pipe);
        wake(&self.pipe, |pipe| pipe.reader.take());
    }

    fn writable(&mut self, _: &mut Io<'_>) {
        wake(&self.pipe, |pipe| pipe.writer.take());
    }

    fn sent(&mut self, _: &mut Io<'_>) {
        wake(&self.pipe, |pipe| {
            if pipe.finish == Finish::Asked {
                pipe.finish = Finish::Done;
            }
            pipe.writer.take()
        });
    }

    fn peer_finished(&mut self, _: &mut Io<'_>) {
        wake(&self.pipe, |pipe| {
            pipe.ended = true;
            pipe.reader.take()
        });
    }

    fn draining(&mut self, _: &mut Io<'_>) {
        // Nothing to do: the task that owns the stream decides when it ends.
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.pipe.borrow_mut().stage = Stage::Over(Arc::new(reason));
        wake(&self.pipe, |pipe| pipe.reader.take());
        wake(&self.pipe, |pipe| pipe.writer.take());
    }
}
