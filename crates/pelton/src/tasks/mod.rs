//! Futures on the loop: spawning and timing them, and sockets for `async` code.

pub mod net;
pub mod task;
