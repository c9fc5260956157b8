//! Received bytes that are not decoded yet.

use std::fmt;

use super::search::Needle;
use crate::Chunk;

/// The bytes that a connection has received and its codec has not taken yet.
///
/// It decodes in place: while no frame is incomplete, messages are taken directly from the received [`Chunk`]. Only the
/// rest of a chunk is copied when the chunk is returned, into memory that the completed message then takes over. A
/// connection that waits for its next message therefore holds no memory here.
///
/// ```
/// use pelton::codec::Buffer;
///
/// let mut buffer = Buffer::new();
/// buffer.feed(b"one tw".to_vec().into());
/// assert_eq!(buffer.take(4).unwrap(), b"one ");
/// assert_eq!(buffer.take(4), None);
/// buffer.feed(b"o ".to_vec().into());
/// assert_eq!(buffer.take(4).unwrap(), b"two ");
/// assert!(buffer.is_empty() && buffer.memory() == 0);
/// ```
pub struct Buffer {
    /// The rest of earlier chunks. `chunk` follows it.
    kept: Vec<u8>,
    /// How many bytes of `kept` have been taken.
    start: usize,
    chunk: Option<Chunk>,
    /// How many bytes have been taken in total.
    position: u64,
    /// The maximum length of the current frame, as far as the codec has announced it.
    expected: usize,
}

/// A buffer without a chunk, which can be kept between turns and moved to another thread.
pub(crate) struct Rest {
    kept: Vec<u8>,
    start: usize,
    position: u64,
    expected: usize,
}

impl Default for Rest {
    fn default() -> Rest {
        Buffer::new().into_rest()
    }
}

impl From<Rest> for Buffer {
    fn from(Rest { kept, start, position, expected }: Rest) -> Buffer {
        Buffer { kept, start, chunk: None, position, expected }
    }
}

impl Buffer {
    /// Returns the chunk, and keeps everything else.
    pub(crate) fn into_rest(mut self) -> Rest {
        self.keep_rest();
        Rest { kept: self.kept, start: self.start, position: self.position, expected: self.expected }
    }

    /// Creates an empty buffer.
    pub const fn new() -> Buffer {
        Buffer { kept: Vec::new(), start: 0, chunk: None, position: 0, expected: usize::MAX }
    }

    /// Adds received bytes.
    pub fn feed(&mut self, chunk: Chunk) {
        self.keep_rest();
        self.chunk = Some(chunk).filter(|chunk| !chunk.is_empty());
    }

