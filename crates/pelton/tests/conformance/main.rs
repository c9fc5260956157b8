//! The behaviour of every reactor, on every engine.
//!
//! Each test is a function that takes an engine; `on_every_engine!` expands it to one test per engine. The kqueue tests run
//! against the kernel's queue on macOS and the BSDs, and against the emulated one elsewhere.

mod embedding;
mod faults;
mod idle;
mod lifecycle;
mod order;
mod posts;
mod signals;
mod stats;
mod ticks;
mod timers;
mod watching;
