//! Those who wait for outcomes of a loop, so that they can be told if it does not come back.
//!
//! What has the duty to tell an outcome may be on the stack of a thread that is stuck in a call that is not Python, or in a
//! queue that only this thread reads. So whoever shuts down looks not for the tasks but for those who wait: each of them
//! is entered here before it sleeps, and struck off when it has its outcome. Submitting touches none of this, nor does taking an
//! outcome that is there already.
//!
//! When the loop is given up, all that are entered are settled, and from then on nobody enters any more but is settled at once.
//! An outcome that comes after that finds its place taken, and is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock_order::{Rank, Ranked};

/// What somebody waits for.
pub(crate) trait Awaited: Send + Sync + 'static {
    /// Settles it, unless it is: the loop is gone.
    fn abandon(&self);
}

#[derive(Default)]
struct Entries {
    places: Vec<Option<Arc<dyn Awaited>>>,
    free: Vec<usize>,
    /// Nobody is entered any more.
    closed: bool,
}

pub(crate) struct Waiters {
    entries: Ranked<Entries>,
    gone: AtomicBool,
}

/// An entry, to be struck off.
#[derive(Debug)]
pub(crate) struct Entry(usize);

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters { entries: Ranked::new(Rank::Loop, Entries::default()), gone: AtomicBool::new(false) }
    }

    /// Enters somebody who is about to wait. `None`: there is nothing to wait for, and what was awaited is settled.
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

    /// Strikes off somebody who waits no more.
    pub(crate) fn leave(&self, Entry(place): Entry) {
        let mut entries = self.entries.lock();
        // After the loop was given up there are no entries left.
        let awaited = entries.places.get_mut(place).and_then(Option::take);
        if awaited.is_some() {
            entries.free.push(place);
        }
        drop(entries);
        drop(awaited);
    }

    /// Whether the loop was given up.
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
    fn who_waits_is_told_and_who_has_left_is_not() {
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
        assert!(waiters.enter(late.clone()).is_none(), "nobody waits for what is gone");
        assert_eq!((times(&here), times(&left), times(&late)), (1, 0, 1));
        waiters.leave(entry);
    }

    #[test]
    fn places_are_used_again() {
        let waiters = Waiters::new();
        let counted = Arc::new(Counted::default());
        for _ in 0..100 {
            let entries = [waiters.enter(counted.clone()).unwrap(), waiters.enter(counted.clone()).unwrap()];
            entries.into_iter().for_each(|entry| waiters.leave(entry));
        }
        assert_eq!(waiters.entries.lock().places.len(), 2);
    }
}
