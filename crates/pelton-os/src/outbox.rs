//! Outgoing bytes and parts of files.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Chunk, Splice};

/// Copied pieces are collected in blocks of this size.
const BLOCK: usize = 16 * 1024;

/// Queued output, in order. Bytes are copied only if they are passed by reference.
#[derive(Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes in memory.
    bytes: usize,
    /// Bytes in files and pipes.
    in_files: u64,
    /// Bytes that an engine has taken to send later, in memory and in files.
    taken: (usize, u64),
    /// The memory of a block that has been sent, to reuse.
    spare_block: Vec<u8>,
}

enum Piece {
    Chunk(Chunk),
    Bytes(Bytes),
    Copied { block: Vec<u8>, sent: usize },
    File(FilePart),
    Splice { pipe: Rc<Splice>, len: usize },
}

/// A part of a file to send.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// The file. Its own position is neither used nor changed.
    pub file: Arc<File>,
    /// The offset of the part.
    pub offset: u64,
    /// The length of the part.
    pub len: u64,
}

impl Piece {
    /// Returns the bytes in memory.
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Chunk(chunk) => chunk,
            Piece::Bytes(bytes) => bytes,
            Piece::Copied { block, sent } => &block[*sent..],
            Piece::File(_) | Piece::Splice { .. } => &[],
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Piece::Chunk(chunk) => chunk.advance(count),
            Piece::Bytes(bytes) => bytes::Buf::advance(bytes, count),
            Piece::Copied { sent, .. } => *sent += count,
            Piece::File(_) | Piece::Splice { .. } => debug_assert_eq!(count, 0, "it is not in memory"),
        }
    }
}

impl Outbox {
    /// Returns how many bytes are queued, in memory and in files, including those [taken](Outbox::take).
    pub fn len(&self) -> u64 {
        self.in_memory() as u64 + self.in_files + self.taken.1
    }

    /// Returns how many bytes are queued in memory, including those [taken](Outbox::take).
    pub fn in_memory(&self) -> usize {
        self.bytes + self.taken.0
    }

