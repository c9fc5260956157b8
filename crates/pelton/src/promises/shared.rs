//! A promise with several consumers.

use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use super::{Deferred, Promise, Settlement, pair};
use crate::Reactor;

/// A promise with several consumers, each of which receives a clone of the outcome. Created by [`Promise::shared`].
///
/// If a value is costly to clone, wrap it in an [`Rc`]: `promise.map(Rc::new).shared()`. Do the same with an error that
/// cannot be cloned, using [`map_err`](Promise::map_err).
///
/// ```
/// # use pelton::{Promise, Reactor};
/// let mut reactor = Reactor::new()?;
/// let (deferred, promise) = reactor.promise::<u32, String>();
/// let shared = promise.shared();
/// let sum = Promise::all(&reactor, [shared.promise(), shared.clone().promise()]).map(|both| both.iter().sum::<u32>());
/// sum.done(|reactor, sum| {
///     assert_eq!(sum, Ok(42));
///     reactor.stop();
/// });
/// assert!(deferred.resolve(21).is_ok());
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
pub struct SharedPromise<T: 'static, E: 'static> {
    promise: Rc<Promise<T, E>>,
}

impl<T: 'static, E: 'static> Clone for SharedPromise<T, E> {
    fn clone(&self) -> Self {
        SharedPromise { promise: self.promise.clone() }
    }
}

impl<T: 'static, E: fmt::Debug + 'static> SharedPromise<T, E> {
    pub(super) fn new(promise: Promise<T, E>) -> Self {
        SharedPromise { promise: Rc::new(promise) }
    }

    /// Returns a promise that receives a clone of the outcome.
    #[track_caller]
    pub fn promise(&self) -> Promise<T, E>
    where
        T: Clone,
        E: Clone,
    {
        let place = Location::caller();
        let (deferred, promise): (Deferred<T, E>, _) = pair(self.promise.core().continuations.clone(), place);
        // From now on that promise is responsible for handling a rejection.
        self.promise.core().set_handled();
        let give = move |_: &mut Reactor, outcome: &Settlement<T, E>| drop(deferred.settle_with(outcome.clone()));
        self.promise.attach_observer(place, Box::new(give));
        promise
    }

    /// Calls `look` with the outcome: see [`Promise::observe`].
    #[track_caller]
    pub fn observe(&self, look: impl FnOnce(&mut Reactor, &Settlement<T, E>) + 'static) {
        self.promise.observe(look);
    }

    /// Returns whether the promise is settled.
    pub fn is_settled(&self) -> bool {
        self.promise.is_settled()
    }
}

impl<T: 'static, E: 'static> fmt::Debug for SharedPromise<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPromise").field("settled", &self.promise.core().is_settled()).finish_non_exhaustive()
    }
}
