//! Outgoing datagrams.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;

use crate::{Address, Chunk};

/// How much memory an empty outbox keeps: about a batch of small datagrams.
const KEPT_BYTES: usize = 64 * 1024;
const KEPT_DATAGRAMS: usize = 256;

/// Queued datagrams, in order. Bytes are copied only if they are passed by reference.
#[derive(Default)]
pub struct DatagramOutbox {
    waiting: VecDeque<Outgoing>,
    /// The bytes of copied datagrams, one after the other.
    copies: Vec<u8>,
    /// How many copied bytes were removed before the first one that is kept.
    before: usize,
    bytes: usize,
}

struct Outgoing {
    to: Option<Address>,
    content: Content,
}

enum Content {
    /// In `copies`, at this position of all bytes ever copied.
    Copied {
        start: usize,
        len: usize,
    },
    Bytes(Bytes),
    Chunk(Chunk),
}

impl DatagramOutbox {
    /// Returns how many datagrams are queued.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no datagram is queued.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns how many bytes are queued.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how much memory is used. A datagram counts even if it is empty, so that their number is bounded too.
    pub fn in_memory(&self) -> usize {
        self.bytes + self.waiting.len() * DatagramOutbox::OVERHEAD
    }

    /// The memory that a datagram uses besides its bytes.
    pub const OVERHEAD: usize = size_of::<Outgoing>();

    /// Appends a copy of `bytes`, for `to`, or for the address that the socket is connected to.
    pub fn push_copy(&mut self, to: Option<Address>, bytes: &[u8]) {
        let start = self.before + self.copies.len();
        self.copies.extend_from_slice(bytes);
        self.push(to, Content::Copied { start, len: bytes.len() }, bytes.len());
    }

    /// Appends `bytes` without copying them.
    pub fn push_bytes(&mut self, to: Option<Address>, bytes: Bytes) {
        let len = bytes.len();
        self.push(to, Content::Bytes(bytes), len);
    }

    /// Appends a received chunk without copying it.
    pub fn push_chunk(&mut self, to: Option<Address>, chunk: Chunk) {
        let len = chunk.len();
        self.push(to, Content::Chunk(chunk), len);
    }

    fn push(&mut self, to: Option<Address>, content: Content, len: usize) {
        self.bytes += len;
        self.waiting.push_back(Outgoing { to, content });
    }

    /// Returns the queued datagrams in order: their addresses and bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&Address>, &[u8])> {
        self.waiting.iter().map(|outgoing| (outgoing.to.as_ref(), self.bytes_of(&outgoing.content)))
    }

    /// Returns the address of the first datagram, if it has its own.
    pub fn next_to(&self) -> Option<&Address> {
        self.waiting.front()?.to.as_ref()
    }

    fn bytes_of<'a>(&'a self, content: &'a Content) -> &'a [u8] {
        match content {
            Content::Copied { start, len } => &self.copies[start - self.before..][..*len],
            Content::Bytes(bytes) => bytes,
            Content::Chunk(chunk) => chunk,
        }
    }

    /// Removes the first datagram and returns its address.
    pub fn pop(&mut self) -> Option<Option<Address>> {
        let Outgoing { to, content } = self.waiting.pop_front()?;
        self.bytes -= self.bytes_of(&content).len();
        if self.waiting.is_empty() {
            self.before += self.copies.len();
            self.copies.clear();
            self.copies.shrink_to(KEPT_BYTES);
            self.waiting.shrink_to(KEPT_DATAGRAMS);
        } else if let Content::Copied { start, len } = content {
            // The rest is moved to the front when most of the bytes are gone, so that each byte is moved at most once.
            let gone = start + len - self.before;
            if gone > KEPT_BYTES && gone > self.copies.len() / 2 {
                self.copies.drain(..gone);
                self.before += gone;
            }
        }
        Some(to)
    }

    /// Removes the first `count` datagrams, which have been sent.
    pub fn advance(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        for _ in 0..count {
            self.pop();
        }
    }

    /// Gives back loans that hold much more memory than bytes. Call it when the rest of the outbox has to wait.
    pub fn settle(&mut self) {
        for outgoing in &mut self.waiting {
            if let Content::Chunk(chunk) = &mut outgoing.content {
                chunk.compact();
            }
        }
    }
}

impl fmt::Debug for DatagramOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatagramOutbox({} bytes in {} datagrams)", self.bytes, self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(outbox: &DatagramOutbox) -> Vec<(Option<String>, Vec<u8>)> {
        outbox.iter().map(|(to, bytes)| (to.map(ToString::to_string), bytes.to_vec())).collect()
    }

    #[test]
    fn datagrams_keep_their_order_bounds_and_addresses() {
        let address: Address = "127.0.0.1:9".parse().unwrap();
        let mut outbox = DatagramOutbox::default();
        outbox.push_copy(None, b"one");
        outbox.push_bytes(Some(address.clone()), Bytes::from_static(b"two"));
        outbox.push_copy(None, b"");
        outbox.push_chunk(None, Chunk::from(b"four".to_vec()));
        outbox.push_copy(Some(address), b"five");
        let mut expected = vec![
            (None, b"one".to_vec()),
            (Some("127.0.0.1:9".to_owned()), b"two".to_vec()),
            (None, b"".to_vec()),
            (None, b"four".to_vec()),
            (Some("127.0.0.1:9".to_owned()), b"five".to_vec()),
        ];
        assert_eq!((outbox.len(), outbox.bytes()), (5, 14));
        while !expected.is_empty() {
            assert_eq!(contents(&outbox), expected);
            assert_eq!(outbox.pop().unwrap().map(|to| to.to_string()), expected.remove(0).0);
        }
        assert!(outbox.is_empty() && outbox.pop().is_none());
        assert_eq!((outbox.bytes(), outbox.in_memory()), (0, 0));
    }

    #[test]
    fn copies_are_moved_to_the_front_while_others_are_queued() {
        let mut outbox = DatagramOutbox::default();
        let content = |number: usize| vec![number as u8; 1_000 + number];
        for number in 0..400 {
            outbox.push_copy(None, &content(number));
        }
        for number in 0..400 {
            assert_eq!(outbox.iter().next().unwrap().1, content(number));
            outbox.push_copy(None, &content(400 + number));
            outbox.advance(1);
        }
        let waiting: usize = outbox.bytes();
        assert!(outbox.copies.len() < 3 * waiting, "{} bytes are kept for {waiting} queued", outbox.copies.len());
        for number in 400..800 {
            assert_eq!(outbox.iter().next().unwrap().1, content(number));
            outbox.advance(1);
        }
        assert!(outbox.copies.capacity() <= KEPT_BYTES, "an empty outbox keeps little");
    }

    #[test]
    fn empty_datagrams_use_memory_too() {
        let mut outbox = DatagramOutbox::default();
        outbox.push_copy(None, b"");
        assert!(outbox.bytes() == 0 && outbox.in_memory() > 0 && !outbox.is_empty());
    }
}
