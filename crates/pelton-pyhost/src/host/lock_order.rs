//! The order in which locks are taken.
//!
//! ```text
//! interpreter lock  →  a loop's state  →  a reply
//! ```
//!
//! A thread that holds one of these only acquires those further to the right, so no two threads deadlock. Code
//! under the two locks on the right touches nothing of Python, and drops no references, because that could need the
//! first lock. Builds with debug assertions check every acquisition and panic if the order is violated.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(debug_assertions)]
use std::cell::Cell;

/// The position of a lock in the order.
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

/// Checks that this thread may acquire a lock of this rank.
#[inline]
pub(crate) fn check(rank: Rank) {
    #[cfg(debug_assertions)]
    HELD.with(|held| {
        let same_or_later = held.get() >> rank as u8;
        assert!(
            same_or_later == 0,
            "lock order: {rank:?} acquired by a thread that holds a lock of the same or a later rank"
        );
    });
    #[cfg(not(debug_assertions))]
    let _ = rank;
}

/// A mutex with a position in the order.
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

    /// Locks. Poisoning is ignored: only a bug in this crate panics under the lock, and the state is consistent
    /// even then.
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
    /// Releases the lock while `wait` waits for a condition, and acquires it again.
    pub(crate) fn wait(mut self, wait: impl FnOnce(MutexGuard<'a, T>) -> MutexGuard<'a, T>) -> RankedGuard<'a, T> {
        self.guard = self.guard.take().map(wait);
        self
    }
}

impl<T> std::ops::Deref for RankedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("only `wait` takes it")
    }
}

impl<T> std::ops::DerefMut for RankedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("only `wait` takes it")
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
    fn locks_in_order_are_accepted() {
        let (one, other) = (Ranked::new(Rank::Loop, 1), Ranked::new(Rank::Reply, 2));
        let held = one.lock();
        assert_eq!(*held + *other.lock(), 3);
        drop(held);
        check(Rank::Interpreter);
    }

    #[test]
    #[should_panic(expected = "lock order: Loop")]
    fn locks_out_of_order_panic() {
        let (one, other) = (Ranked::new(Rank::Loop, 1), Ranked::new(Rank::Reply, 2));
        let _held = other.lock();
        let _ = *one.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Interpreter")]
    fn interpreter_lock_after_another_panics() {
        let reply = Ranked::new(Rank::Reply, 2);
        let _held = reply.lock();
        check(Rank::Interpreter);
    }
}
