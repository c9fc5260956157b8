//! Counts of a client.

/// What a client has done on one reactor: [`Client::stats`](super::Client::stats).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ClientStats {
    /// Connections that were established, handshakes included.
    pub opened: u64,
    /// Bytes of responses, with their heads and framing.
    pub received: u64,
    /// Connections that were closed because the server sent something without being asked.
    pub unasked: u64,
}
