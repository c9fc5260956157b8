//! Proxying: the input of one connection goes to another without passing through a handler.
//!
//! This file has the interface. `forward.rs` moves the bytes and their end, `splicing.rs` moves bulk inside the
//! kernel, and `ending.rs` ends proxying.
//!
//! The connection that is read from is the source. It has the state of the [`Forwarding`]. The target knows its source,
//! one at most, so that it can resume the source when its send queue has room, and tell it when the target is gone.

mod ending;
mod forward;
mod splicing;

use pelton_os::Token;

use super::stream::{Ending, Stage};
use super::{ConnectionId, ConnectionState, Io, Reason};
use crate::Reactor;
use splicing::Splicing;

pub(super) use ending::SourceEnd;
pub(super) use forward::{EndGoes, Feed, Progress};

/// How [`Io::proxy_to`] forwards.
///
/// ```
/// use pelton::{PassOn, Proxy};
///
/// let header = Proxy::new().limit(128).buffer(4096).pass_on(PassOn::Bytes);
/// # let _ = header;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[must_use]
pub struct Proxy {
    limit: Option<u64>,
    buffer: Option<usize>,
    pass_on: PassOn,
}

impl Proxy {
    /// Forwards everything, without a limit.
    pub fn new() -> Proxy {
        Proxy::default()
    }

    /// Ends proxying after this many bytes, with [`ProxyEnd::LimitReached`]. The source's handler receives the rest.
    pub fn limit(mut self, bytes: u64) -> Proxy {
        self.limit = Some(bytes);
        self
    }

    /// Sets how many bytes may be queued on the target: above that, the source is not read from until a quarter of it
    /// is left. By default the target's [water marks](crate::WaterMarks) decide. The last read may exceed this by up to
    /// 64 KiB. Without this setting, up to 1 MiB of bulk may wait in the kernel besides.
    pub fn buffer(mut self, bytes: usize) -> Proxy {
        self.buffer = Some(bytes);
        self
    }

    /// Sets what is passed on besides bytes. By default [`PassOn::Everything`].
    pub fn pass_on(mut self, pass_on: PassOn) -> Proxy {
        self.pass_on = pass_on;
        self
    }
}

/// What a source passes on to its target.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum PassOn {
    /// The bytes and their end. If the source's peer finishes, or the source is closed by this side, the target
    /// [finishes](Io::finish). If the source fails, the target is [reset](Io::reset), so that its peer does not mistake
    /// an incomplete stream for a complete one.
    #[default]
    Everything,
    /// The bytes only. The end of the source does not affect the target.
    Bytes,
}

/// The outcome of proxying, for [`Connection::proxy_finished`](super::Connection::proxy_finished).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Proxied {
    /// The target. It may be gone.
    pub target: ConnectionId,
    /// How many bytes were forwarded. Some of them may still be in the target's send queue.
    pub bytes: u64,
    /// Why proxying has ended.
    pub end: ProxyEnd,
}

/// Why proxying has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ProxyEnd {
    /// The peer of the source has finished sending.
    PeerFinished,
    /// The [limit](Proxy::limit) was reached.
    LimitReached,
    /// The target was closed, was detached, or has finished sending. The source's handler receives what follows.
    TargetClosed,
    /// The target has failed: it was reset, for example, or has timed out.
    TargetFailed,
    /// The source has ended. Its handler's [`closed`](super::Connection::closed) is called next, with the reason.
    SourceClosed,
    /// The source's [`stop_proxying`](Io::stop_proxying) was called.
    Stopped,
}

/// The reason why proxying was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The source is being closed.
    #[error("proxy a connection: it is being closed")]
    SourceClosed,
    /// The target is gone or cannot send: it is being closed, has finished, or is open for reading only.
    #[error("proxy a connection: its target is closed for sending")]
    TargetClosed,
    /// The source is proxied already. [Stop](Io::stop_proxying) that first.
    #[error("proxy a connection: it is proxied already")]
    SourceBusy,
    /// Another connection is proxied to the target already. With two sources, their bytes would be mixed.
    #[error("proxy a connection: its target has another source")]
    TargetBusy,
}

/// The state of a source.
pub(super) struct Forwarding {
    target: Token,
    bytes: u64,
    /// How many more bytes may be forwarded.
    left: Option<u64>,
    /// The source pauses when more is queued on the target.
    high: Option<usize>,
    pass_on: PassOn,
    splicing: Splicing,
}

impl ConnectionState {
    pub(super) fn forwarding(&mut self) -> Option<&mut Forwarding> {
        self.extra.as_mut()?.forwarding.as_deref_mut()
    }

    fn feed(&self) -> Option<Feed> {
        self.extra.as_ref()?.feed
    }

    /// Returns whether proxied bytes can be sent on the connection.
    fn takes_proxied(&self) -> bool {
        self.may_send() && !self.is_read_only()
    }
}

