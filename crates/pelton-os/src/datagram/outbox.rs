//! Datagrams that are to go out.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;

use crate::{Address, Chunk};

/// When nothing waits, no more memory than this is kept for the next time: about a batch of small ones.
const KEPT_BYTES: usize = 64 * 1024;
const KEPT_DATAGRAMS: usize = 256;

/// Datagrams that wait to be sent, in order. Bytes that are handed over, not just shown, are not copied.
#[derive(Default)]
pub struct DatagramOutbox {
    waiting: VecDeque<Outgoing>,
    /// The bytes of those that were copied, one after the other.
    copies: Vec<u8>,
    /// How many bytes of copies there have been before the ones that are kept.
    before: usize,
    bytes: usize,
}

struct Outgoing {
    to: Option<Address>,
    content: Content,
}

enum Content {
    /// Somewhere in the copies, counted from the first that there ever was.
    Copied {
        start: usize,
        len: usize,
    },
    Bytes(Bytes),
    Chunk(Chunk),
}

impl DatagramOutbox {
    /// How many datagrams wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What all that takes up. A datagram without any bytes takes up something too, so there cannot be any number of them.
    pub fn in_memory(&self) -> usize {
        self.bytes + self.waiting.len() * DatagramOutbox::OVERHEAD
    }

    /// What a datagram takes up besides its bytes.
    pub const OVERHEAD: usize = size_of::<Outgoing>();

    /// Appends a copy of `bytes`, for `to`, or for whom the socket is connected to.
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

    /// Appends what came in, without copying it.
    pub fn push_chunk(&mut self, to: Option<Address>, chunk: Chunk) {
        let len = chunk.len();
        self.push(to, Content::Chunk(chunk), len);
    }

    fn push(&mut self, to: Option<Address>, content: Content, len: usize) {
        self.bytes += len;
        self.waiting.push_back(Outgoing { to, content });
    }

    /// Those that wait, in order: for whom, and what.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&Address>, &[u8])> {
        self.waiting.iter().map(|outgoing| (outgoing.to.as_ref(), self.bytes_of(&outgoing.content)))
    }

    /// Whom the first one is for, if it has an address of its own.
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

    /// Takes out the first one, whatever has become of it, and says whom it was for.
    pub fn pop(&mut self) -> Option<Option<Address>> {
        let Outgoing { to, content } = self.waiting.pop_front()?;
        self.bytes -= self.bytes_of(&content).len();
        if self.waiting.is_empty() {
            self.before += self.copies.len();
            self.copies.clear();
            self.copies.shrink_to(KEPT_BYTES);
            self.waiting.shrink_to(KEPT_DATAGRAMS);
        } else if let Content::Copied { start, len } = content {
            // Moved up when most of them are gone, so that each byte is moved once at most.
            let gone = start + len - self.before;
            if gone > KEPT_BYTES && gone > self.copies.len() / 2 {
                self.copies.drain(..gone);
                self.before += gone;
            }
        }
        Some(to)
    }

    /// Takes out the first `count`, which have been sent.
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
    fn datagrams_keep_their_order_their_bounds_and_their_addresses() {
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
    fn copies_are_moved_up_while_others_wait_behind_them() {
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
        assert!(outbox.copies.len() < 3 * waiting, "{} bytes are kept of {waiting}", outbox.copies.len());
        for number in 400..800 {
            assert_eq!(outbox.iter().next().unwrap().1, content(number));
            outbox.advance(1);
        }
        assert!(outbox.copies.capacity() <= KEPT_BYTES, "what is left is little");
    }

    #[test]
    fn datagrams_without_bytes_take_up_something() {
        let mut outbox = DatagramOutbox::default();
        outbox.push_copy(None, b"");
        assert!(outbox.bytes() == 0 && outbox.in_memory() > 0 && !outbox.is_empty());
    }
}
