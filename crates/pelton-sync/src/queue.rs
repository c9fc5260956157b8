//! The queue into the loop: many senders, one receiver, no lock.
//!
//! Positions count up from 0. A sender claims the next position by adding to `tail`, writes its value to the slot of that
//! position, and publishes it by swapping the slot's state. Slots are in blocks, which are linked in order:
//!
//! ```text
//!            oldest             head                                front          (tail: a position)
//!              │                 │                                   │                    │
//!              ▼                 ▼                                   ▼                    ▼
//!         ┌─────────┐       ┌─────────┐      ┌─────────┐        ┌─────────┐      ┌─────────────┐
//!         │ retired │──────▶│ 128…191 │─────▶│ 192…255 │──▶ … ─▶│ 512…575 │─────▶│  576…639    │────▶ null
//!         └─────────┘       └─────────┘      └─────────┘        └─────────┘      └─────────────┘
//!           read, not yet     being read                          senders start looking here,
//!           safe to reuse                                         or at head if that is too late
//! ```
//!
//! **No sender waits for another.** A sender that needs the next block and finds none links one in. **The receiver waits for
//! nobody.** A claimed slot that is not written yet reads as the end of the queue.
//!
//! **Finding the slot.** Senders that are well into a later block move `front` there. A sender that is delayed between claiming
//! its position and reading `front` may find that `front` has passed its block. It then starts at `head`, the block that the
//! receiver reads from, which cannot pass a slot that has not been written.
//!
//! **Sleeping.** Before it sleeps, the receiver marks the slot that it will read next as `AWAITED`. Only the sender that fills
//! this slot finds the mark, and it is told to wake the receiver. All other senders learn from their own swap that there is
//! nothing to do. So no wake-up is lost, because mark and publication are operations on the same word and therefore ordered.
//! There is at most one wake-up per sleep, without a flag that every sender would have to read.
//!
//! **Reuse.** A sender first claims its position and *then* reads `front` and `head`. So the receiver retires a block in three
//! steps: it moves both past it, *then* reads `tail`, and reuses the block once it has read everything before that position.
//! The read is an atomic addition of 0, so it is ordered with all claims. A claim after it sees the moved pointers. A claim
//! before it belongs to a sender that has finished with the block when its value is read.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::memory::{Arc, AtomicPtr, AtomicU8, AtomicUsize, Padded, UnsafeCell, yield_now};

/// Slots per block: enough to make linking rare, few enough to keep an idle queue small.
const BLOCK: usize = if cfg!(loom) { 2 } else { 64 };

/// Empty blocks that are kept for reuse: the queue does not allocate while it holds fewer than `BLOCK * SPARES` values.
const SPARES: usize = if cfg!(loom) { 1 } else { 16 };

/// Added to `tail` for each claim. The lowest bit says that the queue is closed.
const CLAIM: usize = 2;
const CLOSED: usize = 1;

/// The states of a slot.
const EMPTY: u8 = 0;
const FULL: u8 = 1;
/// Empty, and the receiver sleeps until it is filled.
const AWAITED: u8 = 2;

struct Slot<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

struct Block<T> {
    /// The position of the first slot. Constant while the block is linked.
    start: usize,
    next: AtomicPtr<Block<T>>,
    /// For a retired block: it is reusable when everything before this position has been read. Only the receiver uses this.
    reusable_at: AtomicUsize,
    slots: [Slot<T>; BLOCK],
}

impl<T> Block<T> {
    fn new(start: usize) -> Box<Block<T>> {
        Box::new(Block {
            start,
            next: AtomicPtr::new(ptr::null_mut()),
            reusable_at: AtomicUsize::new(0),
            slots: std::array::from_fn(|_| Slot {
                state: AtomicU8::new(EMPTY),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            }),
        })
    }
}

