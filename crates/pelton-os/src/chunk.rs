//! Received bytes, on loan from the engine.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

pub use self::buffers::Buffers;
use self::buffers::LentBuffer;
pub(crate) use self::buffers::{BUFFER, Buffer};

mod buffers;

/// Received bytes. They are on loan: the memory goes back to the engine when the chunk is dropped.
///
/// A chunk derefs to its bytes. It can be kept, or sent on without copying. It stays on the thread of its loop;
/// [`into_vec`](Chunk::into_vec) and `Bytes::from(chunk)` give bytes that can go to other threads.
pub struct Chunk {
    memory: Memory,
    start: usize,
    end: usize,
}

/// Where the bytes are.
enum Memory {
    /// In a buffer of the readiness engine.
    Buffer(LentBuffer),
    /// In memory of their own.
    Own(Box<[u8]>),
    /// In a slot of another engine's memory.
    Slot { lender: Rc<dyn Lender>, slot: u32 },
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The other variants need nothing: their fields are dropped next.
        if let Memory::Slot { lender, slot } = self {
            lender.give_back(*slot);
        }
    }
}

// A chunk is moved several times per message, so its size counts: five words of 64 bits. A thin pointer to the buffer and a
// short slot number keep the tag from taking another word.
const _: () = assert!(size_of::<Chunk>() <= 40);

/// Memory that an engine lends out in numbered slots: the buffers of a kernel ring, or the messages of a simulated network.
///
/// [`Chunk::lent`] makes a chunk of a slot. It reads the slot until it is dropped, and then [gives it
/// back](Lender::give_back). A chunk costs a reference count, no allocation.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// use pelton_os::{Chunk, Lender};
///
/// struct Pool {
///     slots: [[u8; 8]; 2],
///     given_back: Cell<usize>,
/// }
///
/// impl Lender for Pool {
///     fn slot(&self, slot: u32) -> &[u8] {
///         &self.slots[slot as usize]
///     }
///
///     fn give_back(&self, slot: u32) {
///         self.given_back.set(self.given_back.get() + 1);
///     }
/// }
///
/// let pool = Rc::new(Pool { slots: [*b"received", *b"........"], given_back: Cell::new(0) });
/// let chunk = Chunk::lent(pool.clone(), 0, 7);
/// assert_eq!(&*chunk, b"receive");
/// drop(chunk);
/// assert_eq!(pool.given_back.get(), 1);
/// ```
pub trait Lender: 'static {
    /// Returns all memory of a slot that is on loan. It stays the same, contents included, until the slot is given back.
    fn slot(&self, slot: u32) -> &[u8];

    /// Takes a slot back. Called once per chunk, when the chunk is dropped.
    fn give_back(&self, slot: u32);
}

impl Chunk {
    /// Makes a chunk of the first `len` bytes of a slot.
    ///
    /// # Panics
    ///
    /// If the slot is shorter than that. The slot is then not given back.
    pub fn lent(lender: Rc<dyn Lender>, slot: u32, len: usize) -> Chunk {
        let size = lender.slot(slot).len();
        assert!(len <= size, "lend {len} bytes of a slot of {size}");
        Chunk { memory: Memory::Slot { lender, slot }, start: 0, end: len }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the first `count` bytes.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len(), "advance a chunk of {} bytes by {count}", self.len());
        self.start += count;
    }

    /// Returns the bytes in memory of their own, for other threads. A chunk itself cannot go there, because its memory belongs
    /// to its loop.
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
    /// This copies, unless the chunk was made from a `Vec`.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        match &mut self.memory {
            Memory::Own(bytes) if self.start == 0 && self.end == bytes.len() => std::mem::take(bytes).into_vec(),
            _ => self.to_vec(),
        }
    }

    /// Copies the bytes to memory of their own if the loan is much larger than they are. Call it before keeping a chunk for
    /// long.
    #[must_use]
    pub fn compacted(mut self) -> Chunk {
        self.compact();
        self
    }

    /// [`compacted`](Chunk::compacted), in place.
    pub fn compact(&mut self) {
        let on_loan = match &self.memory {
            Memory::Own(_) => 0,
            Memory::Buffer(lent) => lent.bytes().len(),
            Memory::Slot { lender, slot } => lender.slot(*slot).len(),
        };
        if self.len() < on_loan / 4 {
            *self = Chunk::from(self.to_vec());
        }
    }
}

