//! What comes after HTTP.

use std::any::Any;

use pelton::{Chunk, Connection, ConnectionId, Io, Reactor};

use super::{HttpConnection, Phase};

impl HttpConnection {
    /// Calls the handler that has taken over.
    pub(super) fn upgraded<R>(&mut self, io: &mut Io<'_>, call: impl FnOnce(&mut dyn Connection, &mut Io<'_>) -> R) -> R
    where
        R: Default,
    {
        match self.busy.as_mut().and_then(|busy| busy.upgraded.as_mut()) {
            Some(handler) => call(&mut **handler, io),
            None => R::default(),
        }
    }

    /// From here on the connection is another handler's.
    pub(super) fn hand_over(&mut self, io: &mut Io<'_>, handler: Box<dyn Connection>) {
        self.phase = Phase::Upgraded;
        if let Some((timer, _)) = self.timer.take() {
            io.reactor().cancel(timer);
        }
        if std::mem::take(&mut self.paused) {
            io.resume();
        }
        self.busy().upgraded = Some(handler);
        self.upgraded(io, |handler, io| handler.opened(io));
    }

    /// What the client has sent after its request is the other handler's.
    pub(super) fn upgraded_gets_rest(&mut self, io: &mut Io<'_>) {
        let Some(busy) = &mut self.busy else { return };
        let (mut rest, at) = busy.take_input();
        let finished = std::mem::take(&mut busy.finished);
        rest.drain(..at);
        if !rest.is_empty() {
            self.upgraded(io, |handler, io| handler.received(io, Chunk::from(rest)));
        }
        if finished {
            self.upgraded(io, |handler, io| handler.peer_finished(io));
        }
    }
}

/// Calls `visit` with the handler that has taken over a connection by an [upgrade](crate::Responder::upgrade), if that is a
/// `C`: what [`Reactor::visit`] is for other connections.
pub fn visit_upgraded<C: Connection, R>(
    reactor: &mut Reactor,
    id: ConnectionId,
    visit: impl FnOnce(&mut C, &mut Io<'_>) -> R,
) -> Option<R> {
    reactor.visit(id, |http: &mut HttpConnection, io| {
        http.upgraded(io, |handler, io| {
            let handler: &mut dyn Any = handler;
            handler.downcast_mut().map(|handler| visit(handler, io))
        })
    })?
}
