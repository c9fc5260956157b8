//! Pelton as an asyncio event loop.
//!
//! Python imports this crate as `pelton._pelton`, built with the feature `extension`. Code that is not hot is Python,
//! in the surrounding package `pelton`. This crate derives the final types from the classes of that package:
//!
//! - `loop_type`: `pelton.Loop`, whose state is a `core` object that it owns;
//! - `handle` and `timer_handle`: the objects that `call_soon`, `call_later` and similar methods return;
//! - `run`: the turn, and the interpreter lock around it;
//! - `readers`: watched descriptors and their callbacks;
//! - `transports`: sockets, as protocols use them.
//!
//! Everything here runs with the interpreter lock held, except the one system call that sleeps. The lock keeps
//! other threads out. It does not keep out the same thread: every call into Python, and every dropped reference,
//! may call back in. So no Rust reference into a loop's state lives across such a call. Entries are taken out first
//! and dropped last.

#![cfg(any(feature = "extension", feature = "embed"))]

mod addresses;
mod arguments;
mod batch;
mod contexts;
mod core;
mod datagrams;
mod descriptors;
mod fields;
mod guards;
mod guest;
mod handle;
mod handle_memory;
mod handle_type;
mod hidden;
#[cfg(feature = "embed")]
pub mod host;
mod intake;
mod known;
mod loop_fields;
mod loop_type;
mod methods;
mod module;
#[cfg(feature = "embed")]
pub mod native;
mod object;
mod panic;
mod reactor_errors;
mod readers;
mod reserve;
mod run;
pub mod same_thread;
mod scheduling;
mod slow;
mod sockets;
mod stats;
mod syscalls;
mod thread_exit;
mod timer_handle;
mod transports;
mod types;
#[cfg(feature = "embed")]
pub mod value;

#[cfg(feature = "embed")]
pub use host::Host;
pub use module::_pelton;
#[cfg(feature = "embed")]
pub use value::{ConversionError, Object, Value};
