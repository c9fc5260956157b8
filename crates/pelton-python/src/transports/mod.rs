//! Transports: what a protocol writes to, and what reads for it.
//!
//! As with the loop, what is not hot is asyncio's own transport, in Python; the final types are derived from it here, with
//! the fields that both sides use in Rust.
//!
//! A stream's life: it is made in `opening`, in `reading` receives and in `writing` sends, and ends in `closing`; meanwhile
//! programs look into it by `asking`.

mod asking;
mod closing;
pub(crate) mod opening;
pub(crate) mod queue;
mod reading;
pub(crate) mod stream;
mod stream_fields;
mod through;
pub(crate) mod tls;
mod tls_io;
mod writing;
