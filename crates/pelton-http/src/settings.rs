//! How much, how many and how long: what a server allows its clients.

use std::time::Duration;

use crate::wire::{ChunkLimits, HeadLimits};

/// What a server allows its clients. The defaults are safe on the open Internet for pages and APIs; `docs/http.md` lists them with
/// their reasons.
///
/// ```
/// use pelton_http::Settings;
/// use std::time::Duration;
///
/// let settings = Settings { body: 64 << 20, idle: Duration::from_secs(5), ..Settings::default() };
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a request's head may be: 8 KiB of request line (414), 100 fields of 16 KiB together (431).
    pub head: HeadLimits,
    /// How much a chunked body may have around its data.
    pub chunks: ChunkLimits,
    /// How many bytes of a body are read, unless the handler [says otherwise](crate::Body::limit). By default 2 MiB; more are
    /// refused with 413.
    pub body: u64,
    /// How much of a body that nobody wants is read to be able to go on with the next request, instead of closing. By default
    /// 256 KiB: more costs longer than a new connection.
    pub discard: u64,
    /// How long the head of a request may take, from its first byte; and how long a new connection may take to send that. By
    /// default 15 seconds, then 408.
    pub header_time: Duration,
    /// How long a connection may be idle between requests. By default 60 seconds.
    pub idle: Duration,
    /// A body has to come in at so many bytes a second on average over each [`body_window`](Settings::body_window), or is refused with
    /// 408. By default 240: slower than any modem, and no attacker can hold many connections with less.
    pub body_rate: u32,
    /// Over what time the rate of a body is measured. By default 10 seconds: a phone that changes cells is not cut off.
    pub body_window: Duration,
    /// When the reactor [drains](pelton::Reactor::drain), how long connections without a request stay open: a request may be on its
    /// way, and would be lost. It is answered with `Connection: close`. By default a second: longer than most ways take.
    pub drain_idle: Duration,
    /// How long a client that was refused is given to stop sending and to read why, before the connection is closed. By default
    /// 5 seconds.
    pub linger: Duration,
    /// After so many requests a connection is closed. By default there is no such limit: an old connection costs no more than
    /// a new one.
    pub requests: Option<u32>,
    /// How many requests of one connection may be waiting for their answers, at least one and at most
    /// [`Settings::MOST_PIPELINED`]. By default 16; while there are so many, nothing more is read from it.
    pub pipelined: usize,
    /// How many connections there may be, of all servers that [share](crate::Server::sharing) a census. By default 16,384: so many
    /// heads, each as long as it may be, take 400 MiB. More are answered with 503 and closed.
    pub connections: usize,
    /// How many connections there may be from one address; with IPv6, from one network, which is 64 bits of the address. By
    /// default there is no such limit: behind a proxy, all come from one.
    pub connections_per_address: Option<usize>,
    /// While more bytes than this wait to be sent on the reactor, no connection is taken on: newcomers are answered with 503 and closed.
    /// By default 256 MiB, which is also the reactor's own [budget](pelton::Builder::byte_budget). For newcomers to be told, the
    /// reactor has to [accept](pelton::Builder::serve_over_budget) them.
    pub queued: usize,
    /// How many connections that were answered with 503 may [linger](Settings::linger) at a time, in addition to those that were
    /// taken on. If there are more, the oldest is closed. By default 64: a flood of newcomers must not take all descriptors.
    pub turned_away: usize,
}

impl Settings {
    /// More requests of one connection than this are not taken on at a time, whatever is allowed.
    pub const MOST_PIPELINED: usize = 1024;
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            head: HeadLimits::default(),
            chunks: ChunkLimits::default(),
            body: 2 << 20,
            discard: 256 << 10,
            header_time: Duration::from_secs(15),
            idle: Duration::from_secs(60),
            body_rate: 240,
            body_window: Duration::from_secs(10),
            drain_idle: Duration::from_secs(1),
            linger: Duration::from_secs(5),
            requests: None,
            pipelined: 16,
            connections: 16_384,
            connections_per_address: None,
            queued: 256 << 20,
            turned_away: 64,
        }
    }
}
