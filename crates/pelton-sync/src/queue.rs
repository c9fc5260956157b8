//! The queue into the loop: many senders, one receiver, no lock.
//!
//! Positions count up from 0 for ever. A sender claims the next one by adding to `tail`, writes its value into the slot
//! that belongs to the position, and publishes it by swapping the slot's state. Slots come in blocks, linked in order:
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
//! **No sender waits for another**: whoever needs the next block and finds none links one in. **The receiver waits for
//! nobody**: a claimed slot that is not written yet reads as the end of the queue for now.
//!
//! **Finding the slot.** `front` is moved on by senders that are well into a later block. A sender that was held up between
//! claiming its position and looking at `front` may find that it has passed the block it needs; it then starts at
//! `head`, the block that the receiver reads from, which cannot pass a slot that has not been written.
//!
//! **Sleeping.** Before it sleeps, the receiver marks the slot it will read next as `AWAITED`. Only the sender that fills
//! this very slot finds the mark, and it is told to wake the receiver; all others know from their own swap that there is
//! nothing to do. So a wake-up cannot be lost (mark and publication are two operations on one word, hence ordered), and
//! there is at most one per sleep, with no flag that all senders would have to look at.
//!
//! **Reuse.** A sender first claims its position, *then* looks at `front` and `head`. So the receiver retires a block in
//! three steps: it moves both past it, *then* reads `tail`, and reuses the block once it has read everything before that
//! position. The read is an atomic addition of 0, so it stands in one order with all claims: a claim after it sees the
//! moved pointers; a claim before it belongs to a sender that has finished looking when its value is read.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::memory::{Arc, AtomicPtr, AtomicU8, AtomicUsize, Padded, UnsafeCell, yield_now};

/// Slots per block: enough to make linking rare, few enough that an idle queue is small.
const BLOCK: usize = if cfg!(loom) { 2 } else { 64 };

/// Emptied blocks kept for reuse: the queue allocates nothing while fewer than `BLOCK * SPARES` values wait in it.
const SPARES: usize = if cfg!(loom) { 1 } else { 16 };

/// Added to `tail` for each claim; the lowest bit says that the queue is closed.
const CLAIM: usize = 2;
const CLOSED: usize = 1;

/// The states of a slot.
const EMPTY: u8 = 0;
const FULL: u8 = 1;
/// Empty, and the receiver sleeps until it is not.
const AWAITED: u8 = 2;

struct Slot<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

struct Block<T> {
    /// The position of the first slot. Fixed from when the block is linked until it is retired.
    start: usize,
    next: AtomicPtr<Block<T>>,
    /// Once retired: reusable when everything before this position has been read. The receiver's own.
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
    /// Where senders start looking for their block.
    front: Padded<AtomicPtr<Block<T>>>,
    /// The block that the receiver reads from.
    head: Padded<AtomicPtr<Block<T>>>,
    /// How many values the receiver has taken; for the bound of `try_push`.
    taken: Padded<AtomicUsize>,
    spares: [AtomicPtr<Block<T>>; SPARES],
}

// SAFETY: the queue hands each value from the one thread that pushed it to the one that receives it, and drops it there.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above; all that threads share of a slot is ordered by its state.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Writes `value` into the slot of a claimed position.
    fn publish(&self, position: usize, value: T) -> Pushed {
        let block = self.find(position);
        // SAFETY: `find` gives a linked block, which is not reused before `position` has been read, which is after the
        // swap below, our last use of it.
        let slot = unsafe { &(*block).slots[position % BLOCK] };
        slot.value.with_mut(|place| {
            // SAFETY: the position is ours alone, and the receiver keeps off the value until the state says FULL.
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
        // SAFETY: never null, and not reused before `position` has been read (see "Reuse").
        if unsafe { (*block).start } > start {
            block = self.head.load(Acquire);
        }
        loop {
            // SAFETY: as above; and so are all blocks from there to ours.
            let current = unsafe { &*block };
            if current.start == start {
                break;
            }
            block = self.next_or_link(current);
        }
        // Only well into a block, so that those who claimed the last slots before it still find theirs from `front`.
        // SAFETY: as above.
        if offset >= BLOCK / 2 && unsafe { (*front).start } < start {
            // A failure means that another sender has done it.
            let _ = self.front.compare_exchange(front, block, AcqRel, Relaxed);
        }
        block
    }

    /// The block after this one, linked in if there is none.
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
                // SAFETY: ours since `into_raw`, as the exchange failed.
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

    /// Keeps a block whose slots hold no values, or frees it if there are enough.
    fn keep_spare(&self, block: Box<Block<T>>) {
        for slot in &block.slots {
            slot.state.store(EMPTY, Relaxed);
        }
        block.next.store(ptr::null_mut(), Relaxed);
        let block = Box::into_raw(block);
        let kept =
            self.spares.iter().any(|place| place.compare_exchange(ptr::null_mut(), block, Release, Relaxed).is_ok());
        if !kept {
            // SAFETY: ours since `into_raw`: nobody took it.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // The chain is freed by the receiver.
        while self.take_spare().is_some() {}
    }
}

/// Makes a queue.
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

/// What a successful push leaves to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a sleeping receiver has to be woken"]
pub enum Pushed {
    /// Nothing: the receiver is awake, or somebody else has to wake it.
    ReceiverAwake,
    /// The receiver sleeps: wake it.
    ReceiverSleeps,
}

/// Why a push was refused. The value comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PushError<T> {
    /// As many values as allowed are waiting.
    Full(T),
    /// The queue is [closed](Receiver::close), or the receiver is gone.
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

/// The end that values go in. Clone it for more senders.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { shared: self.shared.clone() }
    }
}

