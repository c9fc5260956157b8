//! Ends proxying, and passes the end of a source on to its target.

use pelton_os::Token;

use super::{PassOn, Proxied, ProxyEnd};
use crate::Reactor;
use crate::sources::connection::stream::Stage;
use crate::sources::connection::{ConnectionId, Io, Reason};
use crate::sources::transport::Pauses;

/// What a connection that was reaped leaves to be told.
pub(in super::super) struct Remains {
    /// The outcome, if the connection was a source, and the target that is to learn of its end.
    pub(in super::super) proxied: Option<Proxied>,
    target: Option<Token>,
    /// The source, if the connection was a target.
    source: Option<Token>,
}

impl Reactor {
    /// Ends proxying without telling the source's handler.
    pub(super) fn end_forwarding(&mut self, source: Token, end: ProxyEnd) -> Option<Proxied> {
        self.stop_splicing(source);
        let stream = self.stream_mut(source)?;
        let forwarding = stream.extra.as_mut()?.forwarding.take()?;
        stream.proxies = false;
        stream.pauses.remove(Pauses::TARGET);
        if let Some(target) = self.stream_mut(forwarding.target) {
            target.holds_back = false;
            target.extra().feed = None;
        }
        self.set_receiving(source);
        Some(Proxied { target: ConnectionId(forwarding.target), bytes: forwarding.bytes, end })
    }

    /// Ends proxying and tells the source's handler.
    pub(super) fn proxying_ended(&mut self, source: Token, end: ProxyEnd) {
        if let Some(proxied) = self.end_forwarding(source, end) {
            self.notify(source, |handler, io| handler.proxy_finished(io, &proxied));
        }
    }

    /// Takes a connection that is being reaped out of its proxies.
    pub(in super::super) fn leave_proxies(&mut self, token: Token) -> Remains {
        let Some(stream) = self.stream_mut(token) else {
            return Remains { proxied: None, target: None, source: None };
        };
        let source = stream.feed().map(|feed| feed.source).filter(|source| *source != token);
        let passes_on = stream.forwarding().is_some_and(|forwarding| forwarding.pass_on == PassOn::Everything);
        let proxied = self.end_forwarding(token, ProxyEnd::SourceClosed);
        let target = proxied.filter(|_| passes_on).map(|proxied| proxied.target.0).filter(|target| *target != token);
        Remains { proxied, target, source }
    }

    /// Tells the target and the source of a connection that it has ended for a reason that was a failure or not.
    pub(in super::super) fn tell_proxies(&mut self, remains: &Remains, end: SourceEnd) {
        if let Some(source) = remains.source {
            // It may be over itself. Then its own end ends its proxying.
            if self.stream_mut(source).is_some_and(|stream| stream.stage != Stage::Over) {
                let end = if end == SourceEnd::Failed { ProxyEnd::TargetFailed } else { ProxyEnd::TargetClosed };
                self.proxying_ended(source, end);
            }
        }
        // The handler of a connection that was both has just been told, and decides.
        if let Some(target) = remains.target.filter(|target| remains.source != Some(*target)) {
            let mut io = Io { reactor: self, id: ConnectionId(target) };
            match end {
                SourceEnd::Closed => io.finish(),
                SourceEnd::Failed => io.reset(),
                SourceEnd::Detached => {}
            }
        }
    }
}

/// How a connection has ended, as far as the connections that it was proxied with are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum SourceEnd {
    Closed,
    Failed,
    /// It continues elsewhere.
    Detached,
}

impl From<&Reason> for SourceEnd {
    fn from(reason: &Reason) -> SourceEnd {
        match reason {
            Reason::Detached => SourceEnd::Detached,
            reason if reason.is_failure() => SourceEnd::Failed,
            _ => SourceEnd::Closed,
        }
    }
}
