//! The waiters of a loop, so that they can be settled if the loop never returns.
//!
//! The completion of a task may be on the stack of a thread that is stuck in C code, or in a queue that only this
//! thread reads. So shutdown does not look for the tasks but for their waiters. Each waiter registers here before
//! it sleeps, and leaves when it has its outcome. Submitting a task, and taking an outcome that is already there,
//! do not use this.
//!
//! When the loop is given up, all registered waiters are settled, and later ones are settled immediately. An
//! outcome that arrives after that is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock_order::{Rank, Ranked};

/// Something that a waiter waits for.
pub(crate) trait Awaited: Send + Sync + 'static {
    /// Settles it with `LoopGone`, unless it is already settled.
    fn abandon(&self);
}

#[derive(Default)]
struct Entries {
    places: Vec<Option<Arc<dyn Awaited>>>,
    free: Vec<usize>,
    /// The loop was given up; waiters no longer register.
    closed: bool,
}

pub(crate) struct Waiters {
    entries: Ranked<Entries>,
    gone: AtomicBool,
}

/// A registration, to be passed to `leave`.
#[derive(Debug)]
pub(crate) struct Entry(usize);

impl Entry {
    pub(crate) fn at(place: usize) -> Entry {
        Entry(place)
    }

    pub(crate) fn place(&self) -> usize {
        self.0
    }
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters { entries: Ranked::new(Rank::Loop, Entries::default()), gone: AtomicBool::new(false) }
    }

    /// Registers a waiter before it waits. Returns `None` if the loop was given up; then `awaited` is settled.
    pub(crate) fn enter(&self, awaited: Arc<dyn Awaited>) -> Option<Entry> {
        let mut entries = self.entries.lock();
        if entries.closed {
            drop(entries);
            awaited.abandon();
            return None;
        }
        let place = entries.free.pop().unwrap_or_else(|| {
            entries.places.push(None);
            entries.places.len() - 1
        });
        entries.places[place] = Some(awaited);
        Some(Entry(place))
    }

    /// Removes a waiter that no longer waits.
    pub(crate) fn leave(&self, Entry(place): Entry) {
        let mut entries = self.entries.lock();
        // After the loop was given up there are no entries.
        let awaited = entries.places.get_mut(place).and_then(Option::take);
        if awaited.is_some() {
            entries.free.push(place);
        }
        drop(entries);
        drop(awaited);
    }

    /// Returns whether the loop was given up.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Gives the loop up.
    pub(crate) fn abandon(&self) {
        self.gone.store(true, Ordering::Release);
        let mut entries = self.entries.lock();
        entries.closed = true;
        let places = std::mem::take(&mut entries.places);
        drop(entries);
        for awaited in places.into_iter().flatten() {
            awaited.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Awaited for Counted {
        fn abandon(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn times(counted: &Counted) -> usize {
        counted.0.load(Ordering::Relaxed)
    }

    #[test]
    fn abandoning_settles_only_waiters_that_have_not_left() {
        let waiters = Waiters::new();
        let (here, left, late) =
            (Arc::new(Counted::default()), Arc::new(Counted::default()), Arc::new(Counted::default()));
        let entry = waiters.enter(left.clone()).unwrap();
        waiters.leave(entry);
        assert_eq!(Arc::strong_count(&left), 1);
        let entry = waiters.enter(here.clone()).unwrap();
        assert!(!waiters.is_gone());
        waiters.abandon();
        assert!(waiters.is_gone());
        assert!(waiters.enter(late.clone()).is_none(), "waiters cannot register after the loop was given up");
        assert_eq!((times(&here), times(&left), times(&late)), (1, 0, 1));
        waiters.leave(entry);
    }

    #[test]
    fn entries_are_reused() {
        let waiters = Waiters::new();
        let counted = Arc::new(Counted::default());
        for _ in 0..100 {
            let entries = [waiters.enter(counted.clone()).unwrap(), waiters.enter(counted.clone()).unwrap()];
            entries.into_iter().for_each(|entry| waiters.leave(entry));
        }
        assert_eq!(waiters.entries.lock().places.len(), 2);
    }
}
