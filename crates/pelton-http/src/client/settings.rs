//! Limits of a client.

use std::time::Duration;

use crate::wire::ResponseLimits;

/// The limits of a [`Client`](super::Client). `docs/client.md` gives the reasons for the defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time for the lookup, the connection, and the handshakes with proxy and server. 10 seconds.
    pub connect: Duration,
    /// Time from the end of the request to the complete head of the response. 30 seconds.
    pub head: Duration,
    /// Time between two pieces of a response. 30 seconds.
    pub between: Duration,
    /// Time for everything, redirects and retries included. 5 minutes; `None` for no limit.
    pub whole: Option<Duration>,
    /// Time to wait for `100 Continue` before the body is sent anyway. 1 second.
    pub continues: Duration,
    /// Connections to one origin. 64.
    pub per_origin: usize,
    /// Connections to one origin that are opened at a time. 64: a burst of requests must fill neither the lane on which names are
    /// looked up, nor the server's backlog.
    pub opening: usize,
    /// Connections to all origins together. 1,024.
    pub connections: usize,
    /// How long an unused connection is kept. 60 seconds; servers often close after 75.
    pub idle: Duration,
    /// Requests per connection. No limit.
    pub requests: u32,
    /// Requests that wait for a connection. 65,536; more fail with [`ErrorKind::Busy`](super::ErrorKind::Busy).
    pub waiting: usize,
    /// Redirects that are followed. 10; 0 returns redirects as responses.
    pub redirects: u32,
    /// Whether a redirect may lead from `https` to `http`. No.
    pub downgrades: bool,
    /// How often a request that is safe to repeat is sent again after a new connection failed. 0. A kept connection that had
    /// died is always replaced.
    pub retries: u32,
    /// Limits on the head of a response and on the overhead of chunks.
    pub response: ResponseLimits,
    /// The maximum length of a body that is collected in memory, in bytes, after decompression. 64 MiB.
    pub body: u64,
    /// The maximum length of a decompressed body that is streamed, in bytes. 1 GiB.
    pub decompressed: u64,
    /// Whether responses are requested compressed, and decompressed. Yes, with the feature `decompression`.
    pub decompresses: bool,
    /// The `User-Agent` of requests that have none. `pelton/VERSION`.
    pub user_agent: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connect: Duration::from_secs(10),
            head: Duration::from_secs(30),
            between: Duration::from_secs(30),
            whole: Some(Duration::from_secs(300)),
            continues: Duration::from_secs(1),
            per_origin: 64,
            opening: 64,
            connections: 1024,
            idle: Duration::from_secs(60),
            requests: u32::MAX,
            waiting: 65_536,
            redirects: 10,
            downgrades: false,
            retries: 0,
            response: ResponseLimits::default(),
            body: 64 << 20,
            decompressed: 1 << 30,
            decompresses: cfg!(feature = "decompression"),
            user_agent: Some(concat!("pelton/", env!("CARGO_PKG_VERSION")).to_owned()),
        }
    }
}
