//! Names of peers: what a program connects to, how its addresses are looked up, and how a connection is kept up.

pub(crate) mod endpoint;
pub(crate) mod reconnect;
pub(crate) mod resolver;
