//! Replaces the handler of a connection, for example to change the protocol.

use std::any::Any;

use pelton_os::{Chunk, Token};

use super::io::Input;
use super::stream::Stage;
use super::{Connection, ConnectionId, Io, Reason};
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Site};
use crate::sources::transport::Pauses;

/// A handler that will take over.
pub(super) struct Successor {
    handler: Box<dyn Connection>,
    unread: Vec<u8>,
}

impl Io<'_> {
    /// Hands the connection over to another handler when the current callback has returned. The old handler's
    /// [`closed`](Connection::closed) is called with [`Reason::HandedOver`], and nothing after that. The new handler's
    /// [`opened`](Connection::opened) is called once the connection is established. Then it receives `unread`, the
    /// bytes that the old handler received but did not process, and all further events. If the peer has finished or the
    /// reactor is draining, the new handler is notified of that again.
    ///
    /// Queued data is sent first. [Limits](Io::set_limit), [water marks](Io::set_water_marks) and the
    /// [label](Io::set_label) are kept. [Paused](Io::pause) reading resumes. A request to [be notified when everything
    /// is sent](Io::tell_when_sent) is dropped.
    ///
    /// If the connection closes before the new handler has taken over, only `closed` is called on that handler.
    pub fn hand_over(&mut self, handler: Box<dyn Connection>, unread: Vec<u8>) {
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return };
        stream.hands_over = true;
        stream.extra().successors.push_back(Successor { handler, unread });
        self.reactor.request_flush(self.id.0);
    }

    /// Keeps a value until the connection has ended, independent of its handler. It is dropped after
    /// [`closed`](Connection::closed).
    pub fn keep(&mut self, value: impl Any) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.extra().kept.push(Box::new(value));
        }
    }
}

impl Reactor {
    /// Switches to the queued handlers, one after the other. None of the connection's handlers may be running.
    #[cold]
    pub(super) fn switch_handlers(&mut self, token: Token) {
        while let Some(before) = self.switch_handler(token) {
            let Some(location) = self.stream_mut(token).map(|stream| stream.location) else { return };
            let site =
                Site { kind: CallbackKind::Connection, place: location, source: Some(ConnectionId(token).into()) };
            self.call_source(
                site,
                before,
                |handler, reactor| handler.closed(reactor, Reason::HandedOver),
                |reactor, _, _| reactor.open_successor(token),
            );
        }
    }

    /// Notifies the new handler of the connection's state.
    fn open_successor(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.stage == Stage::Open) {
            self.call_handler(token, |handler, io| handler.opened(io));
            if self.lifecycle.drains_connections() {
                self.call_handler(token, |handler, io| handler.draining(io));
            }
        }
    }

    /// Installs the next handler and queues its input. Returns the previous handler.
    fn switch_handler(&mut self, token: Token) -> Option<Box<dyn Connection>> {
        let stream = self.stream_mut(token).filter(|stream| stream.hands_over)?;
        let Some(Successor { handler, unread }) = stream.extra().successors.pop_front() else {
            stream.hands_over = false;
            return None;
        };
        let before = stream.handler.replace(handler);
        stream.pauses.remove(Pauses::HANDLER);
        stream.notify_when_sent = false;
        let ended = stream.peer_finished() && !stream.failed();
        let extra = stream.extra();
        if !unread.is_empty() {
            extra.held.push_front(Input::Chunk(Chunk::from(unread)));
        }
        extra.repeat_end(ended);
        // This also queues the delivery of held input in the next flush.
        self.set_receiving(token);
        before
    }
}
