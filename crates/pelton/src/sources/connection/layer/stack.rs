//! The state of a connection's layers.

use pelton_os::{Chunk, Outbox, Time};

use super::Layer;
use super::account::{Account, share};
use crate::sources::short_queue::ShortQueue;

/// Bytes that may wait for a layer. If there are more, the level below is not asked for further ones.
pub(super) const AHEAD: usize = 64 * 1024;

/// The layers of a connection.
#[derive(Default)]
pub(in super::super) struct Layers {
    /// The levels, in order from the wire to the handler.
    pub(super) levels: Vec<Level>,
    next_id: u32,
    /// The engine has reported the end or a failure.
    pub(in super::super) wire_ended: bool,
    /// Since when the handler waits for a layer to become ready.
    pub(in super::super) unready_since: Option<Time>,
    /// A layer has failed. None is called any more. The connection closes when the rest has been delivered and sent.
    pub(in super::super) failed: bool,
    /// Whether the engine was last told to receive.
    pub(in super::super) receiving: Option<bool>,
    /// The rest of the work is queued for the next turn.
    pub(super) continues: bool,
}

/// One layer, and the bytes on both sides of it.
pub(super) struct Level {
    pub(super) id: u32,
    /// `None` while it runs.
    pub(super) layer: Option<Box<dyn Layer>>,
    pub(super) phase: Phase,
    /// Bytes from below.
    pub(super) input: Backlog,
    /// Bytes that the layer has transmitted. `None` while there are none.
    pub(super) below: Option<Box<Outbox>>,
    /// What the layer has told us about being called.
    pub(super) calls: Calls,
    /// The layer was told that nothing more comes from below.
    pub(super) told_end: bool,
    /// The layer has ended the stream for the level above.
    pub(super) ended: bool,
    pub(super) finished: bool,
    /// The layer processed no output when it was last asked.
    pub(super) output_blocked: bool,
    /// Bytes that the layer has processed but not transmitted.
    pub(super) held: usize,
    /// What the bytes below stand for.
    pub(super) account: Account,
    /// Bytes that the current call has transmitted. The account does not know yet what they stand for.
    transmitted: u64,
    /// Bytes of the handler among those that the layer held after its last call, and how many it held then.
    plain_held: (u64, usize),
}

/// How far a layer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    New,
    Started,
    Ready,
    /// It removes itself when its call returns.
    Leaves,
}

/// When a layer is called next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Calls {
    /// When there is something to do.
    Normal,
    /// As soon as the level above wants more, even without input.
    Again,
    /// Not before it is woken.
    Waits,
    /// It was woken.
    Woken,
}

impl Level {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Leaves)
    }

    /// Returns how many bytes wait below, in memory and in files.
    pub(super) fn below_len(&self) -> u64 {
        self.below.as_ref().map_or(0, |outbox| outbox.len())
    }

    /// Records that the layer transmits this many bytes. Call it before they are queued.
    pub(super) fn transmits(&mut self, bytes: usize) {
        self.account.add(self.below_len(), bytes as u64);
        self.transmitted += bytes as u64;
    }

    /// Records the end of a call of the layer, in which it has processed this many bytes from above, which stand for `plain`
    /// bytes of the handler.
    pub(super) fn was_called(&mut self, processed: usize, plain: u64) {
        let (held_before, transmitted) = (self.plain_held, std::mem::take(&mut self.transmitted));
        let inside = held_before.0 + plain;
        let stay = share(inside, self.held as u64, (held_before.1 + processed) as u64);
        self.plain_held = (stay, self.held);
        let passed_on = inside - stay;
        let own = if processed == 0 && passed_on == 0 { transmitted } else { 0 };
        self.account.add_meaning(self.below_len(), passed_on, own);
    }

    /// Returns the bytes of the handler that the layer holds or that wait below it, in memory and in files.
    fn plain(&self) -> u64 {
        let held = if self.held > 0 { self.plain_held.0 } else { 0 };
        // No layer has transformed a file yet.
        held + self.account.plain(self.below_len()).max(self.in_files())
    }

    /// Returns how many bytes wait below that the layer has transmitted on its own.
    pub(super) fn own(&self) -> u64 {
        self.account.own(self.below_len())
    }

    fn in_files(&self) -> u64 {
        self.below.as_ref().map_or(0, |outbox| outbox.len() - outbox.in_memory() as u64)
    }
}

impl Layers {
    pub(super) fn push(&mut self, layer: Box<dyn Layer>, below: Option<Box<Outbox>>) -> &mut Level {
        let id = self.next_id;
        self.next_id += 1;
        let mut account = Account::default();
        if let Some(outbox) = &below {
            account.add(0, outbox.len());
            account.add_meaning(outbox.len(), outbox.len(), 0);
        }
        // Most connections have one layer, and none gets many: room for more would be idle memory.
        self.levels.reserve_exact(1);
        self.levels.push(Level {
            id,
            layer: Some(layer),
            phase: Phase::New,
            input: Backlog::default(),
            below,
            calls: Calls::Normal,
            told_end: false,
            ended: false,
            finished: false,
            output_blocked: false,
            held: 0,
            account,
            transmitted: 0,
            plain_held: (0, 0),
        });
        self.levels.last_mut().expect("one was pushed")
    }

    pub(super) fn index(&self, id: u32) -> Option<usize> {
        self.levels.iter().position(|level| level.id == id)
    }

    pub(super) fn level_mut(&mut self, id: u32) -> Option<&mut Level> {
        self.levels.iter_mut().find(|level| level.id == id)
    }

    pub(super) fn all_ready(&self) -> bool {
        self.levels.iter().all(Level::is_ready)
    }

