//! Ends connections. All of them end here.

use pelton_os::Token;

use super::proxy::SourceEnd;
use super::{ConnectionId, ConnectionState, Io, Reason};
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Site};

impl Reactor {
    /// Marks a connection as over, unless it already is. The reap phase notifies its handler.
    pub(crate) fn connection_is_over(&mut self, token: Token, reason: Reason) {
        self.transport_is_over::<ConnectionState>(token, reason);
    }

    pub(super) fn drop_outbox(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        let layered = stream.layered;
        if let Some(outbox) = stream.outbox.take() {
            self.flow.remove(outbox.in_memory());
        }
        if layered {
            self.drop_layer_outboxes(token);
        }
    }

    /// Releases a connection that has ended and calls its handler's `closed`.
    pub(super) fn reap(&mut self, token: Token, reason: Reason) {
        self.drop_outbox(token);
        if self.stream_mut(token).is_some_and(|stream| stream.hands_over) {
            // `closed` is called on every handler, even on one whose `opened` was not called.
            self.switch_handlers(token);
        }
        let proxies = self.leave_proxies(token);
        let end = SourceEnd::from(&reason);
        let Some(stream) = self.stream_mut(token) else { return };
        let (location, mut handler) = (stream.location, stream.handler.take());
        let _kept = stream.extra.as_mut().map(|extra| std::mem::take(&mut extra.kept));
        if let Some(mut timer) = stream.extra.as_mut().map(|extra| std::mem::take(&mut extra.timer)) {
            timer.cancel(self);
        }
        let outage = self.kept_connection_is_over(token, &reason);
        if self.cancel_dial(token) {
            self.sources.retire(token);
        } else {
            self.end_source(token);
        }
        let id = ConnectionId(token);
        let site = Site { kind: CallbackKind::Connection, place: location, source: Some(id.into()) };
        if let (Some(handler), Some(proxied)) = (&mut handler, &proxies.proxied) {
            self.call_once(site, |reactor| handler.proxy_finished(&mut Io { reactor, id }, proxied));
        }
        self.call_closed(site, handler, |handler, reactor| handler.closed(reactor, reason));
        self.tell_proxies(&proxies, end);
        if let Some(outage) = outage {
            self.tell_outage(&outage);
        }
    }

    /// Ends a connection because the reactor is draining. A connection that is in use decides itself when to close.
    /// Others are closed immediately.
    pub(super) fn drain_connection(&mut self, token: Token) {
        match self.stream_mut(token) {
            Some(stream) if stream.used => self.notify(token, |handler, io| handler.draining(io)),
            _ => self.connection_is_over(token, Reason::Local),
        }
    }
}
