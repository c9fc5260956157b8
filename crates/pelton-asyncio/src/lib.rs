//! Pelton's reactor as an asyncio event loop.
//!
//! Code that is not hot is Python, in the package `pelton`. This crate derives the final types from the classes of that package.
//!
//! | folder | contents |
//! |---|---|
//! | `event_loop/` | `pelton.Loop`: its state, methods, and its part as a guest in the reactor's turn |
//! | `handles/` | the objects that `call_soon`, `call_later` and similar methods return |
//! | `readers/` | watched descriptors and their callbacks |
//! | `sockets/` | `sock_recv` and similar methods, addresses, datagrams |
//! | `transports/` | sockets, as protocols use them |
//! | `same_thread.rs` | Rust and Python on the loop's thread |
//!
//! Everything here runs with the interpreter lock held, except the one system call that sleeps. The lock keeps
//! other threads out. It does not keep out the same thread: every call into Python, and every dropped reference,
//! may call back in. So no Rust reference into a loop's state lives across such a call. Entries are taken out first
//! and dropped last.

#![cfg(feature = "python")]

mod event_loop;
mod handles;
mod known;
mod module;
mod readers;
pub mod same_thread;
mod sockets;
mod transports;

pub use event_loop::{hosting, intake::Intake};
pub use module::fill as fill_module;
