//! Moves bytes from the handler through the layers to the engine.

use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::task::Poll;

use pelton_os::{FilePart, Outbox, Token};

use super::account::Account;
use super::stack::{AHEAD, Calls, Level};
use crate::Reactor;
use crate::reactor::source::Source;
use crate::sources::connection::stream::{Ending, Stage};
use crate::sources::connection::{ConnectionState, Reason};

/// How many pieces of the queue a layer gets in one call. It can put them into one record.
const PIECES: usize = 8;

/// The next call of a layer on the way down.
enum Step {
    /// With the queue above the level at this index.
    Send(usize),
    Finish(usize),
}

impl ConnectionState {
    /// Returns the bytes that have been sent by the handler and not accepted by the engine: those in its queue, those
    /// that a layer holds and those below a layer. Counts a layer that has to finish as one byte.
    pub(in super::super) fn waiting_with_layers(&self) -> u64 {
        let Some(layers) = self.layers() else { return 0 };
        let finishes = matches!(self.ending, Ending::Finish | Ending::Close) && !self.layers_are_finished();
        layers.waiting() + u64::from(finishes)
    }

    fn layers_are_finished(&self) -> bool {
        let Some(layers) = self.layers() else { return true };
        // A connection that closes does not wait for a handshake if nothing depends on it.
        let nothing_queued = self.outbox.as_ref().is_none_or(|outbox| outbox.is_empty());
        layers.all_finished() || (self.ending == Ending::Close && !layers.all_ready() && nothing_queued)
    }

    /// Returns the queue above the level at `index`.
    fn above(&mut self, index: usize) -> Option<&mut Option<Box<Outbox>>> {
        let levels = self.layers()?.levels.len();
        if index + 1 == levels {
            return Some(&mut self.outbox);
        }
        Some(&mut self.layers_mut()?.levels[index + 1].below)
    }

    /// Returns the account of the queue above the level at `index`. The handler's own queue needs none.
    fn account_above(&self, index: usize) -> Option<Account> {
        Some(self.layers()?.levels.get(index + 1)?.account)
    }

    /// Returns the next call of a layer that has output to process, from the handler to the wire.
    fn next_output(&self) -> Option<Step> {
        let layers = self.layers().filter(|layers| !layers.failed)?;
        let mut above = self.outbox.as_deref();
        let mut finishes = matches!(self.ending, Ending::Finish | Ending::Close) && !self.layers_are_finished();
        for (index, level) in layers.levels.iter().enumerate().rev() {
            let callable = level.is_ready() && level.layer.is_some() && level.calls != Calls::Waits;
            let room = level.below.as_ref().is_none_or(|outbox| outbox.len() < AHEAD as u64);
            let nothing_above = above.is_none_or(|outbox| outbox.is_empty());
            if callable && room && !level.output_blocked {
                if !nothing_above {
                    return Some(Step::Send(index));
                }
                if finishes && !level.finished && level.held == 0 {
                    return Some(Step::Finish(index));
                }
            }
            // The level below finishes after this one, when it has passed everything on.
            finishes = finishes && nothing_above && level.finished && level.held == 0;
            above = level.below.as_deref();
        }
        None
    }
}

impl Reactor {
    /// Passes queued output through the layers and writes as much of it as the socket accepts.
    #[cold]
    pub(in super::super) fn write_through_layers(&mut self, token: Token) {
        loop {
            while let Some(step) =
                self.stream_mut(token).filter(|stream| stream.may_write()).and_then(|s| s.next_output())
            {
                match step {
                    Step::Send(index) => self.send_through(token, index),
                    Step::Finish(index) => self.finish_layer(token, index),
                }
            }
            self.write_wire(token);
            let Some(stream) = self.stream_mut(token).filter(|stream| stream.may_write() && !stream.busy) else {
                break;
            };
            if stream.next_output().is_none() {
                break;
            }
        }
        // A layer may have delivered input, or left.
        if self.stream_mut(token).is_some_and(|stream| stream.has_input_to_process()) {
            self.queue_flush(token);
        }
    }

    /// Calls the layer at `index` with the first bytes of the queue above it.
    fn send_through(&mut self, token: Token, index: usize) {
        let Some(stream) = self.stream_mut(token) else { return };
        let Some(id) = stream.layers().and_then(|layers| Some(layers.levels.get(index)?.id)) else { return };
        let account = stream.account_above(index);
        // Out of its place: the layer may run code that sends more.
        let Some(mut outbox) = stream.above(index).and_then(Option::take) else { return };
        let (before, len_before) = (outbox.in_memory(), outbox.len());
        let outcome = match outbox.next_file().cloned() {
            Some(part) => self.send_file_through(token, id, &part).map(|sent| {
                outbox.advance_file(sent as u64);
                sent > 0
            }),
            None => {
                let mut slices = [IoSlice::new(&[]); PIECES];
                let count = outbox.gather(&mut slices);
                // Not all of a large piece: the layer may make many bytes of one.
                let mut first = [IoSlice::new(&[]); PIECES];
                let (slices, most) = at_most(AHEAD, &slices[..count], &mut first);
                let sent = self.call_layer(token, id, |layer, io| layer.send(io, slices)).map(|sent| sent.min(most));
                sent.map(|sent| {
                    outbox.advance(sent);
                    sent > 0
                })
            }
        };
        self.flow.remove(before - outbox.in_memory());
        let len = outbox.len();
        let processed = len_before - len;
        let plain = account.map_or(processed, |account| account.plain(len_before) - account.plain(len));
        self.put_outbox_back(token, id, outbox);
        self.layer_was_called(token, id, processed as usize, plain);
        if let Some(level) = self.level_mut(token, id) {
            level.output_blocked |= outcome != Some(true);
        }
        self.layer_may_leave(token, id);
    }