impl<T: Send> Sender<T> {
    /// Appends `value`, however many are waiting. Refused only if the queue is [closed](Receiver::close) or the receiver is
    /// gone.
    pub fn push(&self, value: T) -> Result<Pushed, PushError<T>> {
        self.push_as(value, |value| value)
    }

    /// Appends `value` if fewer than `bound` are waiting.
    pub fn try_push(&self, value: T, bound: usize) -> Result<Pushed, PushError<T>> {
        self.try_push_as(value, bound, |value| value)
    }

    /// [`push`](Sender::push) of what `make` makes of `value`, if it is not refused. If `make` panics, the process aborts.
    pub fn push_as<V>(&self, value: V, make: impl FnOnce(V) -> T) -> Result<Pushed, PushError<V>> {
        // Acquire: sees `front` and `head` as they were moved before the receiver's last look at `tail`.
        let tail = self.shared.tail.fetch_add(CLAIM, Acquire);
        if tail & CLOSED != 0 {
            // The position is past the last one that the receiver reads. Giving it back keeps `len` right.
            self.shared.tail.fetch_sub(CLAIM, Relaxed);
            return Err(PushError::Closed(value));
        }
        Ok(self.publish(tail / CLAIM, value, make))
    }

    /// [`try_push`](Sender::try_push) of what `make` makes of `value`, if it is not refused. If `make` panics, the process
    /// aborts.
    pub fn try_push_as<V>(&self, value: V, bound: usize, make: impl FnOnce(V) -> T) -> Result<Pushed, PushError<V>> {
        let mut tail = self.shared.tail.load(Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(PushError::Closed(value));
            }
            // Whatever is missing in `taken` makes the queue look longer than it is, never shorter. It can be ahead of a
            // `tail` read earlier; the exchange fails then.
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
        /// A claimed position that is never published would hold up everything behind it for ever.
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

    /// Whether pushes are refused: the queue is [closed](Receiver::close), or the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.tail.load(Relaxed) & CLOSED != 0
    }

    /// How many values have been pushed so far, those included that are just being written.
    #[inline]
    pub fn pushed(&self) -> usize {
        self.shared.tail.load(Relaxed) / CLAIM
    }

    /// About how many values are waiting.
    pub fn len(&self) -> usize {
        self.pushed().saturating_sub(self.shared.taken.load(Relaxed))
    }

    /// Whether about no values are waiting.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The end that values come out of. Dropping it drops what is waiting and refuses what comes after.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The position to read next; always in `block`.
    head: usize,
    /// Once closed: the position after the last value.
    end: Option<usize>,
    block: *mut Block<T>,
    /// The first of the retired blocks that lead up to `block`.
    oldest: *mut Block<T>,
}

// SAFETY: the receiver may be used from any one thread at a time; its pointers are into the shared queue.
unsafe impl<T: Send> Send for Receiver<T> {}

impl<T> Receiver<T> {
    fn slot(&self) -> &Slot<T> {
        // SAFETY: blocks from `oldest` on are freed or reused by the receiver alone, which never does that to `block`.
        unsafe { &(*self.block).slots[self.head % BLOCK] }
    }

    /// Takes the oldest value. `None` also if it is still being written: its sender will wake a receiver that
    /// [sleeps](Receiver::sleep).
    pub fn pop(&mut self) -> Option<T> {
        let slot = self.slot();
        if slot.state.load(Acquire) != FULL {
            return None;
        }
        // SAFETY: FULL says that the value is written, and `head` moves on, so it is read once.
        let value = slot.value.with_mut(|place| unsafe { (*place).assume_init_read() });
        self.head += 1;
        self.shared.taken.store(self.head, Relaxed);
        if self.head.is_multiple_of(BLOCK) {
            self.retire_block();
        }
        Some(value)
    }

