//! Connections: the reactor does the reading and writing, handlers get the bytes.
//!
//! This file is what a handler sees: the [`Connection`] it implements, and why things end. Next to it, `connection/io.rs` is
//! what a handler can do; `stream.rs` is what the reactor keeps of a connection; `events.rs`, `writing.rs` and `ending.rs` are what
//! happens to it, `limits.rs` its time limits, `progress.rs` whether the other side reads, `flow.rs` how much may wait; `open.rs` and `dial.rs` are where connections come
//! from, `hand_over.rs` is how they get another handler, and `detach.rs` where they go.

mod detach;
mod dial;
mod ending;
mod events;
mod flow;
mod hand_over;
mod io;
mod limits;
mod open;
mod progress;
mod stream;
mod writing;

use std::any::Any;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use pelton_os::{Address, Chunk, Token};

pub use detach::{Detached, MoveError};
pub(crate) use dial::Attempt;
pub use dial::FailedAttempt;
pub use flow::WaterMarks;
pub(crate) use flow::{Flow, FlowSettings};
pub use io::Io;
pub use limits::Limit;
pub(crate) use limits::Limits;
pub(crate) use stream::{ConnectionState, Connections};

use crate::{Endpoint, FrameError, LookupError, Reactor};

/// Names a connection, to reach it from elsewhere with [`Reactor::connection`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub(crate) Token);

/// What happens to a connection. It is told in this order, one at a time, and `closed` comes once, whatever happened, and
/// last.
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
    /// It is established.
    fn opened(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Bytes have come in. The chunk is on loan from the reactor: keep what you need, or send it on, and let go of it.
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk);

    /// More than the high [water mark](WaterMarks) had been waiting to be sent, and now most of it is gone: time to send more.
    fn drained(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// Everything has been sent, which it [asked](Io::tell_when_sent) to be told.
    fn sent(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// The other side will send nothing more; it may still read. By default the connection is closed when everything
    /// has been sent.
    fn peer_finished(&mut self, io: &mut Io<'_>) {
        io.close_after_writing();
    }

    /// A [time limit](Io::set_limit) was reached. By default the connection is closed with [`Reason::TimedOut`]; if it is
    /// not, it has as long again.
    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        let after = io.limit(limit).unwrap_or_default();
        io.close_with(Reason::TimedOut { limit, after });
    }

    /// The reactor is [draining](Reactor::drain), and waits for this connection to close; but not for one on which nothing
    /// was ever sent or received, which is closed without asking, unless it [counts as used](Io::count_as_used). By default it is
    /// closed when everything has been sent.
    fn draining(&mut self, io: &mut Io<'_>) {
        io.close_after_writing();
    }

    /// It is over.
    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let _ = (reactor, reason);
    }
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The other side finished, and so did this one.
    #[error("finished by the other side")]
    Finished,
    /// The other side reset it.
    #[error("reset by the other side")]
    Reset,
    /// Nobody listens there.
    #[error("connect to {address}: refused")]
    Refused {
        /// Where it was to be connected to.
        address: Address,
    },
    /// It could not be connected for another reason.
    #[error("connect to {address}: {error}")]
    Unreachable {
        /// Where it was to be connected to.
        address: Address,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// The name that it was to be connected to could not be looked up.
    #[error(transparent)]
    Unresolved(LookupError),
    /// It could not be connected to any address of the name that it was to be connected to.
    #[error("connect to {target}: {}", dial::List(attempts))]
    AllFailed {
        /// The name.
        target: Endpoint,
        /// What was tried, in the order in which it failed.
        attempts: Vec<FailedAttempt>,
    },
    /// A [time limit](Io::set_limit) was reached.
    #[error("{limit}, for {after:?}")]
    TimedOut {
        /// Which one.
        limit: Limit,
        /// How long it was.
        after: Duration,
    },
    /// More was to be sent than may [wait](WaterMarks::most): the other side does not read.
    #[error("too much waits to be sent")]
    Overflow,
    /// What came in is not what its codec decodes, or what was to be sent is not what that encodes.
    #[error("{0}")]
    Frame(#[source] FrameError),
    /// A [place in line](crate::Replies::later) for a reply was given up without an answer.
    #[error("a message was not answered")]
    Unanswered,
    /// A callback of it panicked.
    #[error("its handler panicked")]
    Panicked,
    /// It was [detached](Io::detach), and goes on elsewhere.
    #[error("detached")]
    Detached,
    /// It was [handed over](Io::hand_over), and goes on with another handler.
    #[error("handed over to another handler")]
    HandedOver,
    /// The system said so.
    #[error("{0}")]
    Failed(#[source] std::io::Error),
}

impl Reason {
    fn from_error(error: std::io::Error) -> Reason {
        match error.kind() {
            // "Not connected" is what a half-close finds where there was a reset.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => Reason::Reset,
            _ => Reason::Failed(error),
        }
    }

    /// Why it could not be connected.
    fn from_connecting(address: Address, error: std::io::Error) -> Reason {
        match error.kind() {
            ErrorKind::ConnectionRefused => Reason::Refused { address },
            // It was established for a moment.
            ErrorKind::ConnectionReset => Reason::Reset,
            _ => Reason::Unreachable { address, error },
        }
    }
}

/// Why something was not sent. Nothing of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too much is waiting already: the other side does not read.
    #[error("send {bytes} bytes: {queued} are waiting already, and at most {most} may")]
    Full {
        /// How much was to be sent.
        bytes: usize,
        /// How much is waiting.
        queued: usize,
        /// How much may.
        most: usize,
    },
    /// The connection is being closed, or has [finished](Io::finish) sending.
    #[error("send: the connection is closed for sending")]
    Closed,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0.index())
    }
}
