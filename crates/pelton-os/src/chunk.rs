//! Bytes that came in, on loan from the engine.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// How much one read takes in at most.
const BUFFER: usize = 64 * 1024;

/// Reads go to a multiple of this: some processors copy many times slower to an address that is a few bytes past where the
/// data lies in its own page.
const ALIGNMENT: usize = 4096;

/// Buffers kept for the next read. One is enough while handlers let go of their chunks before they return.
const KEPT: usize = 4;

/// Buffers to read into, shared by an engine and the chunks it has lent.
pub(crate) struct Buffers {
    free: RefCell<Vec<Box<[u8]>>>,
    /// So many are kept at most.
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

    /// Reads into a buffer with `read`, which says how many bytes there are, and lends these.
    pub(crate) fn fill<E>(self: &Rc<Self>, read: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<Chunk, E> {
        let mut buffer = self.take();
        let start = aligned(&buffer);
        match read(&mut buffer[start..start + BUFFER]) {
            Ok(count) => Ok(Chunk { buffer, start, end: start + count, home: Some(self.clone()) }),
            Err(error) => {
                self.put(buffer);
                Err(error)
            }
        }
    }

    /// A buffer to read into, to be [lent](Buffers::lend) afterwards.
    pub(crate) fn take(&self) -> Box<[u8]> {
        self.free.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER + ALIGNMENT].into_boxed_slice())
    }

    /// Lends the first `end` bytes of a buffer.
    pub(crate) fn lend(self: &Rc<Self>, buffer: Box<[u8]>, end: usize) -> Chunk {
        Chunk { buffer, start: 0, end, home: Some(self.clone()) }
    }

    fn put(&self, buffer: Box<[u8]>) {
        let mut free = self.free.borrow_mut();
        if free.len() < self.kept {
            free.push(buffer);
        }
    }
}

/// Where in a buffer to begin.
fn aligned(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT)
}

/// Bytes that came in. They are on loan: the memory goes back to the engine when the chunk is dropped.
///
/// A chunk derefs to its bytes. It can be kept, or sent on without copying. It stays on the thread of its loop;
/// [`into_vec`](Chunk::into_vec) and `Bytes::from(chunk)` are bytes that can be sent to others.
pub struct Chunk {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    home: Option<Rc<Buffers>>,
}

impl Chunk {
    /// Drops the first `count` bytes.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance a chunk of {} bytes by {count}", self.len());
        self.start += count;
    }

    /// The bytes, in memory of their own: for other threads. A chunk cannot be sent there, because its memory belongs to its
    /// loop.
    ///
    /// ```compile_fail,E0277
    /// # fn received(chunk: pelton_os::Chunk) {
    /// std::thread::spawn(move || println!("{} bytes", chunk.len()));
    /// # }
    /// ```
    ///
    /// ```
    /// # fn received(chunk: pelton_os::Chunk) {
    /// let bytes = chunk.into_vec();
    /// std::thread::spawn(move || println!("{} bytes", bytes.len()));
    /// # }
    /// # received(vec![1, 2, 3].into());
    /// ```
    ///
    /// This copies, unless the chunk was made of a `Vec`.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        if self.home.is_some() || self.start > 0 || self.end < self.buffer.len() {
            return self.to_vec();
        }
        std::mem::take(&mut self.buffer).into_vec()
    }

    /// The same bytes in memory of their own if the loan is much larger than they are: for those who keep it for long.
    #[must_use]
    pub fn compacted(self) -> Chunk {
        if self.home.is_some() && self.len() < self.buffer.len() / 4 { Chunk::from(self.to_vec()) } else { self }
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Chunk {
        let buffer = bytes.into_boxed_slice();
        Chunk { start: 0, end: buffer.len(), buffer, home: None }
    }
}

impl From<Chunk> for Vec<u8> {
    fn from(chunk: Chunk) -> Vec<u8> {
        chunk.into_vec()
    }
}

impl From<Chunk> for bytes::Bytes {
    fn from(chunk: Chunk) -> bytes::Bytes {
        chunk.into_vec().into()
    }
}

impl Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put(std::mem::take(&mut self.buffer));
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_lends_a_buffer_that_comes_back() {
        let buffers = Rc::new(Buffers::default());
        let fill = || {
            buffers.fill(|buffer| {
                buffer[..5].copy_from_slice(b"hello");
                Ok::<_, ()>(5)
            })
        };
        let mut chunk = fill().unwrap();
        let place = chunk.as_ptr();
        chunk.advance(1);
        assert_eq!(&*chunk, b"ello");
        drop(chunk);
        let kept = fill().unwrap();
        assert_eq!(kept.as_ptr(), place, "the same buffer again");
        let other = fill().unwrap();
        assert_ne!(other.as_ptr(), place, "which is in use now");
        assert_eq!(&*kept.compacted(), b"hello");
        assert_eq!(fill().unwrap().as_ptr(), place, "compacting lets go of it");
    }
}
