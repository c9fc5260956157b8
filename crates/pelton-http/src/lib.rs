//! HTTP/1.1 on Pelton's reactor.

#![forbid(unsafe_code)]

mod method;
pub mod wire;

pub use method::Method;
