//! Sleeping and waking of idle workers.
//!
//! A worker that has run out of work *searches* for a while before it sleeps. A worker that is woken searches too. While a
//! worker searches, adding work wakes nobody, because the searcher will find it. So a burst of work wakes one worker, not all.
//! When the last searcher finds something, it wakes another worker, in case there was more.
//!
//! One word holds the number of searchers and the set of sleeping workers:
//!
//! ```text
//!    ┌────────────────────────────────────────────┬───────────┐
//!    │ asleep, one bit for each worker            │ searching │
//!    └────────────────────────────────────────────┴───────────┘
//!      56 bits (24 where words have 32)             8 bits
//! ```
//!
//! **No wake-up is lost.** Adding work first adds it and then reads the word. A worker that goes to sleep first changes the
//! word and then looks for work once more. Both have a sequentially consistent fence between the two steps, so at least one of
//! them sees what the other did.

use std::fmt;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

use crate::memory::{AtomicUsize, Padded, fence};

/// Bits for the number of searchers.
const COUNT: u32 = 8;
const SEARCHERS: usize = (1 << COUNT) - 1;

/// The sleeping workers and the number of searchers.
pub struct Parking {
    word: Padded<AtomicUsize>,
    workers: usize,
}

impl Parking {
    /// How many workers fit into one word. With more processors than that, use several pools.
    pub const MOST_WORKERS: usize = (usize::BITS - COUNT) as usize;

    /// Creates the state for this many workers, numbered from 0, all awake.
    ///
    /// # Panics
    ///
    /// If there are more than [`MOST_WORKERS`](Parking::MOST_WORKERS).
    pub fn new(workers: usize) -> Parking {
        assert!(workers <= Parking::MOST_WORKERS, "{workers} workers do not fit into one word");
        Parking { word: Padded(AtomicUsize::new(0)), workers }
    }

    fn bit(worker: usize) -> usize {
        1 << (worker as u32 + COUNT)
    }

    /// Starts to search. Returns `false` if enough workers search already: searchers get in each other's way.
    pub fn search(&self) -> bool {
        let one_more = |word| ((word & SEARCHERS) * 2 < self.workers).then_some(word + 1);
        self.word.fetch_update(AcqRel, Relaxed, one_more).is_ok()
    }

    /// Ends a search that has found something. Returns `true` for the last searcher, which then has to [wake](Parking::wake)
    /// another worker.
    #[must_use = "work added meanwhile may have woken nobody"]
    pub fn found(&self) -> bool {
        self.word.fetch_sub(1, AcqRel) & SEARCHERS == 1
    }

    /// Announces that a worker is about to sleep. It has to look for work once more after this. Then it sleeps while it [is
    /// asleep](Parking::is_asleep), or [gets up](Parking::get_up) again.
    pub fn sleep(&self, worker: usize, searching: bool) {
        // The bit was not set, so the addition sets it.
        self.word.fetch_add(Parking::bit(worker) - usize::from(searching), AcqRel);
        fence(SeqCst);
    }

    /// Returns whether a worker that announced it would sleep may still do so. If not, it counts as searching.
    pub fn is_asleep(&self, worker: usize) -> bool {
        self.word.load(Acquire) & Parking::bit(worker) != 0
    }

    /// Lets a worker that announced it would sleep search instead.
    pub fn get_up(&self, worker: usize) {
        let bit = Parking::bit(worker);
        // A failure means that somebody has woken it.
        let _ = self.word.fetch_update(AcqRel, Acquire, |word| (word & bit != 0).then_some((word & !bit) + 1));
    }

    /// Returns the worker to wake after work was added, if one has to be woken.
    #[must_use = "the worker sleeps until it is woken"]
    pub fn wake(&self) -> Option<usize> {
        fence(SeqCst);
        let mut word = self.word.load(Relaxed);
        loop {
            let asleep = word >> COUNT;
            if asleep == 0 || word & SEARCHERS != 0 {
                return None;
            }
            let worker = asleep.trailing_zeros() as usize;
            let woken = (word & !Parking::bit(worker)) + 1;
            match self.word.compare_exchange_weak(word, woken, AcqRel, Relaxed) {
                Ok(_) => return Some(worker),
                Err(changed) => word = changed,
            }
        }
    }

    /// Returns how many workers sleep.
    pub fn asleep(&self) -> usize {
        (self.word.load(Acquire) >> COUNT).count_ones() as usize
    }
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parking({} of {} asleep)", self.asleep(), self.workers)
    }
}
