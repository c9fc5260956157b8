//! Connections: the reactor reads and writes, handlers receive the bytes.
//!
//! This file has the interface of handlers: the [`Connection`] trait, and the reasons why connections end. In the
//! folder `connection/`, `io.rs` has the operations of a handler. `stream.rs` has the state of a connection.
//! `events.rs`, `writing.rs` and `ending.rs` handle events, writes and the end. `limits.rs` has time limits,
//! `progress.rs` detects whether the peer reads, and `flow.rs` bounds send queues. `open.rs` and `dial.rs` open
//! connections, `descriptor.rs` has what differs on pipes and terminals, `hand_over.rs` replaces their handler, and
//! `detach.rs` releases them. `manual.rs` has connections whose handler receives and sends by itself. `layer.rs` has the
//! interface of layers, which transform bytes between the engine and the handler. `proxy.rs` forwards the input of one
//! connection to another.

mod descriptor;
mod detach;
mod dial;
mod ending;
mod events;
mod flow;
mod hand_over;
mod io;
mod layer;
mod limits;
mod manual;
mod open;
mod progress;
mod proxy;
mod regular_file;
mod stream;
mod writing;

use std::any::Any;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use pelton_os::{Address, Chunk, Token};

pub use detach::{DetachError, Detached, MoveError};
pub(crate) use dial::Attempt;
pub use dial::FailedAttempt;
pub(crate) use flow::{Flow, FlowSettings};
pub use flow::{Throttle, WaterMarks};
pub use io::{Io, Lingering};
pub use layer::{Layer, LayerIo, Layered};
pub use limits::Limit;
pub(crate) use limits::Limits;
pub use proxy::{PassOn, Proxied, Proxy, ProxyEnd, ProxyError};
pub(crate) use stream::{ConnectionState, Connections};

use crate::{Endpoint, FrameError, LookupError, Reactor};

/// Identifies a connection. [`Reactor::connection`] gives access to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub(crate) Token);

