//! Python hosted by a Rust program.
//!
//! - `host`: loops on threads of their own, to which any thread submits calls;
//! - `native`: Rust functions, channels and state for use from Python;
//! - `value`: Python data in Rust.
//!
//! Programs use it as part of `pelton_python`, with the feature `embed`.

#![cfg(feature = "python")]

pub mod host;
pub mod native;
pub mod value;

pub use host::Host;
pub use value::{ConversionError, Object, Value};
