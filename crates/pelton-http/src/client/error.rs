//! What can go wrong with a request.

use std::fmt;
use std::time::Duration;

use pelton::Reason;

use super::BadUrl;

/// Why a request has no complete response. The message names the request and its host.
#[derive(Debug)]
pub struct Error {
    method: Box<str>,
    url: Box<str>,
    kind: Box<ErrorKind>,
}

/// The kinds of errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The URL is invalid.
    #[error("{}", .0.why)]
    BadUrl(BadUrl),
    /// The request is invalid: a field, its method, or its body.
    #[error("invalid request: {0}")]
    BadRequest(Box<str>),
    /// The connection could not be established, or its TLS handshake failed.
    #[error("not connected: {0}")]
    Connect(#[source] Reason),
    /// TLS is not available, or its configuration is invalid.
    #[error("TLS: {0}")]
    Tls(Box<str>),
    /// The proxy refused, or does not speak its protocol.
    #[error("proxy: {0}")]
    Proxy(Box<str>),
    /// The connection ended before the response was complete.
    #[error("the connection ended before the response {}: {reason}", if *.begun { "was complete" } else { "began" })]
    Ended {
        /// Why.
        #[source]
        reason: Reason,
        /// Whether a part of the response had arrived.
        begun: bool,
    },
    /// The response is not valid HTTP, or is ambiguous.
    #[error("malformed response: {0}")]
    Malformed(&'static str),
    /// A part of the response exceeds its limit.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes, after decompression.
        limit: u64,
    },
    /// The body could not be decompressed.
    #[error("the body is not valid {0}")]
    Undecodable(&'static str),
    /// A time limit was reached.
    #[error("{limit} within {after:?}")]
    TimedOut {
        /// Which.
        limit: TimeLimit,
        /// Its duration.
        after: Duration,
    },
    /// A redirect was not followed.
    #[error("redirected to {to:?}: {why}")]
    Redirect {
        /// The destination.
        to: Box<str>,
        /// Why it was not followed.
        why: &'static str,
    },
    /// The server did not switch to the requested protocol, but answered with this status.
    #[error("the protocol was not switched: status {0}")]
    NotSwitched(u16),
    /// Too many requests are waiting for a connection.
    #[error("{0} requests are waiting for a connection")]
    Busy(usize),
    /// The request was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The reactor is stopping, or is gone.
    #[error("the reactor has stopped")]
    Stopped,
    /// The response has a status that was declared an error, by [`error_for_status`](super::Response::error_for_status).
    #[error("status {0}")]
    Status(u16),
    /// The body is not what it was expected to be.
    #[error("{0}")]
    Body(Box<str>),
}

/// The time limits of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TimeLimit {
    /// Connecting, including the lookup and the handshakes with proxy and server.
    Connect,
    /// From the request to the complete head of the response.
    Head,
    /// Between two pieces of the response.
    Between,
    /// The whole exchange, including redirects and retries.
    Whole,
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeLimit::Connect => "not connected",
            TimeLimit::Head => "no response head was received",
            TimeLimit::Between => "no more of the body was received",
            TimeLimit::Whole => "the exchange was not completed",
        })
    }
}

impl Error {
    pub(super) fn new(method: &str, url: impl Into<Box<str>>, kind: ErrorKind) -> Error {
        Error { method: method.into(), url: url.into(), kind: Box::new(kind) }
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The URL of the failed request: that of the last redirect, if there were any.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether a time limit was reached.
    pub fn is_timeout(&self) -> bool {
        use pelton::Reason::TimedOut;
        matches!(*self.kind, ErrorKind::TimedOut { .. } | ErrorKind::Connect(TimedOut { .. }))
    }

    /// Whether the server was never reached, so that it did not see the request.
    pub fn is_connect(&self) -> bool {
        let limit = TimeLimit::Connect;
        matches!(&*self.kind, ErrorKind::Connect(_) | ErrorKind::Proxy(_) | ErrorKind::Tls(_))
            || matches!(&*self.kind, ErrorKind::TimedOut { limit: reached, .. } if *reached == limit)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.method, self.url, self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}
