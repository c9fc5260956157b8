//! Limits that a server imposes on its clients.

use std::time::Duration;

use crate::wire::{ChunkLimits, HeadLimits};

/// Limits that a server imposes on its clients. The defaults suit pages and APIs on the open Internet; `docs/http.md` gives the
/// reasons.
///
/// ```
/// use pelton_http::Settings;
/// use std::time::Duration;
///
/// let settings = Settings { body: 64 << 20, idle: Duration::from_secs(5), ..Settings::default() };
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// The maximum size of a request head. By default 8 KiB for the request line (414), and 100 fields with 16 KiB in total
    /// (431).
    pub head: HeadLimits,
    /// Limits on the overhead of a chunked body.
    pub chunks: ChunkLimits,
    /// The maximum body length, unless the handler [sets another](crate::Body::limit). By default 2 MiB. Longer bodies get a 413.
    pub body: u64,
    /// How much of an unwanted body is read to keep the connection open. By default 256 KiB: reading more takes longer than a new
    /// connection.
    pub discard: u64,
    /// How long a head may take from its first byte, and how long a new connection may take to send that byte. By default 15
    /// seconds, then 408.
    pub header_time: Duration,
    /// How long a connection may be idle between requests. By default 60 seconds.
    pub idle: Duration,
    /// The minimum average rate of a body in bytes per second, over each [`body_window`](Settings::body_window). Slower ones get
    /// a 408. By default 240, slower than any modem.
    pub body_rate: u32,
    /// The time over which the rate of a body is measured. By default 10 seconds, so a phone that changes cells is not cut off.
    pub body_window: Duration,
    /// How long idle connections stay open when the reactor [drains](pelton::Reactor::drain), because a request may be in flight.
    /// It is answered with `Connection: close`. By default one second.
    pub drain_idle: Duration,
    /// How long a refused client has to stop sending and read the refusal before the connection is closed. By default 5 seconds.
    pub linger: Duration,
    /// The maximum number of requests per connection. No limit by default: an old connection costs no more than a new one.
    pub requests: Option<u32>,
    /// The maximum number of unanswered requests per connection, from one to [`Settings::MOST_PIPELINED`]. By default 16. At the
    /// limit, reading pauses.
    pub pipelined: usize,
    /// The maximum number of connections of all servers that [share](crate::Server::sharing) a census. By default 16,384: with
    /// heads of maximum size they take 400 MiB. Further ones get a 503 and are closed.
    pub connections: usize,
    /// The maximum number of connections per address, or per /64 network with IPv6. No limit by default: behind a proxy, all
    /// connections come from one address.
    pub connections_per_address: Option<usize>,
    /// While more bytes than this are queued on the reactor, new connections get a 503 and are closed. By default 256 MiB, which
    /// is also the reactor's own [budget](pelton::Builder::byte_budget). To send the 503, the reactor must
    /// [accept](pelton::Builder::serve_over_budget) connections over budget.
    pub queued: usize,
    /// How many connections that got a 503 may [linger](Settings::linger), in addition to the accepted ones. Beyond that, the
    /// oldest is closed. By default 64, so a flood of connections does not exhaust the descriptors.
    pub turned_away: usize,
}

impl Settings {
    /// The upper bound for [`pipelined`](Settings::pipelined).
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
