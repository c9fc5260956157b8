//! The return types of continuations.

use super::link::Step;
use super::{Promise, Rejected};

/// A return type for a continuation of [`then`](Promise::then): a `Result`, or a [`Promise`] to wait for.
#[diagnostic::on_unimplemented(
    message = "a continuation of `then` returns a `Result` or a `Promise` with the error type `{E}`, not `{Self}`",
    label = "this continuation does not return `Result<_, {E}>` or `Promise<_, {E}>`",
    note = "for a continuation that cannot fail and does not wait, use `map`, or return `Ok(value)`",
    note = "to change the error type of the promise, use `map_err` before `then`",
    note = "to wait for a future, await the promise in a task instead: `reactor.spawn(async {{ promise.await }})`"
)]
pub trait Next<E: 'static> {
    /// The type of the value that the continuation returns.
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

/// A return type for a continuation of [`or_else`](Promise::or_else): a `Result` that can pass on the rejection, or a
/// [`Promise`] to wait for.
#[diagnostic::on_unimplemented(
    message = "a continuation of `or_else` returns `Result<{T}, Rejected<{E}>>` or `Promise<{T}, {E}>`, not `{Self}`",
    label = "this continuation neither replaces the value nor passes a rejection on",
    note = "to replace the value, return `Ok(value)`; to pass the rejection on, return `Err(rejected)`",
    note = "to fail with an error of your own, return `Err(Rejected::Failed(error))`"
)]
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
