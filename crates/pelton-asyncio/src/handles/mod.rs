//! The objects that `call_soon`, `call_later` and similar methods return.

pub(crate) mod class;
pub(crate) mod contexts;
pub(crate) mod handle;
pub(crate) mod memory;
pub(crate) mod timer;
