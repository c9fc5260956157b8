//! Giving a connection another handler, in the middle of its life: how one protocol follows another.

use std::any::Any;

use pelton_os::{Chunk, Token};

use super::io::Input;
use super::stream::Stage;
use super::{Connection, ConnectionId, Io, Reason};
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Site};

/// A handler that is to take over.
pub(super) struct Successor {
    handler: Box<dyn Connection>,
    unread: Vec<u8>,
}

impl Io<'_> {
    /// Hands the connection over to another handler, as a whole, when the callback at hand has returned. The handler so far is told
    /// that it is [closed](Connection::closed) with [`Reason::HandedOver`], and nothing after that. The other is told that the
    /// connection is [opened](Connection::opened), as soon as it is. Then it gets what the handler so far has received and not
    /// dealt with, which is `unread`, and everything else that happens. If the peer has finished, or the reactor drains, it is told
    /// so again.
    ///
    /// What waits to be sent goes out first. [Limits](Io::set_limit), [water marks](Io::set_water_marks) and the
    /// [label](Io::set_label) stay as they are. Reading goes on if it was [paused](Io::pause), and a handler that has asked to be
    /// [told when everything is sent](Io::tell_when_sent) has to ask again.
    ///
    /// If the connection is closed before the other handler has taken over, that handler is told only that.
    pub fn hand_over(&mut self, handler: Box<dyn Connection>, unread: Vec<u8>) {
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return };
        stream.hands_over = true;
        stream.extra().successors.push_back(Successor { handler, unread });
        self.reactor.request_flush(self.id.0);
    }

    /// Keeps a value until the connection is over, whatever handler it has then. It is dropped after
    /// [`closed`](Connection::closed).
    pub fn keep(&mut self, value: impl Any) {
        if let Some(stream) = self.reactor.stream_mut(self.id.0) {
            stream.extra().kept.push(Box::new(value));
        }
    }
}

impl Reactor {
    /// Lets the handlers take over that are to, one after the other. None of a connection's may be running.
    #[cold]
    pub(super) fn switch_handlers(&mut self, token: Token) {
        while let Some(before) = self.switch_handler(token) {
            let Some(place) = self.stream_mut(token).map(|stream| stream.place) else { return };
            let site = Site { kind: CallbackKind::Connection, place, source: Some(ConnectionId(token).into()) };
            self.call_source(
                site,
                before,
                |handler, reactor| handler.closed(reactor, Reason::HandedOver),
                |reactor, _, _| reactor.open_successor(token),
            );
        }
    }

    /// Tells the handler that has taken over how things stand.
    fn open_successor(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.stage == Stage::Open) {
            self.call_handler(token, |handler, io| handler.opened(io));
            if self.lifecycle.drains_connections() {
                self.call_handler(token, |handler, io| handler.draining(io));
            }
        }
    }

    /// Puts the next handler in place, with what it will be told. Gives the one before it.
    fn switch_handler(&mut self, token: Token) -> Option<Box<dyn Connection>> {
        let stream = self.stream_mut(token).filter(|stream| stream.hands_over)?;
        let Some(Successor { handler, unread }) = stream.extra().successors.pop_front() else {
            stream.hands_over = false;
            return None;
        };
        let before = stream.handler.replace(handler);
        stream.paused = false;
        stream.tells_when_sent = false;
        let ended = stream.peer_finished && !stream.failed;
        let held = &mut stream.extra().held;
        if !unread.is_empty() {
            held.push_front(Input::Chunk(Chunk::from(unread)));
        }
        if ended && !matches!(held.back(), Some(Input::End)) {
            held.push_back(Input::End);
        }
        // Delivers what is held, too, in the next flush.
        self.set_receiving(token);
        before
    }
}
