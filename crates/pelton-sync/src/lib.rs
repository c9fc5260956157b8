//! Pelton's lock-free parts.
//!
//! - [`queue`](fn@queue): how other threads hand work to the loop, and how the loop goes to sleep without missing any.
//! - [`Closure`] and [`SendClosure`]: callbacks stored in place, so that small ones cost no allocation.
//! - [`mailbox`](fn@mailbox): how messages reach an actor, and how a worker gets the right to run it.
//! - [`Turns`]: how that right reaches the workers.
//! - [`Parking`]: how workers without work sleep, and who wakes them.
//!
//! All of it is checked by models that try every interleaving of a few threads (`tests/loom.rs`).

mod closure;
mod mailbox;
mod memory;
mod parking;
mod queue;
mod turns;

pub use closure::{Closure, INLINE_BYTES, SendClosure};
pub use mailbox::{Address, Inbox, Next, Ran, Receive, Schedule, Turn, mailbox};
pub use parking::Parking;
pub use queue::{PushError, Pushed, Receiver, Sender, queue};
pub use turns::{Taken, Turns};
