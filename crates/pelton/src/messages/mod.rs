//! Messages instead of bytes: a codec decodes them from a connection's bytes, and a protocol answers them.

pub mod codec;
pub(crate) mod protocol;
pub mod proxy_protocol;
