//! The buffers that the readiness engine reads into.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Chunk, Memory};

/// Bytes that one read takes at most.
const BUFFER: usize = 64 * 1024;

/// Reads start at a multiple of this: some processors copy many times slower if source and destination differ by a few bytes
/// within their pages.
const ALIGNMENT: usize = 4096;

/// Buffers kept for the next read. One is enough while handlers drop their chunks before they return.
const KEPT: usize = 4;

/// Free buffers, shared by an engine and the chunks that it has lent.
pub(crate) struct Buffers {
    free: RefCell<Vec<Box<[u8]>>>,
    /// How many free buffers are kept at most.
    kept: usize,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers::keeping(KEPT)
    }
}

impl Buffers {
    pub(crate) fn keeping(kept: usize) -> Buffers {
        Buffers { free: RefCell::default(), kept }
    }

    /// Calls `read` with a buffer and lends as many bytes of it as `read` says it has filled.
    pub(crate) fn fill<E>(self: &Rc<Self>, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<Chunk, E> {
        let mut bytes = self.take();
        let start = aligned(&bytes);
        match read(&mut bytes[start..start + BUFFER]) {
            Ok(count) => {
                let memory = Memory::Buffer { bytes, home: Some(self.clone()) };
                Ok(Chunk { memory, start, end: start + count })
            }
            Err(error) => {
                self.put(bytes);
                Err(error)
            }
        }
    }

    /// Takes a buffer to read into, to be [lent](Buffers::lend) afterwards.
    pub(crate) fn take(&self) -> Box<[u8]> {
        self.free.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER + ALIGNMENT].into_boxed_slice())
    }

    /// Lends the first `end` bytes of a buffer.
    pub(crate) fn lend(self: &Rc<Self>, bytes: Box<[u8]>, end: usize) -> Chunk {
        Chunk { memory: Memory::Buffer { bytes, home: Some(self.clone()) }, start: 0, end }
    }

    pub(super) fn put(&self, buffer: Box<[u8]>) {
        let mut free = self.free.borrow_mut();
        if free.len() < self.kept {
            free.push(buffer);
        }
    }
}

/// The first aligned position in a buffer.
fn aligned(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT)
}
