//! Transports: what a protocol writes to, and what reads for it.
//!
//! As with the loop, what is not hot is asyncio's own transport, in Python; the final types are derived from it here, with
//! the fields that both sides use in Rust.

pub(crate) mod queue;
pub(crate) mod stream;
mod stream_fields;
mod stream_io;
pub(crate) mod tls;
mod tls_io;
