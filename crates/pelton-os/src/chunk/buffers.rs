//! The buffers that the readiness engine reads into.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Chunk, Memory};

/// Bytes that one read takes at most.
pub(crate) const BUFFER: usize = 64 * 1024;

/// Reads start at a multiple of this: some processors copy many times slower if source and destination differ by a few bytes
/// within their pages.
const ALIGNMENT: usize = 4096;

/// Memory for a read at an aligned address.
pub(crate) type Buffer = [u8; BUFFER + ALIGNMENT];

/// Buffers kept for the next read. One is enough while handlers drop their chunks before they return.
const KEPT: usize = 4;

/// Free buffers, shared by their owner and the chunks that it has lent.
///
/// ```
/// use std::io::Read;
/// use std::rc::Rc;
///
/// use pelton_os::Buffers;
///
/// let buffers = Rc::new(Buffers::default());
/// let chunk = buffers.fill(|buffer| (&b"received"[..]).read(buffer))?;
/// assert_eq!(&*chunk, b"received");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Buffers {
    free: RefCell<Vec<Box<Buffer>>>,
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

    /// Calls `read` with a buffer of 64 KiB and lends as many bytes of it as `read` says it has filled. The buffer goes
    /// back when the chunk is dropped. Its contents before the call are those of an earlier chunk.
    ///
    /// # Panics
    ///
    /// If `read` says that it has filled more bytes than the buffer has.
    pub fn fill<E>(self: &Rc<Self>, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<Chunk, E> {
        let mut buffer = self.take();
        let start = aligned(&buffer);
        match read(&mut buffer[start..start + BUFFER]) {
            Ok(count) => {
                // Checked here, because `Chunk::len` relies on it.
                assert!(count <= BUFFER, "{count} bytes do not fit into a buffer");
                Ok(Chunk { memory: self.memory(buffer), start, end: start + count })
            }
            Err(error) => {
                self.put(buffer);
                Err(error)
            }
        }
    }

    /// Takes a buffer to read into, to be [lent](Buffers::lend) afterwards.
    pub(crate) fn take(&self) -> Box<Buffer> {
        self.free.borrow_mut().pop().unwrap_or_else(new)
    }

    /// Lends the first `end` bytes of a buffer.
    pub(crate) fn lend(self: &Rc<Self>, buffer: Box<Buffer>, end: usize) -> Chunk {
        assert!(end <= buffer.len(), "lend {end} bytes of a buffer");
        Chunk { memory: self.memory(buffer), start: 0, end }
    }

    fn memory(self: &Rc<Self>, buffer: Box<Buffer>) -> Memory {
        Memory::Buffer(LentBuffer { buffer: Some(buffer), home: self.clone() })
    }

    fn put(&self, buffer: Box<Buffer>) {
        let mut free = self.free.borrow_mut();
        if free.len() < self.kept {
            free.push(buffer);
        }
    }
}

/// A buffer on loan, returned to the free list when it is dropped.
pub(super) struct LentBuffer {
    /// `None` only while this is being dropped.
    buffer: Option<Box<Buffer>>,
    home: Rc<Buffers>,
}

impl LentBuffer {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..])
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.home.put(buffer);
        }
    }
}

/// Allocates a buffer. The memory comes zeroed from the system, and is not touched before it is read into.
fn new() -> Box<Buffer> {
    let bytes = vec![0; size_of::<Buffer>()].into_boxed_slice();
    bytes.try_into().unwrap_or_else(|_| unreachable!("the length is that of a buffer"))
}

/// The first aligned position in a buffer.
fn aligned(buffer: &Buffer) -> usize {
    buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT)
}
