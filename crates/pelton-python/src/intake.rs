//! Work that reaches a loop from outside of Python, without the interpreter lock.
//!
//! A loop that hosts has an intake. It is fetched from in two steps: while the loop sleeps, without the lock, what has come is
//! taken out of the queue; then it is done in one go, with the lock. A loop of the extension module has none.

use std::time::Duration;

use pyo3::ffi::PyObject;

/// Where such work comes from. Only the loop's own thread calls any of this.
pub(crate) trait Intake {
    /// Whether there is something to be done. Needs no lock.
    fn has_work(&mut self) -> bool;

    /// Announces that the loop is about to sleep. `false`: there is something, so it must not. Needs no lock.
    fn sleep(&mut self) -> bool;

    /// The loop is awake; whoever sends something need not wake it any more. Needs no lock.
    fn awake(&mut self);

    /// Takes out a batch of what has come. Says whether there is any. Needs no lock.
    fn fetch(&mut self) -> bool;

    /// How long to look for work before sleeping.
    fn spin(&self) -> Duration;

    /// The interpreter lock was taken again.
    fn locked(&mut self);

    /// Does what was fetched, or else fetches a batch first.
    ///
    /// # Safety
    /// The lock is held, and `loop_` is the loop that runs on this thread.
    unsafe fn process(&mut self, loop_: *mut PyObject);
}
