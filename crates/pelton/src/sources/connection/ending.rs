//! How connections end, one and all.

use pelton_os::Token;

use super::stream::Stage;
use super::{ConnectionId, Reason};
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Site};

impl Reactor {
    /// Marks a connection as over, unless it is already. Its handler is told when the loop reaps.
    pub(crate) fn connection_is_over(&mut self, token: Token, reason: Reason) {
        if let Some(stream) = self.stream_mut(token)
            && stream.stage != Stage::Over
        {
            stream.stage = Stage::Over;
            self.over.push((token, reason));
        }
    }

    pub(super) fn drop_outbox(&mut self, token: Token) {
        if let Some(outbox) = self.stream_mut(token).and_then(|stream| stream.outbox.take()) {
            self.flow.queued -= outbox.in_memory();
        }
    }

    /// Lets go of connections that are over, and tells their handlers. What closes meanwhile goes too.
    pub(crate) fn reap_connections(&mut self) {
        while !self.over.is_empty() {
            for (token, reason) in std::mem::take(&mut self.over) {
                self.reap(token, reason);
            }
        }
    }

    fn reap(&mut self, token: Token, reason: Reason) {
        self.drop_outbox(token);
        if self.stream_mut(token).is_some_and(|stream| stream.hands_over) {
            // Every handler is told of its end, also one that has not heard of its beginning.
            self.switch_handlers(token);
        }
        let Some(stream) = self.stream_mut(token) else { return self.reap_datagrams(token, reason) };
        let (place, handler) = (stream.place, stream.handler.take());
        let _kept = stream.extra.as_mut().map(|extra| std::mem::take(&mut extra.kept));
        let timer = stream.extra.as_ref().and_then(|extra| extra.timer);
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
        let outage = self.kept_connection_is_over(token, &reason);
        self.connections -= 1;
        if self.hang_up(token) {
            self.sources.retire(token.into());
        } else {
            self.end_source(token);
        }
        let id = ConnectionId(token);
        let site = Site { kind: CallbackKind::Connection, place, source: Some(id.into()) };
        if let Some(mut handler) = handler {
            self.call_last(site, |reactor| handler.closed(reactor, reason));
        }
        if let Some(outage) = outage {
            self.tell_outage(&outage);
        }
    }

    /// Closes all connections, and tells their handlers.
    pub(crate) fn close_connections(&mut self) {
        for token in self.connection_tokens() {
            self.connection_is_over(token, Reason::Local);
        }
        self.reap_connections();
    }

    /// Has connections close, so that the loop can end: those that are in use in their own way.
    pub(crate) fn drain_connections(&mut self) {
        for token in self.connection_tokens() {
            match self.stream_mut(token) {
                Some(stream) if stream.used => self.tell(token, |handler, io| handler.draining(io)),
                _ => self.connection_is_over(token, Reason::Local),
            }
        }
    }
}