struct Shared<T> {
    /// `CLAIM` times the next position to claim, plus `CLOSED`.
    tail: Padded<AtomicUsize>,
    /// Where senders start to search for their block.
    front: Padded<AtomicPtr<Block<T>>>,
    /// The block that the receiver reads from.
    head: Padded<AtomicPtr<Block<T>>>,
    /// How many values the receiver has taken, for the bound of `try_push`.
    taken: Padded<AtomicUsize>,
    spares: [AtomicPtr<Block<T>>; SPARES],
}

// SAFETY: each value moves from the one thread that pushed it to the one that receives it, and is dropped there.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above. The state of a slot orders all accesses to its value.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Writes `value` into the slot of a claimed position.
    fn publish(&self, position: usize, value: T) -> Pushed {
        let block = self.find(position);
        // SAFETY: `find` returns a linked block. It is not reused before `position` has been read, which is after the swap
        // below, our last use of it.
        let slot = unsafe { &(*block).slots[position % BLOCK] };
        slot.value.with_mut(|place| {
            // SAFETY: only we have this position, and the receiver does not access the value before the state is FULL.
            unsafe { (*place).write(value) };
        });
        match slot.state.swap(FULL, AcqRel) {
            AWAITED => Pushed::ReceiverSleeps,
            _ => Pushed::ReceiverAwake,
        }
    }

    /// Finds the block of a claimed position.
    fn find(&self, position: usize) -> *mut Block<T> {
        let offset = position % BLOCK;
        let start = position - offset;
        let front = self.front.load(Acquire);
        let mut block = front;
        // SAFETY: the pointer is never null, and the block is not reused before `position` has been read (see "Reuse").
        if unsafe { (*block).start } > start {
            block = self.head.load(Acquire);
        }
        loop {
            // SAFETY: as above. The same holds for all blocks from there to ours.
            let current = unsafe { &*block };
            if current.start == start {
                break;
            }
            block = self.next_or_link(current);
        }
        // Only well into a block, so that senders with the last slots before it still find theirs from `front`.
        // SAFETY: as above.
        if offset >= BLOCK / 2 && unsafe { (*front).start } < start {
            // A failure means that another sender has moved it.
            let _ = self.front.compare_exchange(front, block, AcqRel, Relaxed);
        }
        block
    }

    /// Returns the block after this one. Links one in if there is none.
    fn next_or_link(&self, block: &Block<T>) -> *mut Block<T> {
        let next = block.next.load(Acquire);
        if !next.is_null() {
            return next;
        }
        let start = block.start + BLOCK;
        let mut fresh = self.take_spare().unwrap_or_else(|| Block::new(start));
        fresh.start = start;
        let fresh = Box::into_raw(fresh);
        match block.next.compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire) {
            Ok(_) => fresh,
            Err(linked) => {
                // SAFETY: it is ours since `into_raw`, because the exchange failed.
                self.keep_spare(unsafe { Box::from_raw(fresh) });
                linked
            }
        }
    }

    fn take_spare(&self) -> Option<Box<Block<T>>> {
        self.spares.iter().find_map(|place| {
            if place.load(Relaxed).is_null() {
                return None;
            }
            let spare = NonNull::new(place.swap(ptr::null_mut(), Acquire))?;
            // SAFETY: `keep_spare` put it there from a box, and the swap made it ours.
            Some(unsafe { Box::from_raw(spare.as_ptr()) })
        })
    }

    /// Keeps a block without values for reuse, or frees it if there are enough.
    fn keep_spare(&self, block: Box<Block<T>>) {
        for slot in &block.slots {
            slot.state.store(EMPTY, Relaxed);
        }
        block.next.store(ptr::null_mut(), Relaxed);
        let block = Box::into_raw(block);
        let kept =
            self.spares.iter().any(|place| place.compare_exchange(ptr::null_mut(), block, Release, Relaxed).is_ok());
        if !kept {
            // SAFETY: it is ours since `into_raw`, because no place took it.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // The receiver frees the linked blocks.
        while self.take_spare().is_some() {}
    }
}

