//! Pelton as an asyncio event loop.
//!
//! Python imports this crate as `pelton._pelton`, built with the feature `extension`. What is not hot is Python, in the
//! package `pelton` around it; what is here derives the final types from that:
//!
//! - `loop_type`: `pelton.Loop`, whose state is a `core` object that it owns;
//! - `handle` and `timer_handle`: what `call_soon`, `call_later` and the like return;
//! - `run`: the turn, and the interpreter lock around it;
//! - `readers`: descriptors and who waits for them;
//! - `transports`: sockets, as protocols see them.
//!
//! Everything in here runs with the interpreter lock held, except the one system call that sleeps. The lock is what keeps
//! other threads out; what it does not keep out is the same thread, because every call into Python (and every reference
//! that is dropped) may call back in. So no Rust reference into a loop's state lives across one: entries are taken
//! out first, and let go of last.

#![cfg(any(feature = "extension", feature = "embed"))]

mod addresses;
mod arguments;
mod contexts;
mod core;
mod datagrams;
mod descriptors;
mod fields;
mod guards;
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
mod readers;
mod reserve;
mod run;
mod scheduling;
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