/// Handles a connection. The reactor calls one method at a time. It calls `opened` before it delivers any data, and
/// `closed` exactly once, last, whatever happened before.
///
/// ```
/// use pelton::{Chunk, Connection, Io};
///
/// struct Echo;
///
/// impl Connection for Echo {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         io.send_chunk(chunk).ok();
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle connections",
    label = "not a `Connection`",
    note = "implement `Connection` for it: `received` is the only method without a default",
    note = "for messages instead of bytes, `serve(codec, protocol)` makes a handler of a `Codec` and a `Protocol`"
)]
pub trait Connection: Any {
    /// Called when the connection is established.
    fn opened(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Called when a [layer](Layer) that was [pushed](Io::push_layer) on the open connection is ready. Other layers were
    /// ready when the connection was opened.
    fn layer_ready(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Called when bytes were received. The reactor reuses the memory of the chunk: keep the bytes you need or send the
    /// chunk on, then drop it.
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk);

    /// Called when a [manual](Reactor::adopt_manual) connection has something to [receive](Io::receive_into): bytes, the
    /// end of the stream, or an error. It is called in each turn until the handler has received everything or
    /// [pauses](Io::pause).
    fn readable(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Called when the send queue had exceeded the high [water mark](WaterMarks) and has fallen to the low one: the
    /// handler can send more. On a [manual](Reactor::adopt_manual) connection, it is called whenever the socket has
    /// accepted more.
    fn writable(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Called when everything has been sent, if the handler [asked](Io::tell_when_sent) for it.
    fn sent(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Called when the peer has finished sending. It may still read. By default the connection closes when everything
    /// has been sent. If this side has [finished](Io::finish) already, the connection closes after this call in any case.
    fn peer_finished(&mut self, io: &mut Io<'_>) {
        io.close_after_writing();
    }

    /// Called when the connection is no longer [proxied](Io::proxy_to), unless the handler itself
    /// [stopped](Io::stop_proxying) that. It is called once, also if the connection itself has ended:
    /// [`closed`](Connection::closed) follows then.
    ///
    /// By default, the connection closes when everything has been sent if its target was closed, and is
    /// [reset](Io::reset) if its target has failed. If its own peer has finished, it closes as well, unless it is the
    /// target of another connection that may send more.
    fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &Proxied) {
        match proxied.end {
            ProxyEnd::TargetClosed => io.close_after_writing(),
            ProxyEnd::TargetFailed => io.reset(),
            ProxyEnd::PeerFinished if io.proxied_from().is_none() => io.close_after_writing(),
            ProxyEnd::PeerFinished | ProxyEnd::LimitReached | ProxyEnd::SourceClosed | ProxyEnd::Stopped => {}
        }
    }

    /// Called when a [time limit](Io::set_limit) was reached. By default the connection is closed with
    /// [`Reason::TimedOut`]. If the handler keeps it open, the limit starts again.
    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        let after = io.limit(limit).unwrap_or_default();
        io.close_with(Reason::TimedOut { limit, after });
    }

    /// Called when the reactor is [draining](Reactor::drain) and waits for this connection to close. By default the
    /// connection closes when everything has been sent. A connection on which nothing was ever sent or received is
    /// closed without this call, unless it [counts as used](Io::count_as_used).
    fn draining(&mut self, io: &mut Io<'_>) {
        io.close_after_writing();
    }

    /// Called when the connection has ended.
    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let _ = (reactor, reason);
    }
}

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// Both sides finished sending.
    #[error("finished by the other side")]
    Finished,
    /// The other side reset it.
    #[error("reset by the other side")]
    Reset,
    /// The peer refused: nobody listens on the address.
    #[error("connect to {address}: refused")]
    Refused {
        /// The address of the peer.
        address: Address,
    },
    /// The connection could not be established for another reason.
    #[error("connect to {address}: {error}")]
    Unreachable {
        /// The address of the peer.
        address: Address,
        /// The system error.
        #[source]
        error: std::io::Error,
    },
    /// The name lookup failed.
    #[error(transparent)]
    Unresolved(LookupError),
    /// All addresses of the name failed.
    #[error("connect to {target}: {}", dial::List(attempts))]
    AllFailed {
        /// The name.
        target: Endpoint,
        /// The attempts, in the order in which they failed.
        attempts: Vec<FailedAttempt>,
    },
    /// A [time limit](Io::set_limit) was reached.
    #[error("{limit} within {after:?}")]
    TimedOut {
        /// The limit.
        limit: Limit,
        /// Its duration.
        after: Duration,
    },
    /// The send queue exceeded [its limit](WaterMarks::most): the peer does not read.
    #[error("the send queue is full")]
    Overflow,
    /// The codec could not decode received data, or could not encode a message.
    #[error("{0}")]
    Frame(#[source] FrameError),
    /// A [reserved reply](crate::Replies::later) was dropped without an answer.
    #[error("a message was not answered")]
    Unanswered,
    /// A callback of the connection panicked.
    #[error("its handler panicked")]
    Panicked,
    /// The connection was [detached](Io::detach) from the reactor and continues elsewhere.
    #[error("detached")]
    Detached,
    /// The connection was [handed over](Io::hand_over) to another handler.
    #[error("handed over to another handler")]
    HandedOver,
    /// The stream ended before a [layer](Layer) had received its closing message. The end may be missing, by accident
    /// or by an attack.
    #[error("the stream was truncated")]
    Truncated,
    /// A [layer](Layer) failed, with an error of its own.
    #[error("{0}")]
    Layer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A system call failed.
    #[error("{0}")]
    Failed(#[source] std::io::Error),
}

impl Reason {
    /// Makes the reason of a [layer](Layer) that fails.
    pub fn layer(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Reason {
        Reason::Layer(error.into())
    }

    fn from_error(error: std::io::Error) -> Reason {
        match error.kind() {
            // A half-close after a reset fails with "not connected".
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => Reason::Reset,
            _ => Reason::Failed(error),
        }
    }

    /// Returns why a connection could not be established.
    fn from_connecting(address: Address, error: std::io::Error) -> Reason {
        match error.kind() {
            ErrorKind::ConnectionRefused => Reason::Refused { address },
            // The connection was established for a moment.
            ErrorKind::ConnectionReset => Reason::Reset,
            _ => Reason::Unreachable { address, error },
        }
    }
}

/// The reason why data was refused. None of it was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The send queue is full: the peer does not read.
    #[error("send {bytes} bytes: the send queue holds {queued} of at most {most} bytes")]
    Full {
        /// The number of bytes refused.
        bytes: usize,
        /// The number of bytes queued.
        queued: usize,
        /// The limit.
        most: usize,
    },
    /// The connection is being closed, or has [finished](Io::finish) sending.
    #[error("send: the connection is closed for sending")]
    Closed,
    /// The connection's descriptor is open for reading only, like the read end of a pipe.
    #[error("send: the descriptor is open for reading only")]
    ReadOnly,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0.index())
    }
}