    pub(super) fn all_finished(&self) -> bool {
        self.failed || self.levels.iter().all(|level| level.finished)
    }

    /// Returns the bytes on the way from the handler's queue to the engine.
    pub(in super::super) fn waiting(&self) -> u64 {
        self.levels.iter().map(|level| level.held as u64 + level.below_len()).sum()
    }

    /// Returns how many bytes count towards the water marks: those of the handler. Bytes that a layer has transmitted on its
    /// own, such as a handshake, count beyond an amount that only a peer that makes it answer and does not read can cause.
    pub(in super::super) fn towards_marks(&self) -> u64 {
        self.levels.iter().map(|level| level.plain() + level.own().saturating_sub(AHEAD as u64)).sum()
    }

    /// Returns how many bytes of the handler in memory are on the way to the engine.
    pub(in super::super) fn plain_in_memory(&self) -> usize {
        self.levels.iter().map(|level| (level.plain() - level.in_files()) as usize).sum()
    }

    /// Returns how many bytes of files are on the way to the engine: those sent before a layer was pushed.
    pub(in super::super) fn in_files(&self) -> u64 {
        self.levels.iter().map(Level::in_files).sum()
    }

    /// Returns the outbox that the engine sends from.
    pub(in super::super) fn wire(&mut self) -> Option<&mut Option<Box<Outbox>>> {
        self.levels.first_mut().map(|level| &mut level.below)
    }
}

/// Received bytes that wait for a layer. It holds no memory while it is empty.
#[derive(Default)]
pub(super) struct Backlog {
    /// Bytes that the layer has seen and not processed. They come before `chunks`.
    joined: Vec<u8>,
    /// How many of `joined` are processed.
    start: usize,
    chunks: ShortQueue<Chunk>,
    len: usize,
    /// The layer has seen all bytes and processed none of them.
    seen: bool,
    /// Nothing follows.
    pub(super) ended: bool,
}

/// Bytes taken from a [`Backlog`] to pass to the layer.
pub(super) enum Taken {
    Nothing,
    Chunk(Chunk),
    Joined(Vec<u8>, usize),
}

impl Taken {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Taken::Nothing => &[],
            Taken::Chunk(chunk) => chunk,
            Taken::Joined(bytes, start) => &bytes[*start..],
        }
    }
}

impl Backlog {
    pub(super) fn push(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            self.len += chunk.len();
            self.seen = false;
            self.chunks.push_back(chunk);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are bytes that the layer might process.
    pub(super) fn is_pending(&self) -> bool {
        self.len > 0 && !self.seen
    }

    /// Makes the layer see bytes again that it did not process.
    pub(super) fn show_again(&mut self) {
        self.seen = false;
    }

    /// Takes the next bytes: all that were not processed together with the next chunk.
    pub(super) fn take(&mut self) -> Taken {
        if self.joined.is_empty() {
            return self.chunks.pop_front().map_or(Taken::Nothing, Taken::Chunk);
        }
        if let Some(chunk) = self.chunks.pop_front() {
            if self.start > 0 {
                self.joined.drain(..self.start);
                self.start = 0;
            }
            self.joined.extend_from_slice(&chunk);
        }
        Taken::Joined(std::mem::take(&mut self.joined), self.start)
    }

    /// Puts back what the layer did not process. Chunks may have been pushed meanwhile.
    pub(super) fn put_back(&mut self, taken: Taken, processed: usize) {
        let processed = processed.min(taken.bytes().len());
        self.len -= processed;
        let left = taken.bytes().len() - processed;
        self.seen = processed == 0 && self.chunks.is_empty();
        self.start = 0;
        match taken {
            _ if left == 0 => self.joined = Vec::new(),
            Taken::Nothing => {}
            Taken::Chunk(chunk) => self.joined = chunk[processed..].to_vec(),
            Taken::Joined(bytes, start) => (self.joined, self.start) = (bytes, start + processed),
        }
    }

    pub(super) fn compact(&mut self) {
        self.chunks.iter_mut().for_each(Chunk::compact);
    }

    /// Takes everything, in order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Chunk> + use<> {
        let all = std::mem::take(self);
        let joined = all.joined[all.start..].to_vec();
        Some(Chunk::from(joined)).filter(|chunk| !chunk.is_empty()).into_iter().chain(all.chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_joins_what_was_not_processed_with_what_follows() {
        let mut backlog = Backlog::default();
        backlog.push(Chunk::from(b"abc".to_vec()));
        backlog.push(Chunk::from(b"def".to_vec()));
        let taken = backlog.take();
        assert_eq!(taken.bytes(), b"abc");
        backlog.put_back(taken, 1);
        assert_eq!((backlog.len(), backlog.is_pending()), (5, true));
        let taken = backlog.take();
        assert_eq!(taken.bytes(), b"bcdef");
        backlog.put_back(taken, 0);
        assert!(!backlog.is_pending(), "it has seen everything");
        backlog.push(Chunk::from(b"g".to_vec()));
        assert!(backlog.is_pending());
        let taken = backlog.take();
        assert_eq!(taken.bytes(), b"bcdefg");
        backlog.put_back(taken, 4);
        let rest: Vec<u8> = backlog.take_all().flat_map(|chunk| chunk.to_vec()).collect();
        assert_eq!((rest, backlog.len()), (b"fg".to_vec(), 0));
    }

    #[test]
    fn a_backlog_keeps_no_memory_when_it_is_empty() {
        let mut backlog = Backlog::default();
        backlog.push(Chunk::from(b"abc".to_vec()));
        let taken = backlog.take();
        backlog.put_back(taken, 2);
        let taken = backlog.take();
        backlog.put_back(taken, 9);
        assert_eq!((backlog.len(), backlog.joined.capacity()), (0, 0));
    }
}
