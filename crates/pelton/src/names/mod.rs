//! Names: endpoints to connect to, name lookups, and connections that are re-established.

pub(crate) mod endpoint;
pub(crate) mod reconnect;
pub(crate) mod resolver;
