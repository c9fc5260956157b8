//! Settles a promise.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use super::core::{Core, Source, settle};
use super::{Continuations, Promise, Rejected, Settlement};

/// Settles a [`Promise`], once. Created by [`Reactor::promise`](crate::Reactor::promise).
///
/// It needs only the loop's thread, not the reactor, so it can be used anywhere on it, including in a `Drop`. It can be
/// cloned if several callbacks may settle the promise; the first one wins. If all clones are dropped unsettled, the
/// promise is rejected as [abandoned](Rejected::Abandoned), so that a forgotten one is noticed.
#[must_use = "a promise whose `Deferred`s are all dropped unsettled is abandoned"]
pub struct Deferred<T: 'static, E: 'static> {
    root: Rc<Root<T, E>>,
}

/// A promise at the beginning of its chain.
struct Root<T: 'static, E: 'static> {
    core: Core<T, E>,
    deferreds: Cell<usize>,
    describe: fn(&E) -> String,
}

impl<T: 'static, E: 'static> Source<T, E> for Root<T, E> {
    fn core(&self) -> &Core<T, E> {
        &self.core
    }

    fn describe(&self, error: &E) -> String {
        (self.describe)(error)
    }
}

pub(crate) fn pair<T: 'static, E: fmt::Debug + 'static>(
    continuations: Rc<Continuations>,
    place: &'static Location<'static>,
) -> (Deferred<T, E>, Promise<T, E>) {
    let describe = |error: &E| format!("{error:?}");
    let root = Rc::new(Root { core: Core::new(continuations, place), deferreds: Cell::new(1), describe });
    (Deferred { root: root.clone() }, Promise { source: Some(root) })
}

/// The promise was already settled. It returns the value or error.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("settle a promise: it was already settled")]
pub struct AlreadySettled<V>(pub V);

impl<V> fmt::Debug for AlreadySettled<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AlreadySettled(..)")
    }
}

impl<T: 'static, E: 'static> Deferred<T, E> {
    /// Resolves the promise with a value.
    pub fn resolve(&self, value: T) -> Result<(), AlreadySettled<T>> {
        self.settle_with(Ok(value)).map_err(|outcome| match outcome {
            Ok(value) => AlreadySettled(value),
            Err(_) => unreachable!("the returned outcome is the given one"),
        })
    }

    /// Rejects the promise with an error.
    pub fn reject(&self, error: E) -> Result<(), AlreadySettled<E>> {
        self.settle_with(Err(Rejected::Failed(error))).map_err(|outcome| match outcome {
            Err(Rejected::Failed(error)) => AlreadySettled(error),
            _ => unreachable!("the returned outcome is the given one"),
        })
    }

    /// Resolves or rejects the promise.
    pub fn settle(&self, result: Result<T, E>) -> Result<(), AlreadySettled<Result<T, E>>> {
        match result {
            Ok(value) => self.resolve(value).map_err(|back| AlreadySettled(Ok(back.0))),
            Err(error) => self.reject(error).map_err(|back| AlreadySettled(Err(back.0))),
        }
    }

    pub(crate) fn settle_with(&self, outcome: Settlement<T, E>) -> Result<(), Settlement<T, E>> {
        settle(self.root.clone(), outcome)
    }

    /// Returns whether the promise is settled.
    pub fn is_settled(&self) -> bool {
        self.root.core.is_settled()
    }

    /// Returns whether anybody will see the outcome. If not, there may be no need to compute it.
    pub fn is_wanted(&self) -> bool {
        self.root.core.is_wanted()
    }
}

impl<T: 'static, E: 'static> Clone for Deferred<T, E> {
    fn clone(&self) -> Self {
        self.root.deferreds.set(self.root.deferreds.get() + 1);
        Deferred { root: self.root.clone() }
    }
}

impl<T: 'static, E: 'static> Drop for Deferred<T, E> {
    fn drop(&mut self) {
        let left = self.root.deferreds.get() - 1;
        self.root.deferreds.set(left);
        // An outcome that nobody waits for need not be settled.
        if left == 0 && !self.is_settled() && self.is_wanted() {
            // Waiting code receives the rejection. Without any, there is nothing to report.
            self.root.core.set_handled();
            let _ = self.settle_with(Err(Rejected::Abandoned));
        }
    }
}

impl<T: 'static, E: 'static> fmt::Debug for Deferred<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("settled", &self.is_settled()).finish_non_exhaustive()
    }
}