    /// Returns the chunk, and keeps the bytes that have not been taken out of it. Call it when the codec waits for
    /// more.
    pub fn keep_rest(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.keep(&chunk);
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.kept_len() + self.chunk_bytes().len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how much memory an incomplete frame occupies, not counting the current chunk.
    pub fn memory(&self) -> usize {
        self.kept.capacity()
    }

    /// Returns one byte without taking it.
    pub fn byte(&self, index: usize) -> Option<u8> {
        match index.checked_sub(self.kept_len()) {
            None => Some(self.kept[self.start + index]),
            Some(index) => self.chunk_bytes().get(index).copied(),
        }
    }

    /// Returns up to `at_most` of the first bytes without taking them.
    pub fn first(&mut self, at_most: usize) -> &[u8] {
        let count = at_most.min(self.len());
        if count < at_most {
            self.expect(at_most);
        }
        if self.kept_len() == 0 {
            return &self.chunk_bytes()[..count];
        }
        self.gather(count);
        &self.kept[self.start..self.start + count]
    }

    /// Takes `count` bytes. Returns `None`, and takes nothing, if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        if self.len() < count {
            self.expect(count);
            return None;
        }
        if (1..=count).contains(&self.kept_len()) {
            // This completes an incomplete frame, whose memory moves to the caller.
            self.gather(count);
            self.taken(count);
            let mut bytes = std::mem::take(&mut self.kept);
            bytes.drain(..std::mem::take(&mut self.start));
            return Some(bytes);
        }
        let bytes = self.first(count).to_vec();
        self.skip(count);
        Some(bytes)
    }

    /// Drops `count` bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn skip(&mut self, count: usize) {
        assert!(count <= self.len(), "cannot skip {count} bytes of {}", self.len());
        let kept = count.min(self.kept_len());
        self.start += kept;
        if self.start == self.kept.len() {
            (self.kept, self.start) = (Vec::new(), 0);
        }
        self.advance_chunk(count - kept);
        self.taken(count);
    }

    fn taken(&mut self, count: usize) {
        self.position += count as u64;
        self.expected = usize::MAX;
    }

    fn kept_len(&self) -> usize {
        self.kept.len() - self.start
    }

    fn chunk_bytes(&self) -> &[u8] {
        self.chunk.as_deref().unwrap_or_default()
    }

    fn advance_chunk(&mut self, count: usize) {
        if let Some(chunk) = &mut self.chunk {
            chunk.advance(count);
            if chunk.is_empty() {
                self.chunk = None;
            }
        }
    }

    /// Moves bytes from the chunk until the first `count` bytes are in `kept`.
    fn gather(&mut self, count: usize) {
        if let Some(missing) = count.checked_sub(self.kept_len()).filter(|missing| *missing > 0)
            && let Some(chunk) = self.chunk.take()
        {
            self.expect(count);
            self.keep(&chunk[..missing]);
            self.chunk = Some(chunk);
            self.advance_chunk(missing);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        // Compact only if at most as many bytes move as were taken before. This makes the cost amortised constant per
        // byte.
        if self.start > 0 && self.start >= self.kept_len() {
            self.kept.drain(..self.start);
            self.start = 0;
        }
        self.make_room(bytes.len());
        self.kept.extend_from_slice(bytes);
    }

    /// Doubles the memory, so that a frame that arrives byte by byte is not copied each time, but not beyond the
    /// maximum length of the frame.
    fn make_room(&mut self, more: usize) {
        let needed = self.kept.len() + more;
        if needed > self.kept.capacity() {
            let doubled = needed.max(2 * self.kept.capacity());
            let most = self.start.saturating_add(self.expected);
            let room = if needed <= most { doubled.min(most) } else { doubled };
            self.kept.reserve_exact(room - self.kept.len());
        }
    }

    /// Returns how many bytes have been taken in total. A [`Search`](super::Search) remembers its position relative to
    /// it.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Announces the maximum length of the current frame.
    pub(super) fn expect(&mut self, at_most: usize) {
        self.expected = at_most;
    }

    /// Returns the position of `needle` between `from` and `to`, if it is there.
    pub(super) fn find(&mut self, needle: &Needle, from: usize, to: usize) -> Option<usize> {
        let kept = self.kept_len();
        if from < kept {
            // It may begin in `kept` and end in the chunk.
            let overlap = to.saturating_sub(kept).min(needle.len() - 1);
            self.make_room(overlap);
            if let Some(chunk) = &self.chunk {
                self.kept.extend_from_slice(&chunk[..overlap]);
            }
            let end = to.min(kept + overlap);
            let found = needle.find(&self.kept[self.start + from..self.start + end]);
            self.kept.truncate(self.start + kept);
            if let Some(at) = found {
                return Some(from + at);
            }
        }
        let from = from.max(kept);
        let there = self.chunk_bytes().get(from - kept..to.checked_sub(kept)?)?;
        needle.find(there).map(|at| from + at)
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer::new()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(bytes: &[u8]) -> Chunk {
        Chunk::from(bytes.to_vec())
    }

    #[test]
    fn complete_messages_are_taken_from_the_chunk_and_only_the_rest_is_kept() {
        let mut buffer = Buffer::new();
        buffer.feed(chunk(b"abcdefgh"));
        assert_eq!(buffer.first(3), b"abc");
        assert_eq!(buffer.take(6).unwrap(), b"abcdef");
        assert_eq!(buffer.memory(), 0);
        buffer.keep_rest();
        assert_eq!((buffer.len(), buffer.memory()), (2, 2));
        buffer.feed(chunk(b"ijkl"));
        assert_eq!(
            (0..7).map(|index| buffer.byte(index)).collect::<Vec<_>>()[1..],
            b"hijkl".map(Some).into_iter().chain([None]).collect::<Vec<_>>()
        );
        assert_eq!(buffer.take(4).unwrap(), b"ghij");
        assert_eq!(buffer.memory(), 0, "the memory moved to the message");
        assert_eq!(buffer.first(100), b"kl");
        buffer.skip(2);
        assert!(buffer.is_empty() && buffer.chunk.is_none());
    }

    #[test]
    fn taking_nothing_or_too_much_changes_nothing() {
        let mut buffer = Buffer::new();
        assert_eq!(buffer.take(0), Some(Vec::new()));
        buffer.feed(chunk(b"abc"));
        buffer.keep_rest();
        assert_eq!(buffer.take(0), Some(Vec::new()));
        assert_eq!(buffer.take(4), None);
        assert_eq!(buffer.take(3).unwrap(), b"abc");
    }

    #[test]
    fn kept_bytes_are_taken_in_order() {
        let mut buffer = Buffer::new();
        let bytes: Vec<u8> = (0..=255).collect();
        for part in bytes.chunks(10) {
            buffer.feed(chunk(part));
        }
        let mut out = Vec::new();
        for round in 0.. {
            let count = (round % 7).min(buffer.len());
            out.extend(buffer.take(count).unwrap());
            if buffer.is_empty() {
                break;
            }
            buffer.feed(chunk(b""));
        }
        assert_eq!(out, bytes);
    }

    #[test]
    fn memory_doubles_up_to_the_maximum_frame() {
        let mut buffer = Buffer::new();
        let mut moves = 0;
        for count in 1..10_000 {
            let memory = buffer.memory();
            buffer.feed(chunk(b"x"));
            assert_eq!(buffer.take(10_000), None);
            buffer.keep_rest();
            assert!(buffer.memory() <= 10_000 && buffer.len() == count);
            moves += usize::from(buffer.memory() != memory);
        }
        assert!(moves < 20, "{moves} moves");
    }

    #[test]
    #[should_panic = "skip 4 bytes of 3"]
    fn skipping_too_much_panics() {
        let mut buffer = Buffer::new();
        buffer.feed(chunk(b"abc"));
        buffer.skip(4);
    }
}
