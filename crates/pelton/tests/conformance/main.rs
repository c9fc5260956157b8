//! What every reactor does, on every engine.
//!
//! Each test is a function that is given a reactor; `on_every_engine!` makes a test of it per engine. The kqueue tests run
//! against the real kernel's queue on macOS and the BSDs, and against the emulated one elsewhere.

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
