//! Rust calls Python: results, errors, and exactly one outcome for each call.

#![cfg(feature = "embed")]

mod calling;
mod cancelling;
mod environment;
mod errors;
#[path = "../host_support/mod.rs"]
mod host_support;
mod queueing;
