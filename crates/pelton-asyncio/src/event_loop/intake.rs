//! Work that reaches a loop from outside of Python, without the interpreter lock.
//!
//! The loop of a host has an intake. Work is processed in two steps: the loop takes it out of the queue without the lock, while it
//! sleeps, and then processes all of it with the lock. A loop of the extension module has no intake.

use std::time::Duration;

use pyo3::prelude::*;

/// A source of such work. Only the loop's thread calls these methods.
pub trait Intake: Send {
    /// Returns whether there is work. Needs no lock.
    fn has_work(&mut self) -> bool;

    /// Announces that the loop is about to sleep. Returns `false` if it must not because there is work. Needs no lock.
    fn sleep(&mut self) -> bool;

    /// Announces that the loop is awake, so that senders need not wake it. Needs no lock.
    fn awake(&mut self);

    /// Takes a batch of work out of the queue. Returns whether there is any. Needs no lock.
    fn fetch(&mut self) -> bool;

    /// Returns how long to spin before sleeping.
    fn spin(&self) -> Duration;

    /// Announces that the loop has taken the interpreter lock again.
    fn locked(&mut self);

    /// Processes the fetched work, after fetching a batch if there is none. `its_loop` is the loop that runs on this thread.
    fn process(&mut self, its_loop: &Bound<'_, PyAny>);
}
