//! Turns on their way to the workers: many threads add, whoever is free takes all there are.
//!
//! The mailboxes themselves are linked, the newest first, so adding allocates nothing; and all are taken off with one exchange,
//! so nobody can be held up by a thread that stopped half-way through adding one.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::mailbox::{Link, Turn};
use crate::memory::{AtomicPtr, AtomicUsize, Padded};

/// Turns that wait to be taken.
pub struct Turns {
    newest: Padded<AtomicPtr<Link>>,
    /// How many there are, for those who want to know; it may lag behind.
    count: AtomicUsize,
}

impl Turns {
    /// None yet.
    pub fn new() -> Turns {
        Turns { newest: Padded(AtomicPtr::new(ptr::null_mut())), count: AtomicUsize::new(0) }
    }

    /// Adds a turn.
    pub fn push(&self, turn: Turn) {
        self.count.fetch_add(1, Relaxed);
        let link = turn.into_link();
        let mut newest = self.newest.load(Relaxed);
        loop {
            // SAFETY: the link is there while there is a turn, and whoever has that has the link to themselves. After the
            // exchange it is somebody else's.
            unsafe { link.as_ref() }.next.store(newest, Relaxed);
            // Release: what the turn is for, and the link. That the newest may have been taken and added again meanwhile does
            // not matter: it is the newest, which is all that this says.
            match self.newest.compare_exchange_weak(newest, link.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(changed) => newest = changed,
            }
        }
    }

    /// Takes all there are, the oldest first.
    pub fn take(&self) -> Taken {
        let mut taken = Taken(ptr::null_mut());
        if self.is_empty() {
            return taken;
        }
        let mut rest = self.newest.swap(ptr::null_mut(), AcqRel);
        let mut count = 0;
        while let Some(link) = NonNull::new(rest) {
            // SAFETY: it is there while there is a turn, which the exchange has made ours; and so for those it leads to.
            let next = &unsafe { link.as_ref() }.next;
            rest = next.load(Relaxed);
            next.store(taken.0, Relaxed);
            taken.0 = link.as_ptr();
            count += 1;
        }
        self.count.fetch_sub(count, Relaxed);
        taken
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.newest.load(Acquire).is_null()
    }

    /// About how many there are.
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

/// Turns that have been taken, the oldest first. To drop it closes the mailboxes of those that are left.
pub struct Taken(*mut Link);

// SAFETY: it stands for turns, which are `Send`.
unsafe impl Send for Taken {}

impl Iterator for Taken {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        let link = NonNull::new(self.0)?;
        // SAFETY: it is there while there is a turn, which is ours.
        self.0 = unsafe { link.as_ref() }.next.load(Relaxed);
        // SAFETY: it came from a turn, and is in the row no more.
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
