//! Other threads: the way into the loop, answers from it, work that blocks, and loops on threads of their own.

pub(crate) mod defer;
pub(crate) mod handle;
pub(crate) mod lane;
pub(crate) mod reactors;
pub(crate) mod reply;
pub(crate) mod thread;