    /// Returns whether nothing is queued or [taken](Outbox::take).
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.taken == (0, 0)
    }

    /// Takes everything out, for an engine that sends it later. It counts as queued until [`landed`](Outbox::landed).
    #[must_use]
    pub fn take(&mut self) -> Outbox {
        let taken = std::mem::replace(self, Outbox { taken: self.taken, ..Outbox::default() });
        self.taken.0 += taken.bytes;
        self.taken.1 += taken.in_files;
        Outbox { taken: (0, 0), ..taken }
    }

    /// Marks everything that was taken as sent.
    pub fn landed(&mut self) {
        self.taken = (0, 0);
    }

    /// Appends a copy of `bytes`.
    pub fn push_copy(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.bytes += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Copied { block, .. }) if block.len() + bytes.len() <= BLOCK => block.extend_from_slice(bytes),
            _ => {
                let mut block = std::mem::take(&mut self.spare_block);
                block.extend_from_slice(bytes);
                self.pieces.push_back(Piece::Copied { block, sent: 0 });
            }
        }
    }

    /// Appends the contents of `block` and leaves it empty. If nothing else is queued, this does not copy: it takes the block
    /// itself and leaves the memory of a sent one in its place.
    pub fn push_block(&mut self, block: &mut Vec<u8>) {
        if !self.pieces.is_empty() || block.len() > BLOCK {
            self.push_copy(block);
            return block.clear();
        }
        if block.is_empty() {
            return;
        }
        self.bytes += block.len();
        let block = std::mem::replace(block, std::mem::take(&mut self.spare_block));
        self.pieces.push_back(Piece::Copied { block, sent: 0 });
    }

    /// Appends `bytes` without copying them.
    pub fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    /// Appends a received chunk without copying it.
    pub fn push_chunk(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            self.bytes += chunk.len();
            self.pieces.push_back(Piece::Chunk(chunk));
        }
    }

    /// Appends a part of a file.
    pub fn push_file(&mut self, part: FilePart) {
        if part.len > 0 {
            self.in_files += part.len;
            self.pieces.push_back(Piece::File(part));
        }
    }

    /// Appends `len` bytes that the kernel holds in a pipe. They count as bytes of a file: they take up no memory here.
    pub fn push_splice(&mut self, pipe: Rc<Splice>, len: usize) {
        if len > 0 {
            self.in_files += len as u64;
            self.pieces.push_back(Piece::Splice { pipe, len });
        }
    }

    /// Appends everything that `later` has queued, without copying. Nothing of it may be [taken](Outbox::take).
    pub fn append(&mut self, mut later: Outbox) {
        debug_assert_eq!(later.taken, (0, 0), "bytes that are being sent cannot come later");
        self.bytes += later.bytes;
        self.in_files += later.in_files;
        self.pieces.append(&mut later.pieces);
    }

    /// Lists the first pieces in memory, for one vectored write. Returns how many there are: 0 if a file is next.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let in_memory = self.pieces.iter().take_while(|piece| !matches!(piece, Piece::File(_) | Piece::Splice { .. }));
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(in_memory) {
            *slice = IoSlice::new(piece.bytes());
            count += 1;
        }
        count
    }

    /// Returns all queued bytes if they are a single piece in memory.
    pub fn only_piece(&self) -> Option<&[u8]> {
        match self.pieces.front() {
            Some(piece) if self.pieces.len() == 1 && !matches!(piece, Piece::File(_) | Piece::Splice { .. }) => {
                Some(piece.bytes())
            }
            _ => None,
        }
    }

    /// Removes the only piece, which has been sent.
    pub fn only_piece_is_sent(&mut self) {
        debug_assert_eq!(self.pieces.len(), 1);
        self.bytes = 0;
        if let Some(piece) = self.pieces.pop_front() {
            self.reuse(piece);
        }
    }

    /// Keeps the memory of a block that has been sent.
    fn reuse(&mut self, piece: Piece) {
        if let Piece::Copied { mut block, .. } = piece
            && block.capacity() <= BLOCK
        {
            block.clear();
            self.spare_block = block;
        }
    }

    /// Returns the next piece if it is a part of a file.
    pub fn next_file(&self) -> Option<&FilePart> {
        match self.pieces.front() {
            Some(Piece::File(part)) => Some(part),
            _ => None,
        }
    }

    /// Returns the pipe that is next, and how many of its bytes.
    pub(crate) fn next_splice(&self) -> Option<(&Splice, usize)> {
        match self.pieces.front() {
            Some(Piece::Splice { pipe, len }) => Some((pipe, *len)),
            _ => None,
        }
    }

    /// Removes the first `count` bytes of the pipe that is next, which have been sent.
    pub(crate) fn advance_splice(&mut self, count: usize) {
        let Some(Piece::Splice { len, .. }) = self.pieces.front_mut() else {
            return debug_assert!(false, "a pipe is next");
        };
        debug_assert!(count <= *len);
        *len -= count;
        self.in_files -= count as u64;
        if *len == 0 {
            self.pieces.pop_front();
        }
    }

    /// Removes the first `count` bytes, which are in memory and have been sent.
    pub fn advance(&mut self, mut count: usize) {
        debug_assert!(count <= self.bytes);
        self.bytes -= count;
        while count > 0 {
            let Some(first) = self.pieces.front_mut() else { return };
            let there = first.bytes().len();
            if count < there {
                return first.advance(count);
            }
            count -= there;
            if let Some(piece) = self.pieces.pop_front() {
                self.reuse(piece);
            }
        }
    }

    /// Removes the first `count` bytes of the file part that is next, which have been sent.
    pub fn advance_file(&mut self, count: u64) {
        let Some(Piece::File(part)) = self.pieces.front_mut() else {
            return debug_assert!(false, "a file is next");
        };
        debug_assert!(count <= part.len);
        part.offset += count;
        part.len -= count;
        self.in_files -= count;
        if part.len == 0 {
            self.pieces.pop_front();
        }
    }

    /// Gives back loans that hold much more memory than bytes. Call it when the rest of the outbox has to wait.
    pub fn settle(&mut self) {
        for piece in &mut self.pieces {
            if let Piece::Chunk(chunk) = piece {
                chunk.compact();
            }
        }
    }
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbox({} bytes in {} pieces)", self.len(), self.pieces.len())
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
    fn taken_bytes_count_as_queued_until_they_have_landed() {
        let mut outbox = Outbox::default();
        outbox.push_copy(b"taken");
        let file = std::env::current_exe().and_then(File::open).unwrap();
        outbox.push_file(FilePart { file: file.into(), offset: 0, len: 10 });
        let taken = outbox.take();
        assert_eq!((taken.len(), taken.in_memory(), contents(&taken)), (15, 5, b"taken".to_vec()));
        assert!(!outbox.is_empty() && contents(&outbox).is_empty());
        outbox.push_copy(b"kept");
        assert_eq!((outbox.len(), outbox.in_memory(), contents(&outbox)), (19, 9, b"kept".to_vec()));
        outbox.landed();
        assert_eq!((outbox.len(), outbox.in_memory()), (4, 4));
        outbox.advance(4);
        assert!(outbox.is_empty());
    }

    #[test]
    fn pieces_keep_their_order_and_are_removed_from_the_front() {
        let mut outbox = Outbox::default();
        outbox.push_copy(b"one ");
        outbox.push_copy(b"two ");
        outbox.push_bytes(Bytes::from_static(b"three "));
        outbox.push_chunk(Chunk::from(b"four".to_vec()));
        outbox.push_copy(b"");
        assert_eq!((outbox.len(), outbox.pieces.len()), (18, 3), "small copies are collected in one block");
        for sent in 0..=18 {
            assert_eq!(contents(&outbox), b"one two three four"[sent..]);
            if sent < 18 {
                outbox.advance(1);
            }
        }
        assert!(outbox.is_empty() && outbox.pieces.is_empty());
    }

    #[test]
    fn a_block_is_taken_without_copying_if_nothing_is_queued() {
        let mut outbox = Outbox::default();
        let mut block = b"head".to_vec();
        let memory = block.as_ptr();
        outbox.push_block(&mut block);
        assert!(block.is_empty());
        assert_eq!(outbox.only_piece().map(<[u8]>::as_ptr), Some(memory), "the block was not copied");
        block.extend_from_slice(b" body");
        outbox.push_block(&mut block);
        assert_eq!((contents(&outbox), outbox.len(), block.len()), (b"head body".to_vec(), 9, 0));
        outbox.advance(9);
        block.extend_from_slice(b"next");
        outbox.push_block(&mut block);
        assert_eq!((contents(&outbox), outbox.len()), (b"next".to_vec(), 4));
        assert_eq!(block.as_ptr(), memory, "the memory of the first block is used again");
        let mut empty = Vec::new();
        outbox.push_block(&mut empty);
        assert_eq!(outbox.pieces.len(), 1);
    }

    #[test]
    fn an_appended_outbox_follows_and_is_counted() {
        let (mut first, mut later) = (Outbox::default(), Outbox::default());
        first.push_copy(b"in flight");
        let taken = first.take();
        first.push_copy(b"one ");
        later.push_copy(b"two ");
        let file = std::env::current_exe().and_then(File::open).unwrap();
        later.push_file(FilePart { file: file.into(), offset: 0, len: 10 });
        first.append(later);
        assert_eq!((first.len(), first.in_memory(), contents(&first)), (27, 17, b"one two ".to_vec()));
        first.landed();
        first.advance(8);
        assert_eq!((first.len(), first.next_file().map(|part| part.len)), (10, Some(10)));
        drop(taken);
    }

    #[test]
    fn many_bytes_are_removed_at_once_across_pieces() {
        let mut outbox = Outbox::default();
        for _ in 0..100 {
            outbox.push_bytes(Bytes::from_static(b"0123456789"));
        }
        outbox.advance(995);
        assert_eq!(contents(&outbox), b"56789");
    }

    #[test]
    fn a_file_waits_for_its_turn_and_holds_back_the_pieces_behind_it() {
        let file = Arc::new(File::open("/dev/null").unwrap());
        let mut outbox = Outbox::default();
        outbox.push_copy(b"before");
        outbox.push_file(FilePart { file: file.clone(), offset: 5, len: 10 });
        outbox.push_file(FilePart { file, offset: 0, len: 0 });
        outbox.push_copy(b"after");
        assert_eq!((outbox.len(), outbox.in_memory()), (21, 11));
        assert_eq!(contents(&outbox), b"before");
        assert!(outbox.next_file().is_none());
        outbox.advance(6);
        assert_eq!(contents(&outbox), b"");
        outbox.advance_file(4);
        let part = outbox.next_file().unwrap();
        assert_eq!((part.offset, part.len), (9, 6));
        outbox.advance_file(6);
        assert_eq!((contents(&outbox), outbox.len()), (b"after".to_vec(), 5));
    }
}
