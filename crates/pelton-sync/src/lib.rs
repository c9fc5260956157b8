//! Pelton's lock-free parts.
//!
//! - [`queue`](fn@queue): how other threads hand work to the loop, and how the loop goes to sleep without missing any.
//! - [`Closure`] and [`SendClosure`]: callbacks stored in place, so that small ones cost no allocation.
//!
//! All of it is checked by models that try every interleaving of a few threads (`tests/loom.rs`).

mod closure;
mod memory;
mod queue;

pub use closure::{Closure, INLINE_BYTES, SendClosure};
pub use queue::{PushError, Pushed, Receiver, Sender, queue};
