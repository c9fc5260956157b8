//! The order in which locks are taken.
//!
//! ```text
//! interpreter lock  →  what a loop is at  →  a reply
//! ```
//!
//! A thread that has one of these takes only those further right. So two threads never wait for each other. Nothing of
//! Python is touched under the two on the right, dropping a reference included: that could need the first. A build
//! with debug assertions checks every step and panics where the order is not kept.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(debug_assertions)]
use std::cell::Cell;

/// Where in the order a lock is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    Interpreter,
    Loop,
    Reply,
}

#[cfg(debug_assertions)]
thread_local! {
    /// One bit for each rank that this thread holds.
    static HELD: Cell<u8> = const { Cell::new(0) };
}

/// Checks that this thread may take a lock of this rank.
#[inline]
pub(crate) fn check(rank: Rank) {
    #[cfg(debug_assertions)]
    HELD.with(|held| {
        let same_or_later = held.get() >> rank as u8;
        assert!(
            same_or_later == 0,
            "lock order: {rank:?} is taken by a thread that holds one of the same rank or later"
        );
    });
    #[cfg(not(debug_assertions))]
    let _ = rank;
}

/// A mutex that has its place in the order.
#[derive(Debug)]
pub(crate) struct Ranked<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// A locked [`Ranked`].
pub(crate) struct RankedGuard<'a, T> {
    guard: Option<MutexGuard<'a, T>>,
    rank: Rank,
}

impl<T> Ranked<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Ranked<T> {
        Ranked { rank, mutex: Mutex::new(value) }
    }

    /// Locks. Nobody panics with it locked but by a bug in here, and what it guards is whole then too.
    #[inline]
    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        check(self.rank);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        mark(self.rank, true);
        RankedGuard { guard: Some(guard), rank: self.rank }
    }
}

#[inline]
fn mark(rank: Rank, holds: bool) {
    #[cfg(debug_assertions)]
    HELD.with(|held| {
        let bit = 1 << rank as u8;
        held.set(if holds { held.get() | bit } else { held.get() & !bit });
    });
    #[cfg(not(debug_assertions))]
    let _ = (rank, holds);
}

impl<'a, T> RankedGuard<'a, T> {
    /// Lets go of the lock while `wait` waits for a condition, and takes it again.
    pub(crate) fn wait(mut self, wait: impl FnOnce(MutexGuard<'a, T>) -> MutexGuard<'a, T>) -> RankedGuard<'a, T> {
        self.guard = self.guard.take().map(wait);
        self
    }
}

impl<T> std::ops::Deref for RankedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("there while it is locked")
    }
}

impl<T> std::ops::DerefMut for RankedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("there while it is locked")
    }
}

impl<T> Drop for RankedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.guard = None;
        mark(self.rank, false);
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept() {
        let (one, other) = (Ranked::new(Rank::Loop, 1), Ranked::new(Rank::Reply, 2));
        let held = one.lock();
        assert_eq!(*held + *other.lock(), 3);
        drop(held);
        check(Rank::Interpreter);
    }

    #[test]
    #[should_panic(expected = "lock order: Loop")]
    fn the_wrong_order_is_found_out() {
        let (one, other) = (Ranked::new(Rank::Loop, 1), Ranked::new(Rank::Reply, 2));
        let _held = other.lock();
        let _ = *one.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Interpreter")]
    fn the_interpreter_lock_comes_first() {
        let reply = Ranked::new(Rank::Reply, 2);
        let _held = reply.lock();
        check(Rank::Interpreter);
    }
}