/// Creates a queue.
///
/// ```
/// let (sender, mut receiver) = pelton_sync::queue();
/// sender.push("water").unwrap();
/// assert_eq!(receiver.pop(), Some("water"));
/// assert_eq!(receiver.pop(), None);
/// ```
pub fn queue<T: Send>() -> (Sender<T>, Receiver<T>) {
    let first = Box::into_raw(Block::new(0));
    let shared = Arc::new(Shared {
        tail: Padded(AtomicUsize::new(0)),
        front: Padded(AtomicPtr::new(first)),
        head: Padded(AtomicPtr::new(first)),
        taken: Padded(AtomicUsize::new(0)),
        spares: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
    });
    (Sender { shared: shared.clone() }, Receiver { shared, head: 0, end: None, block: first, oldest: first })
}

/// What to do after a successful push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a sleeping receiver has to be woken"]
pub enum Pushed {
    /// Nothing: the receiver is awake, or another sender has to wake it.
    ReceiverAwake,
    /// Wake the receiver.
    ReceiverSleeps,
}

/// Why a push was refused. Contains the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PushError<T> {
    /// The queue holds as many values as allowed.
    Full(T),
    /// The queue is [closed](Receiver::close), or the receiver was dropped.
    Closed(T),
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PushError::Full(_) => "Full(..)",
            PushError::Closed(_) => "Closed(..)",
        })
    }
}

/// The sending end. Clone it for more senders.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { shared: self.shared.clone() }
    }
}

impl<T: Send> Sender<T> {
    /// Appends `value`, regardless of how many are queued. Refused only if the queue is [closed](Receiver::close) or the
    /// receiver was dropped.
    pub fn push(&self, value: T) -> Result<Pushed, PushError<T>> {
        self.push_as(value, |value| value)
    }

    /// Appends `value` if fewer than `bound` are queued.
    pub fn try_push(&self, value: T, bound: usize) -> Result<Pushed, PushError<T>> {
        self.try_push_as(value, bound, |value| value)
    }

    /// Like [`push`](Sender::push), of `make(value)`, which is called only if the push is not refused. If `make` panics, the
    /// process aborts.
    pub fn push_as<V>(&self, value: V, make: impl FnOnce(V) -> T) -> Result<Pushed, PushError<V>> {
        // Acquire: sees `front` and `head` as they were moved before the receiver last read `tail`.
        let tail = self.shared.tail.fetch_add(CLAIM, Acquire);
        if tail & CLOSED != 0 {
            // The receiver does not read this position. Giving it back keeps `len` right.
            self.shared.tail.fetch_sub(CLAIM, Relaxed);
            return Err(PushError::Closed(value));
        }
        Ok(self.publish(tail / CLAIM, value, make))
    }

    /// Like [`try_push`](Sender::try_push), of `make(value)`, which is called only if the push is not refused. If `make`
    /// panics, the process aborts.
    pub fn try_push_as<V>(&self, value: V, bound: usize, make: impl FnOnce(V) -> T) -> Result<Pushed, PushError<V>> {
        let mut tail = self.shared.tail.load(Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(PushError::Closed(value));
            }
            // A stale `taken` makes the queue look longer than it is, never shorter. `taken` can be ahead of a `tail` that was
            // read earlier. Then the exchange fails.
            let waiting = (tail / CLAIM).saturating_sub(self.shared.taken.load(Relaxed));
            if waiting >= bound {
                return Err(PushError::Full(value));
            }
            match self.shared.tail.compare_exchange_weak(tail, tail + CLAIM, Acquire, Relaxed) {
                Ok(_) => return Ok(self.publish(tail / CLAIM, value, make)),
                Err(changed) => tail = changed,
            }
        }
    }

    fn publish<V>(&self, position: usize, value: V, make: impl FnOnce(V) -> T) -> Pushed {
        /// A claimed position that is never published would block everything behind it forever.
        struct AbortOnUnwind;
        impl Drop for AbortOnUnwind {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        let guard = AbortOnUnwind;
        let value = make(value);
        std::mem::forget(guard);
        self.shared.publish(position, value)
    }

    /// Returns whether pushes are refused: the queue is [closed](Receiver::close), or the receiver was dropped.
    pub fn is_closed(&self) -> bool {
        self.shared.tail.load(Relaxed) & CLOSED != 0
    }

    /// Returns how many values have been pushed so far, including those that are just being written.
    #[inline]
    pub fn pushed(&self) -> usize {
        self.shared.tail.load(Relaxed) / CLAIM
    }

    /// Returns about how many values are queued.
    pub fn len(&self) -> usize {
        self.pushed().saturating_sub(self.shared.taken.load(Relaxed))
    }

    /// Returns whether about no values are queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The receiving end. Dropping it drops the queued values and refuses later ones.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The position to read next. It is always in `block`.
    head: usize,
    /// After closing: the position after the last value.
    end: Option<usize>,
    block: *mut Block<T>,
    /// The first of the retired blocks before `block`.
    oldest: *mut Block<T>,
}