impl From<Vec<u8>> for Chunk {
    fn from(bytes: Vec<u8>) -> Chunk {
        let bytes = bytes.into_boxed_slice();
        Chunk { start: 0, end: bytes.len(), memory: Memory::Own(bytes) }
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
    #[inline]
    fn deref(&self) -> &[u8] {
        let memory = match &self.memory {
            Memory::Buffer(lent) => lent.bytes(),
            Memory::Own(bytes) => bytes,
            Memory::Slot { lender, slot } => lender.slot(*slot),
        };
        &memory[self.start..self.end]
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{DatagramOutbox, Outbox};

    /// Lends slots of 16 bytes, each filled with its number, and records which came back.
    struct Toy {
        slots: [[u8; 16]; 4],
        given_back: RefCell<Vec<u32>>,
    }

    impl Toy {
        fn new() -> Rc<Toy> {
            let slots = [0, 1, 2, 3].map(|number| [number; 16]);
            Rc::new(Toy { slots, given_back: RefCell::default() })
        }
    }

    impl Lender for Toy {
        fn slot(&self, slot: u32) -> &[u8] {
            assert!(!self.given_back.borrow().contains(&slot), "slot {slot} is not on loan");
            &self.slots[slot as usize]
        }

        fn give_back(&self, slot: u32) {
            self.given_back.borrow_mut().push(slot);
        }
    }

    #[test]
    fn a_slot_is_given_back_once_however_its_chunk_ends() {
        let toy = Toy::new();
        let lend = |slot, len| Chunk::lent(toy.clone(), slot, len);
        let mut dropped = lend(0, 16);
        dropped.advance(3);
        assert_eq!(&*dropped, [0; 13]);
        drop(dropped);
        assert_eq!(lend(1, 5).into_vec(), [1; 5]);
        assert_eq!(bytes::Bytes::from(lend(2, 6)), [2; 6][..]);
        assert_eq!(*toy.given_back.borrow(), [0, 1, 2]);
        let compacted = lend(3, 3).compacted();
        assert_eq!(*toy.given_back.borrow(), [0, 1, 2, 3], "three of sixteen bytes do not keep the slot");
        assert_eq!(&*compacted, [3; 3]);
        drop(compacted);
        assert_eq!(toy.given_back.borrow().len(), 4);
        assert_eq!(Rc::strong_count(&toy), 1);
    }

    #[test]
    fn an_outbox_gives_slots_back_as_they_are_sent() {
        let toy = Toy::new();
        let mut outbox = Outbox::default();
        for slot in 0..3 {
            outbox.push_chunk(Chunk::lent(toy.clone(), slot, 10));
        }
        outbox.advance(15);
        assert_eq!(*toy.given_back.borrow(), [0]);
        outbox.settle();
        assert_eq!(*toy.given_back.borrow(), [0], "five and ten of sixteen bytes are worth the slot");
        outbox.advance(2);
        outbox.settle();
        assert_eq!(*toy.given_back.borrow(), [0, 1], "three are not");
        drop(outbox);
        assert_eq!(*toy.given_back.borrow(), [0, 1, 2]);
        let mut datagrams = DatagramOutbox::default();
        datagrams.push_chunk(None, Chunk::lent(toy.clone(), 3, 16));
        assert_eq!(datagrams.iter().next().map(|(_, bytes)| bytes.len()), Some(16));
        datagrams.advance(1);
        assert_eq!(*toy.given_back.borrow(), [0, 1, 2, 3]);
    }

    #[test]
    fn more_than_a_slot_holds_is_not_lent() {
        let toy = Toy::new();
        let lend = std::panic::AssertUnwindSafe(|| Chunk::lent(toy.clone(), 0, 17));
        assert!(std::panic::catch_unwind(lend).is_err());
        assert!(toy.given_back.borrow().is_empty());
    }

    #[test]
    fn a_buffer_is_reused_when_its_chunk_is_gone() {
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
        assert_ne!(other.as_ptr(), place, "the buffer is in use");
        assert_eq!(&*kept.compacted(), b"hello");
        assert_eq!(fill().unwrap().as_ptr(), place, "compacting released it");
    }
}
