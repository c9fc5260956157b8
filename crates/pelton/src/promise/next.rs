//! What continuations may return.

use super::link::Step;
use super::{Promise, Rejected};

/// What a continuation of [`then`](Promise::then) may return: a `Result`, or a [`Promise`] to wait for.
pub trait Next<E: 'static> {
    /// What the continuation gives, if all goes well.
    type Value: 'static;

    #[doc(hidden)]
    fn into_step(self) -> Step<Self::Value, E>;
}

impl<T: 'static, E: 'static> Next<E> for Result<T, E> {
    type Value = T;

    fn into_step(self) -> Step<T, E> {
        Step::Settled(self.map_err(Rejected::Failed))
    }
}

impl<T: 'static, E: 'static> Next<E> for Promise<T, E> {
    type Value = T;

    fn into_step(self) -> Step<T, E> {
        Step::Follow(self)
    }
}

/// What a continuation of [`or_else`](Promise::or_else) may return: a `Result` that can pass on what it was given, or a
/// [`Promise`] to wait for.
pub trait Recovery<T: 'static, E: 'static> {
    #[doc(hidden)]
    fn into_step(self) -> Step<T, E>;
}

impl<T: 'static, E: 'static> Recovery<T, E> for Result<T, Rejected<E>> {
    fn into_step(self) -> Step<T, E> {
        Step::Settled(self)
    }
}

impl<T: 'static, E: 'static> Recovery<T, E> for Promise<T, E> {
    fn into_step(self) -> Step<T, E> {
        Step::Follow(self)
    }
}