/// Proxying.
impl Io<'_> {
    /// Forwards everything that this connection receives to `target`, without calling the handler's
    /// [`received`](super::Connection::received). The bytes are moved, not copied, unless the target has
    /// [layers](crate::Layer) that transform them.
    ///
    /// - While the target's peer does not read, this connection is not read from ([`Proxy::buffer`]).
    /// - The end is [passed on](PassOn): a half-close becomes a half-close, a failure becomes a reset.
    /// - When proxying ends, for whatever reason, [`proxy_finished`](super::Connection::proxy_finished) is called once,
    ///   with the number of bytes. Then the handler receives what follows.
    ///
    /// Input that is held back, because reading is [paused](Io::pause) for example, is forwarded as well. If the peer
    /// has finished already, that is passed on. Bytes that the handler has received before and wants to forward have to
    /// be sent to the target first.
    ///
    /// A connection is the source of one target and the target of one source. Chains and circles are possible: two
    /// connections [proxied to each other](Io::proxy_both) are a circle, and a connection that is proxied to itself
    /// echoes.
    ///
    /// The target may still be connecting. Both may have layers, now or later.
    pub fn proxy_to(&mut self, target: ConnectionId, proxy: Proxy) -> Result<(), ProxyError> {
        let (source, target) = (self.id.0, target.0);
        let Some(stream) = self.reactor.stream_mut(source) else { return Err(ProxyError::SourceClosed) };
        if !matches!(stream.stage, Stage::Connecting | Stage::Layering | Stage::Open)
            || matches!(stream.ending, Ending::Close | Ending::Linger | Ending::Detach)
            || stream.failed()
        {
            return Err(ProxyError::SourceClosed);
        }
        if stream.proxies {
            return Err(ProxyError::SourceBusy);
        }
        let marks = Io { reactor: self.reactor, id: ConnectionId(target) }.water_marks();
        let Some(other) = self.reactor.stream_mut(target).filter(|other| other.takes_proxied()) else {
            return Err(ProxyError::TargetClosed);
        };
        if other.feed().is_some() {
            return Err(ProxyError::TargetBusy);
        }
        let low = proxy.buffer.map_or(marks.low, |bytes| bytes / 4);
        other.extra().feed = Some(Feed { source, low });
        let Some(stream) = self.reactor.stream_mut(source) else { return Err(ProxyError::SourceClosed) };
        let Proxy { limit, buffer, pass_on } = proxy;
        let forwarding =
            Forwarding { target, bytes: 0, left: limit, high: buffer, pass_on, splicing: Splicing::Off(0) };
        stream.proxies = true;
        let peer_finished = stream.peer_finished();
        let extra = stream.extra();
        extra.forwarding = Some(Box::new(forwarding));
        extra.repeat_end(peer_finished);
        if limit == Some(0) {
            self.reactor.next_tick(move |reactor| reactor.end_if_limit_is_reached(source));
        }
        // This also queues the delivery of held input.
        self.reactor.set_receiving(source);
        Ok(())
    }

    /// Forwards everything between this connection and `other`, in both directions.
    ///
    /// The pair behaves like one connection between the two peers. Each direction finishes by itself. When both have
    /// finished, both connections are closed. If one side fails, the other is reset.
    pub fn proxy_both(&mut self, other: ConnectionId, proxy: Proxy) -> Result<(), ProxyError> {
        self.proxy_to(other, proxy)?;
        let back = match self.reactor.connection(other) {
            Some(mut io) => io.proxy_to(self.id, proxy),
            None => Err(ProxyError::TargetClosed),
        };
        if back.is_err() {
            self.stop_proxying();
        }
        back
    }

    /// Stops proxying the connection and returns the outcome, or `None` if it is not proxied. The handler receives what
    /// follows. Bytes that were forwarded before are still sent.
    /// [`proxy_finished`](super::Connection::proxy_finished) is not called.
    pub fn stop_proxying(&mut self) -> Option<Proxied> {
        self.reactor.end_forwarding(self.id.0, ProxyEnd::Stopped)
    }

    /// Returns the target to which the connection is proxied.
    pub fn proxies_to(&mut self) -> Option<ConnectionId> {
        Some(ConnectionId(self.reactor.stream_mut(self.id.0)?.forwarding()?.target))
    }

    /// Returns the connection that is proxied to this one.
    pub fn proxied_from(&mut self) -> Option<ConnectionId> {
        Some(ConnectionId(self.reactor.stream_mut(self.id.0)?.feed()?.source))
    }

    /// Returns how many bytes were forwarded so far, if the connection is proxied.
    pub fn proxied_bytes(&mut self) -> Option<u64> {
        Some(self.reactor.stream_mut(self.id.0)?.forwarding()?.bytes)
    }

    /// Returns whether the kernel moves the proxied bytes at the moment, which it does for bulk between plain sockets on
    /// Linux.
    pub fn is_spliced(&mut self) -> bool {
        let forwarding = self.reactor.stream_mut(self.id.0).and_then(|stream| stream.forwarding());
        forwarding.is_some_and(|forwarding| matches!(forwarding.splicing, Splicing::On(_)))
    }

    /// Closes the connection and drops its send queue. A TCP peer sees a reset instead of an orderly end, so it does not
    /// mistake an incomplete stream for a complete one.
    pub fn reset(&mut self) {
        self.reactor.engine.reset_when_forgotten(self.id.0);
        self.close();
    }
}

impl Reason {
    /// Returns whether a connection that ended for this reason may have lost bytes.
    fn is_failure(&self) -> bool {
        !matches!(self, Reason::Local | Reason::Finished | Reason::Detached | Reason::HandedOver)
    }
}

impl Reactor {
    /// Proxies two connections to each other: see [`Io::proxy_both`].
    pub fn proxy(&mut self, one: ConnectionId, other: ConnectionId, proxy: Proxy) -> Result<(), ProxyError> {
        match self.connection(one) {
            Some(mut io) => io.proxy_both(other, proxy),
            None => Err(ProxyError::SourceClosed),
        }
    }
}
