//! Turns panics into exceptions.
//!
//! A panic is a bug of this crate. Ruby's bindings turn it into `fatal`, which no `rescue` catches, so it would end the process.
//! Every function that Ruby calls goes through here instead.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use magnus::Error;

use crate::errors;

/// Calls `f`. A panic becomes a RuntimeError.
pub(crate) fn guard<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(outcome) => outcome,
        Err(panic) => Err(errors::runtime(text(&*panic))),
    }
}

/// Returns the message of a RuntimeError that stands for a panic.
pub(crate) fn text(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("bug in pelton-eventmachine: {}", message.as_deref().unwrap_or("a panic without a message"))
}
