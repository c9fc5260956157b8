//! Pelton's lock-free data structures.
//!
//! - [`queue`](fn@queue): passes work from other threads to the loop, and lets the loop sleep without missing any.
//! - [`Closure`] and [`SendClosure`]: callbacks that are stored inline, so that small ones need no allocation.
//! - [`mailbox`](fn@mailbox): passes messages to an actor, and gives a worker the right to run it.
//! - [`Turns`]: passes that right to the workers.
//! - [`Parking`]: lets idle workers sleep, and decides which one to wake.
//! - [`Lending`]: lends a value to code on the same thread that it cannot be passed to.
//!
//! Models in `tests/loom.rs` check all of it under every interleaving of a few threads.

mod closure;
mod lending;
mod mailbox;
mod memory;
mod parking;
mod queue;
mod turns;

pub use closure::{Closure, INLINE_BYTES, SendClosure};
pub use lending::Lending;
pub use mailbox::{Address, Inbox, Next, Ran, Receive, Schedule, Turn, mailbox};
pub use parking::Parking;
pub use queue::{PushError, Pushed, Receiver, Sender, queue};
pub use turns::{Taken, Turns};
