//! The protocol of Redis, in its versions 2 and 3 (RESP2, RESP3).

mod error;
mod number;
mod parser;
mod value;

pub use error::ProtocolError;
pub use parser::{Limits, Parser};
pub use value::{FromValue, ServerError, Value};
