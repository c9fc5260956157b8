//! Messages instead of bytes: a codec finds them in the bytes of a connection, a protocol answers them.

pub mod codec;
pub(crate) mod protocol;
