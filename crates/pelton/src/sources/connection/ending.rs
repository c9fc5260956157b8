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
            self.sources.reap_later(token, reason);
        }
    }

    pub(super) fn drop_outbox(&mut self, token: Token) {
        if let Some(outbox) = self.stream_mut(token).and_then(|stream| stream.outbox.take()) {
            self.flow.remove(outbox.in_memory());
        }
    }

    /// Lets go of a connection that is over, and tells its handler.
    pub(super) fn reap(&mut self, token: Token, reason: Reason) {
        self.drop_outbox(token);
        if self.stream_mut(token).is_some_and(|stream| stream.hands_over) {
            // Every handler is told of its end, also one that has not heard of its beginning.
            self.switch_handlers(token);
        }
        let Some(stream) = self.stream_mut(token) else { return };
        let (place, handler) = (stream.place, stream.handler.take());
        let _kept = stream.extra.as_mut().map(|extra| std::mem::take(&mut extra.kept));
        let timer = stream.extra.as_ref().and_then(|extra| extra.timer);
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
        let outage = self.kept_connection_is_over(token, &reason);
        if self.hang_up(token) {
            self.sources.retire(token);
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

    /// The reactor drains: a connection that is in use ends in its own way, others at once.
    pub(super) fn drain_connection(&mut self, token: Token) {
        match self.stream_mut(token) {
            Some(stream) if stream.used => self.tell(token, |handler, io| handler.draining(io)),
            _ => self.connection_is_over(token, Reason::Local),
        }
    }
}
