//! What a stream shares with the handler of its connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::listener::Arrivals;
use crate::{Chunk, Connection, Io, Reactor, Reason};

/// Reading pauses when more than this many bytes wait to be read: what the marks for sending allow, too.
const READ_AHEAD: usize = 64 * 1024;

/// It goes on when no more than this many are left, so that it does not stop and start with every read.
const READ_AGAIN_AT: usize = READ_AHEAD / 4;

/// What it costs to keep a chunk, however short: its place in the queue and an allocation.
const CHUNK_OVERHEAD: usize = 64;

/// How far along its life a stream is.
pub(super) enum Stage {
    Connecting,
    Open,
    Over(Arc<Reason>),
}

/// How far the end of writing has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Finish {
    No,
    Asked,
    /// Everything has been sent, and the other side told that there is no more.
    Done,
}

pub(super) struct Pipe {
    pub(super) stage: Stage,
    inbox: VecDeque<Chunk>,
    /// What the inbox takes up, overhead included.
    kept: usize,
    /// Nothing more comes in after what is in the inbox.
    pub(super) ended: bool,
    paused: bool,
    /// Nobody will read what comes in.
    abandoned: bool,
    pub(super) finish: Finish,
    /// The turn in which it was last flushed on request.
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
            abandoned: false,
            finish: Finish::No,
            flushed_in: None,
            reader: None,
            writer: None,
        }))
    }

    /// Copies what has come in, as far as there is room for it; says how much.
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
            // An idle stream holds no memory.
            self.inbox = VecDeque::new();
        }
        filled
    }

    pub(super) fn read_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.inbox.pop_front()?;
        self.kept -= chunk.len() + CHUNK_OVERHEAD;
        Some(chunk)
    }

    /// Whether something has come in that was not read.
    pub(super) fn holds_input(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Nobody will read what has come in, or what does later.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.inbox = VecDeque::new();
        self.kept = 0;
    }

    /// Whether reading was paused and is to go on.
    pub(super) fn takes_more(&mut self) -> bool {
        self.kept <= READ_AGAIN_AT && std::mem::take(&mut self.paused)
    }
}

/// Wakes one of those who wait, when the pipe is not borrowed any more.
fn wake(pipe: &RefCell<Pipe>, waiting: impl FnOnce(&mut Pipe) -> Option<Waker>) {
    let waker = waiting(&mut pipe.borrow_mut());
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Handles a connection for a stream.
pub(super) struct Filler {
    pub(super) pipe: Rc<RefCell<Pipe>>,
    /// Where the stream waits to be accepted, until it is open.
    pub(super) arrivals: Option<Rc<Arrivals>>,
}

impl Connection for Filler {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.pipe.borrow_mut().stage = Stage::Open;
        if let Some(arrivals) = self.arrivals.take() {
            arrivals.arrived(io, &self.pipe);
        }
        wake(&self.pipe, |pipe| pipe.reader.take());
        wake(&self.pipe, |pipe| pipe.writer.take());
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let mut pipe = self.pipe.borrow_mut();
        if pipe.abandoned {
            return;
        }
        pipe.kept += chunk.len() + CHUNK_OVERHEAD;
        // It may be kept for long, and by very many.
        pipe.inbox.push_back(chunk.compacted());
        if pipe.kept > READ_AHEAD && !pipe.paused {
            pipe.paused = true;
            io.pause();
        }
        drop(pipe);
        wake(&self.pipe, |pipe| pipe.reader.take());
    }

    fn drained(&mut self, _: &mut Io<'_>) {
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
        // The task that owns the stream is what is in progress.
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.pipe.borrow_mut().stage = Stage::Over(Arc::new(reason));
        wake(&self.pipe, |pipe| pipe.reader.take());
        wake(&self.pipe, |pipe| pipe.writer.take());
    }
}
