//! Bytes that are to go out.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;

use bytes::Bytes;

use crate::Chunk;

/// Small pieces that are copied are put together in blocks of this size.
const BLOCK: usize = 16 * 1024;

/// What waits to be sent, in order. Bytes that are handed over, not just shown, are not copied.
#[derive(Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    len: usize,
}

enum Piece {
    Chunk(Chunk),
    Bytes(Bytes),
    Copied { block: Vec<u8>, sent: usize },
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Chunk(chunk) => chunk,
            Piece::Bytes(bytes) => bytes,
            Piece::Copied { block, sent } => &block[*sent..],
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Piece::Chunk(chunk) => chunk.advance(count),
            Piece::Bytes(bytes) => bytes::Buf::advance(bytes, count),
            Piece::Copied { sent, .. } => *sent += count,
        }
    }
}

impl Outbox {
    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy of `bytes`.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Copied { block, .. }) if block.len() + bytes.len() <= BLOCK => block.extend_from_slice(bytes),
            _ => self.pieces.push_back(Piece::Copied { block: bytes.to_vec(), sent: 0 }),
        }
    }

    /// Appends `bytes` without copying them.
    pub fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    /// Appends a chunk that came in, without copying it.
    pub fn push_chunk(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            self.len += chunk.len();
            self.pieces.push_back(Piece::Chunk(chunk));
        }
    }

    /// Lists the first pieces, for one system call, and says how many these are.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece.bytes());
        }
        slices.len().min(self.pieces.len())
    }

    /// Takes out the first `count` bytes, which have been sent.
    pub fn advance(&mut self, mut count: usize) {
        debug_assert!(count <= self.len);
        self.len -= count;
        while let Some(first) = self.pieces.front_mut() {
            let there = first.bytes().len();
            if count < there {
                first.advance(count);
                break;
            }
            count -= there;
            self.pieces.pop_front();
        }
    }

    /// Moves the memory of an empty outbox to one that has none: whoever has nothing to send needs none either.
    pub fn lend_memory(&mut self, to: &mut Outbox) {
        if self.pieces.is_empty() && to.pieces.capacity() == 0 {
            std::mem::swap(&mut self.pieces, &mut to.pieces);
        } else if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }

    /// To be called when what is left has to wait: lends are given back if they hold much more memory than bytes.
    pub fn settle(&mut self) {
        for piece in &mut self.pieces {
            if let Piece::Chunk(chunk) = piece {
                let lent = std::mem::replace(chunk, Chunk::from(Vec::new()));
                *chunk = lent.compacted();
            }
        }
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbox({} bytes in {} pieces)", self.len, self.pieces.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(outbox: &Outbox) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 8];
        let count = outbox.gather(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn pieces_keep_their_order_and_are_taken_out_from_the_front() {
        let mut outbox = Outbox::default();
        outbox.push_copy(b"one ");
        outbox.push_copy(b"two ");
        outbox.push_bytes(Bytes::from_static(b"three "));
        outbox.push_chunk(Chunk::from(b"four".to_vec()));
        outbox.push_copy(b"");
        assert_eq!((outbox.len(), outbox.pieces.len()), (18, 3), "small copies are put together");
        for sent in 0..=18 {
            assert_eq!(contents(&outbox), b"one two three four"[sent..]);
            if sent < 18 {
                outbox.advance(1);
            }
        }
        assert!(outbox.is_empty() && outbox.pieces.is_empty());
    }

    #[test]
    fn many_bytes_are_taken_out_at_once_across_pieces() {
        let mut outbox = Outbox::default();
        for _ in 0..100 {
            outbox.push_bytes(Bytes::from_static(b"0123456789"));
        }
        outbox.advance(995);
        assert_eq!(contents(&outbox), b"56789");
    }
}