    /// Moves on to the next block and reuses those behind that no sender can be looking at.
    fn retire_block(&mut self) {
        // SAFETY: see `slot`.
        let read = unsafe { &*self.block };
        let next = self.shared.next_or_link(read);
        self.shared.head.store(next, Release);
        // A failure means that a sender has moved it past this block already.
        let _ = self.shared.front.compare_exchange(self.block, next, AcqRel, Relaxed);
        // The addition of 0 puts this look at the tail in one order with the senders' claims; see "Reuse".
        let claimed = self.shared.tail.fetch_add(0, AcqRel) / CLAIM;
        read.reusable_at.store(claimed, Relaxed);
        self.block = next;
        while self.oldest != self.block {
            // SAFETY: `oldest` is linked and only we reuse or free what is behind `block`.
            let oldest = unsafe { &*self.oldest };
            if oldest.reusable_at.load(Relaxed) > self.head {
                break;
            }
            let following = oldest.next.load(Acquire);
            // SAFETY: the block came from a box; the senders that claimed before it was retired have published, and those
            // after it start from a later one. Its values have been read.
            self.shared.keep_spare(unsafe { Box::from_raw(self.oldest) });
            self.oldest = following;
        }
    }

    /// How many values have been taken so far.
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
    /// has claimed a position and is about to write its value. `None`: the queue is empty for good, or not closed.
    pub fn pop_rest(&mut self) -> Option<T> {
        while self.head < self.end? {
            match self.pop() {
                Some(value) => return Some(value),
                None => yield_now(),
            }
        }
        None
    }

    /// Closes the queue without waiting for senders that have claimed a position and not published it: in a forked child,
    /// where these threads do not exist, they never will. Gives the values that came before the first such gap. The
    /// queue's memory is leaked.
    pub fn abandon(mut self) -> Vec<T> {
        self.close();
        let values = std::iter::from_fn(|| self.pop()).collect();
        std::mem::forget(self);
        values
    }

    /// Whether [`pop`](Receiver::pop) would give nothing now.
    pub fn is_empty(&self) -> bool {
        self.slot().state.load(Acquire) != FULL
    }

    /// Announces that the receiver is about to sleep. `false`: there is a value, so it must not.
    ///
    /// From now on until [`awake`](Receiver::awake), the sender of the next value is told [`Pushed::ReceiverSleeps`].
    pub fn sleep(&mut self) -> bool {
        !matches!(self.slot().state.compare_exchange(EMPTY, AWAITED, AcqRel, Acquire), Err(FULL))
    }

    /// Takes the announcement back, so that senders need not wake a receiver that is up already.
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
        // Every sender that will ever look at a block has published, which is the last it does with one.
        let mut block = self.oldest;
        while !block.is_null() {
            // SAFETY: linked blocks came from boxes, and nobody else looks at them any more.
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

    /// Claims a position and stops there, as a thread does that is preempted at the wrong moment.
    fn claim_and_stop(sender: &Sender<usize>) -> usize {
        sender.shared.tail.fetch_add(CLAIM, Acquire) / CLAIM
    }

    fn start_of_front(sender: &Sender<usize>) -> usize {
        // SAFETY: the queue lives, and nobody else is at work.
        unsafe { (*sender.shared.front.load(Acquire)).start }
    }

    #[test]
    fn a_sender_that_is_overtaken_by_whole_blocks_finds_its_slot_all_the_same() {
        let (sender, mut receiver) = queue();
        for value in 0..BLOCK + 5 {
            let _ = sender.push(value).unwrap();
        }
        let held_up = claim_and_stop(&sender);
        for value in 0..3 * BLOCK {
            let _ = sender.push(1_000 + value).unwrap();
        }
        assert!(start_of_front(&sender) > held_up, "the others went on without it, and did not walk from far behind");
        for value in 0..BLOCK + 5 {
            assert_eq!(receiver.pop(), Some(value));
        }
        assert_eq!(receiver.pop(), None, "the gap reads as the end");
        assert!(receiver.sleep());
        assert_eq!(
            sender.shared.publish(held_up, 77),
            Pushed::ReceiverSleeps,
            "whoever fills the gap wakes the receiver"
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
            // SAFETY: linked blocks live as long as the receiver, and nobody else is at work.
            let next = unsafe { (**block).next.load(Acquire) };
            (!next.is_null()).then_some(next)
        });
        assert!(linked.count() <= 3);
    }
}