    /// Puts a queue back in its place above a level, in front of what was queued meanwhile.
    fn put_outbox_back(&mut self, token: Token, id: u32, mut outbox: Box<Outbox>) {
        let Reactor { sources, flow, connections, .. } = self;
        let place = match sources.get_mut(token) {
            Some(Source::Connection(stream)) if stream.may_write() => {
                let index = stream.layers().filter(|layers| !layers.failed).and_then(|layers| layers.index(id));
                index.and_then(|index| stream.above(index))
            }
            _ => None,
        };
        let Some(place) = place else {
            return flow.remove(outbox.in_memory());
        };
        if let Some(later) = place.take() {
            outbox.append(*later);
        }
        let is_empty = outbox.is_empty();
        *place = Some(outbox);
        if is_empty {
            connections.put_spare(place);
        }
    }

    /// Reads from a file and calls a layer with the bytes. Returns how many the layer has processed.
    fn send_file_through(&mut self, token: Token, id: u32, part: &FilePart) -> Option<usize> {
        let most = usize::try_from(part.len).unwrap_or(usize::MAX);
        let buffers = self.connections.buffers.clone();
        let read = buffers.fill(|buffer| {
            let count = most.min(buffer.len());
            loop {
                match part.file.read_at(&mut buffer[..count], part.offset) {
                    Ok(0) => break Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short")),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            }
        });
        match read {
            Ok(chunk) => {
                let sent = self.call_layer(token, id, |layer, io| layer.send(io, &[IoSlice::new(&chunk)]));
                sent.map(|sent| sent.min(chunk.len()))
            }
            Err(error) => {
                self.connection_is_over(token, Reason::Failed(error));
                None
            }
        }
    }

    fn finish_layer(&mut self, token: Token, index: usize) {
        let Some(stream) = self.stream_mut(token) else { return };
        let Some(id) = stream.layers().and_then(|layers| Some(layers.levels.get(index)?.id)) else { return };
        let outcome = self.call_layer(token, id, |layer, io| layer.finish(io));
        let Some(Level { finished, output_blocked, .. }) = self.level_mut(token, id) else { return };
        match outcome {
            Some(Poll::Ready(())) => *finished = true,
            Some(Poll::Pending) | None => *output_blocked = true,
        }
        self.layer_was_called(token, id, 0, 0);
        self.layer_may_leave(token, id);
    }

    /// Accounts for a call of a layer that has processed this many bytes from above, which stand for `plain` bytes of the
    /// handler. Closes the connection if too much waits below that the layer has transmitted on its own.
    pub(super) fn layer_was_called(&mut self, token: Token, id: u32, processed: usize, plain: u64) {
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        let most = stream.marks(flow).most.max(AHEAD);
        let Some(level) = stream.layers_mut().and_then(|layers| layers.level_mut(id)) else { return };
        level.was_called(processed, plain);
        if level.own() > most as u64 {
            self.connection_is_over(token, Reason::Overflow);
        }
    }

    /// Drops everything that the layers have queued.
    pub(in super::super) fn drop_layer_outboxes(&mut self, token: Token) {
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        let Some(layers) = stream.layers_mut() else { return };
        for level in &mut layers.levels {
            level.held = 0;
            if let Some(outbox) = level.below.take() {
                flow.remove(outbox.in_memory());
            }
        }
    }
}

impl ConnectionState {
    /// Returns whether layers may send.
    pub(in super::super) fn may_write(&self) -> bool {
        matches!(self.stage, Stage::Connecting | Stage::Layering | Stage::Open) && !self.failed()
    }
}

/// Puts the first `most` bytes of `slices` into `first`, which has as many places. Returns the slices, and how many bytes
/// there are.
fn at_most<'a, 'b>(most: usize, slices: &'b [IoSlice<'_>], first: &'a mut [IoSlice<'b>]) -> (&'a [IoSlice<'b>], usize) {
    let (mut count, mut total) = (0, 0);
    for (place, slice) in first.iter_mut().zip(slices) {
        if total == most {
            break;
        }
        let bytes = &slice[..slice.len().min(most - total)];
        *place = IoSlice::new(bytes);
        count += 1;
        total += bytes.len();
    }
    (&first[..count], total)
}
