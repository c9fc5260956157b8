//! Turns on their way to the workers: many threads add them, and a free worker takes all of them.
//!
//! The mailboxes themselves are linked, the newest first, so adding does not allocate. One exchange takes all of them, so a
//! thread that is preempted while adding one delays nobody.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::mailbox::{Link, Turn};
use crate::memory::{AtomicPtr, AtomicUsize, Padded};

/// Turns that are waiting for a worker.
pub struct Turns {
    newest: Padded<AtomicPtr<Link>>,
    /// How many there are, for statistics. It may lag behind.
    count: AtomicUsize,
}

impl Turns {
    /// Creates an empty list.
    pub fn new() -> Turns {
        Turns { newest: Padded(AtomicPtr::new(ptr::null_mut())), count: AtomicUsize::new(0) }
    }

    /// Adds a turn.
    pub fn push(&self, turn: Turn) {
        self.count.fetch_add(1, Relaxed);
        let link = turn.into_link();
        let mut newest = self.newest.load(Relaxed);
        loop {
            // SAFETY: the link exists as long as its turn, and only the holder of the turn accesses it. After the exchange that
            // is somebody else.
            unsafe { link.as_ref() }.next.store(newest, Relaxed);
            // Release: the contents of the mailbox, and the link. It does not matter if the newest turn was taken and added
            // again meanwhile: it is the newest, which is all that the exchange checks.
            match self.newest.compare_exchange_weak(newest, link.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(changed) => newest = changed,
            }
        }
    }

    /// Takes all turns, the oldest first.
    pub fn take(&self) -> Taken {
        let mut taken = Taken(ptr::null_mut());
        if self.is_empty() {
            return taken;
        }
        let mut rest = self.newest.swap(ptr::null_mut(), AcqRel);
        let mut count = 0;
        while let Some(link) = NonNull::new(rest) {
            // SAFETY: the link exists as long as its turn, which the exchange has made ours. The same holds for the links that
            // it leads to.
            let next = &unsafe { link.as_ref() }.next;
            rest = next.load(Relaxed);
            next.store(taken.0, Relaxed);
            taken.0 = link.as_ptr();
            count += 1;
        }
        self.count.fetch_sub(count, Relaxed);
        taken
    }

    /// Returns whether there are no turns.
    pub fn is_empty(&self) -> bool {
        self.newest.load(Acquire).is_null()
    }

    /// Returns about how many turns there are.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::new()
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turns({} waiting)", self.len())
    }
}

/// Turns that have been taken, the oldest first. Dropping it closes the mailboxes of those that are left.
pub struct Taken(*mut Link);

// SAFETY: it represents turns, which are `Send`.
unsafe impl Send for Taken {}

impl Iterator for Taken {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        let link = NonNull::new(self.0)?;
        // SAFETY: the link exists as long as its turn, which is ours.
        self.0 = unsafe { link.as_ref() }.next.load(Relaxed);
        // SAFETY: the link came from a turn and is no longer in the list.
        Some(unsafe { Turn::from_link(link) })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taken")
    }
}