// SAFETY: the receiver can be used from any one thread at a time. Its pointers lead into the shared queue.
unsafe impl<T: Send> Send for Receiver<T> {}

impl<T> Receiver<T> {
    fn slot(&self) -> &Slot<T> {
        // SAFETY: only the receiver frees or reuses blocks from `oldest` on, and never `block`.
        unsafe { &(*self.block).slots[self.head % BLOCK] }
    }

    /// Takes the oldest value. Also returns `None` while that value is still being written. Its sender will wake a receiver
    /// that [sleeps](Receiver::sleep).
    pub fn pop(&mut self) -> Option<T> {
        let slot = self.slot();
        if slot.state.load(Acquire) != FULL {
            return None;
        }
        // SAFETY: FULL means that the value is written. `head` moves on, so it is read once.
        let value = slot.value.with_mut(|place| unsafe { (*place).assume_init_read() });
        self.head += 1;
        self.shared.taken.store(self.head, Relaxed);
        if self.head.is_multiple_of(BLOCK) {
            self.retire_block();
        }
        Some(value)
    }

    /// Moves on to the next block, and reuses earlier ones that no sender can be accessing.
    fn retire_block(&mut self) {
        // SAFETY: see `slot`.
        let read = unsafe { &*self.block };
        let next = self.shared.next_or_link(read);
        self.shared.head.store(next, Release);
        // A failure means that a sender has already moved it past this block.
        let _ = self.shared.front.compare_exchange(self.block, next, AcqRel, Relaxed);
        // Adding 0 orders this read of the tail with the senders' claims. See "Reuse".
        let claimed = self.shared.tail.fetch_add(0, AcqRel) / CLAIM;
        read.reusable_at.store(claimed, Relaxed);
        self.block = next;
        while self.oldest != self.block {
            // SAFETY: `oldest` is linked, and only we reuse or free blocks before `block`.
            let oldest = unsafe { &*self.oldest };
            if oldest.reusable_at.load(Relaxed) > self.head {
                break;
            }
            let following = oldest.next.load(Acquire);
            // SAFETY: the block came from a box. Senders that claimed a position before it was retired have published, and
            // later ones start from a later block. Its values have been read.
            self.shared.keep_spare(unsafe { Box::from_raw(self.oldest) });
            self.oldest = following;
        }
    }

    /// Returns how many values have been taken so far.
    pub fn taken(&self) -> usize {
        self.head
    }

    /// Refuses every push from now on. Values that were pushed before can still be taken.
    ///
    /// ```
    /// let (sender, mut receiver) = pelton_sync::queue();
    /// sender.push("in time").unwrap();
    /// receiver.close();
    /// assert_eq!(sender.push("too late"), Err(pelton_sync::PushError::Closed("too late")));
    /// assert_eq!(receiver.pop_rest(), Some("in time"));
    /// assert_eq!(receiver.pop_rest(), None);
    /// ```
    pub fn close(&mut self) {
        if self.end.is_none() {
            self.end = Some(self.shared.tail.fetch_or(CLOSED, AcqRel) / CLAIM);
        }
    }

