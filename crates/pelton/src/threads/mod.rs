//! Other threads: handles to the loop, replies from it, blocking work, and loops on their own threads.

pub(crate) mod defer;
pub(crate) mod handle;
pub(crate) mod lane;
pub(crate) mod reactors;
pub(crate) mod reply;
pub(crate) mod thread;
