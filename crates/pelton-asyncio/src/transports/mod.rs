//! Transports: protocols write to them and receive data from them.
//!
//! As with the loop, rarely used methods are asyncio's own, in Python. The types here derive from those classes.
//! The fields that both sides use are in Rust.
//!
//! A stream transport is an object around a connection of the reactor (`connection`). It is created in `opening`, receives in `reading`, sends in `writing`, and ends in `closing`.
//! `extra_info` has the methods that report its state.

mod closing;
mod connection;
mod extra_info;
pub(crate) mod opening;
pub(crate) mod pipes;
mod reading;
mod socket_access;
pub(crate) mod stream;
mod stream_fields;
pub(crate) mod tls;
mod tls_io;
pub(crate) mod writing;