    /// Takes the oldest value of a [closed](Receiver::close) queue. Unlike [`pop`](Receiver::pop), it waits for a sender that
    /// has claimed a position and is about to write its value. `None`: the queue is not closed, or empty for good.
    pub fn pop_rest(&mut self) -> Option<T> {
        while self.head < self.end? {
            match self.pop() {
                Some(value) => return Some(value),
                None => yield_now(),
            }
        }
        None
    }

    /// Closes the queue without waiting for senders that have claimed a position but not published it. In a forked child these
    /// threads do not exist, so they never will. Returns the values before the first such gap. Leaks the queue's memory.
    pub fn abandon(mut self) -> Vec<T> {
        self.close();
        let values = std::iter::from_fn(|| self.pop()).collect();
        std::mem::forget(self);
        values
    }

    /// Returns whether [`pop`](Receiver::pop) would return `None` now.
    pub fn is_empty(&self) -> bool {
        self.slot().state.load(Acquire) != FULL
    }

    /// Announces that the receiver is about to sleep. Returns `false` if there is a value, so that it must not sleep.
    ///
    /// From now on until [`awake`](Receiver::awake), the sender of the next value is told [`Pushed::ReceiverSleeps`].
    pub fn sleep(&mut self) -> bool {
        !matches!(self.slot().state.compare_exchange(EMPTY, AWAITED, AcqRel, Acquire), Err(FULL))
    }

    /// Withdraws the announcement, so that senders do not wake a receiver that is already awake.
    pub fn awake(&mut self) {
        // A failure means that the value has come.
        let _ = self.slot().state.compare_exchange(AWAITED, EMPTY, AcqRel, Relaxed);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
        while let Some(value) = self.pop_rest() {
            drop(value);
        }
        // Every sender that will ever access a block has published, which is its last access.
        let mut block = self.oldest;
        while !block.is_null() {
            // SAFETY: linked blocks came from boxes, and nobody else accesses them any more.
            let boxed = unsafe { Box::from_raw(block) };
            block = boxed.next.load(Acquire);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver(at {})", self.head)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Claims a position and stops, like a thread that is preempted at the wrong moment.
    fn claim_and_stop(sender: &Sender<usize>) -> usize {
        sender.shared.tail.fetch_add(CLAIM, Acquire) / CLAIM
    }

    fn start_of_front(sender: &Sender<usize>) -> usize {
        // SAFETY: the queue exists, and no other thread uses it.
        unsafe { (*sender.shared.front.load(Acquire)).start }
    }

    #[test]
    fn a_sender_that_is_overtaken_by_whole_blocks_still_finds_its_slot() {
        let (sender, mut receiver) = queue();
        for value in 0..BLOCK + 5 {
            let _ = sender.push(value).unwrap();
        }
        let held_up = claim_and_stop(&sender);
        for value in 0..3 * BLOCK {
            let _ = sender.push(1_000 + value).unwrap();
        }
        assert!(start_of_front(&sender) > held_up, "other senders have moved on and do not start from far behind");
        for value in 0..BLOCK + 5 {
            assert_eq!(receiver.pop(), Some(value));
        }
        assert_eq!(receiver.pop(), None, "the gap reads as the end");
        assert!(receiver.sleep());
        assert_eq!(
            sender.shared.publish(held_up, 77),
            Pushed::ReceiverSleeps,
            "the sender that fills the gap wakes the receiver"
        );
        assert_eq!(receiver.pop(), Some(77));
        for value in 0..3 * BLOCK {
            assert_eq!(receiver.pop(), Some(1_000 + value));
        }
        assert_eq!(receiver.pop(), None);
    }

    #[test]
    fn blocks_are_reused_so_steady_use_stays_within_the_spares() {
        let (sender, mut receiver) = queue();
        for round in 0..10_000 {
            let _ = sender.push(round).unwrap();
            assert_eq!(receiver.pop(), Some(round));
        }
        let linked = std::iter::successors(Some(receiver.oldest), |block| {
            // SAFETY: linked blocks live as long as the receiver, and no other thread uses them.
            let next = unsafe { (**block).next.load(Acquire) };
            (!next.is_null()).then_some(next)
        });
        assert!(linked.count() <= 3);
    }
}
