//! Combines several promises.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use super::{Deferred, Promise, Rejected, Settlement, pair};
use crate::Reactor;

/// Collects one outcome per promise, each at its own index.
struct Gathering<P, T: 'static, E: 'static> {
    pieces: RefCell<Vec<Option<P>>>,
    missing: Cell<usize>,
    whole: Deferred<T, E>,
}

impl<P: 'static, T: 'static, E: fmt::Debug + 'static> Gathering<P, T, E> {
    /// Stores a piece. Returns all pieces if this was the last one.
    fn put(&self, index: usize, piece: P) -> Option<Vec<P>> {
        // The pieces are gone once the whole is settled.
        *self.pieces.borrow_mut().get_mut(index)? = Some(piece);
        self.missing.set(self.missing.get() - 1);
        (self.missing.get() == 0).then(|| self.pieces.take().into_iter().flatten().collect())
    }

    fn settle(&self, outcome: Settlement<T, E>) {
        let _ = self.whole.settle_with(outcome);
        // No more pieces are needed.
        drop(self.pieces.take());
    }
}

impl<T: 'static, E: fmt::Debug + 'static> Promise<T, E> {
    /// Resolves with all values, in the order of the promises, or rejects on the first rejection.
    ///
    /// After a rejection, the outcomes of the other promises are dropped, including their rejections.
    #[track_caller]
    pub fn all(reactor: &Reactor, promises: impl IntoIterator<Item = Promise<T, E>>) -> Promise<Vec<T>, E> {
        let promises: Vec<_> = promises.into_iter().collect();
        let (place, count) = (Location::caller(), promises.len());
        let (whole, all) = pair(reactor.ticks.continuations.clone(), place);
        let pieces = RefCell::new((0..count).map(|_| None).collect());
        let gathering = Rc::new(Gathering { pieces, missing: Cell::new(count), whole });
        if count == 0 {
            gathering.settle(Ok(Vec::new()));
        }
        for (index, promise) in promises.into_iter().enumerate() {
            let gathering = gathering.clone();
            promise.sink(place, move |_, outcome| match outcome {
                Ok(value) => {
                    if let Some(values) = gathering.put(index, value) {
                        gathering.settle(Ok(values));
                    }
                }
                Err(rejected) => gathering.settle(Err(rejected)),
            });
        }
        all
    }

    /// Resolves with the first value. If all promises are rejected, rejects with all rejections, in the order of the
    /// promises.
    #[track_caller]
    pub fn any(reactor: &Reactor, promises: impl IntoIterator<Item = Promise<T, E>>) -> Promise<T, Vec<Rejected<E>>> {
        let promises: Vec<_> = promises.into_iter().collect();
        let (place, count) = (Location::caller(), promises.len());
        let (whole, any) = pair(reactor.ticks.continuations.clone(), place);
        let pieces = RefCell::new((0..count).map(|_| None).collect());
        let gathering = Rc::new(Gathering { pieces, missing: Cell::new(count), whole });
        if count == 0 {
            gathering.settle(Err(Rejected::Failed(Vec::new())));
        }
        for (index, promise) in promises.into_iter().enumerate() {
            let gathering = gathering.clone();
            promise.sink(place, move |_, outcome| match outcome {
                Ok(value) => gathering.settle(Ok(value)),
                Err(rejected) => {
                    if let Some(rejections) = gathering.put(index, rejected) {
                        gathering.settle(Err(Rejected::Failed(rejections)));
                    }
                }
            });
        }
        any
    }

    /// Settles like the first promise that settles. Without promises it is [abandoned](Rejected::Abandoned).
    #[track_caller]
    pub fn race(reactor: &Reactor, promises: impl IntoIterator<Item = Promise<T, E>>) -> Promise<T, E> {
        let place = Location::caller();
        let (first, race) = pair(reactor.ticks.continuations.clone(), place);
        for promise in promises {
            let first = first.clone();
            promise.sink(place, move |_, outcome| drop(first.settle_with(outcome)));
        }
        race
    }
}
