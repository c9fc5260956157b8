//! Pelton's reactor as an asyncio event loop.
//!
//! Code that is not hot is Python, in the package `pelton`. This crate derives the final types from the classes of that package.
//!
//! | folder | contents |
//! |---|---|
//! | `event_loop/` | `pelton.Loop`: its state, methods, and its part as a guest in the reactor's turn |
//! //! | `readers/` | watched descriptors and their callbacks |
//! | `sockets/` | `sock_recv` and similar methods, addresses, datagrams |
//! | `transports/` | sockets, as protocols use them |
//! | `known.rs`, `module.rs` | objects that are looked up once; the module |
//! | `same_thread.rs` | Rust and Python on the loop's thread |
//!
//! Everything here runs with the interpreter lock held, except the one system call that sleeps. The lock keeps
//! other threads out. It does not keep out the same thread: every call into Python, and every dropped reference,
//! may call back in. So the states of objects are made of cells and slots, and what has to be borrowed, a queue or the table of
//! descriptors, is borrowed for one operation that calls nothing.

#![cfg(feature = "python")]
#![forbid(unsafe_code)]

mod event_loop;
mod known;
mod module;
mod readers;
pub mod same_thread;
mod sockets;
mod transports;

pub use event_loop::{hosting, intake::Intake};
pub use module::fill as fill_module;
