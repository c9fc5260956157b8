//! Futures on the loop: tasks, timing, and sockets for `async` code.

pub mod net;
pub mod task;
