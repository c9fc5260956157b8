//! Detaches connections: to the caller, or to another reactor.

use std::panic::Location;

use pelton_os::{Chunk, Socket, Token};

use super::io::Input;
use super::stream::{Ending, Stage};
use super::{Connection, ConnectionId, Io, Reason};
use crate::reactor::callback::{CallbackKind, Site};
use crate::{Fault, Handle, Reactor};

/// A connection that the reactor has released.
#[derive(Debug)]
pub struct Detached {
    /// The socket, in non-blocking mode, or another descriptor in the mode that it had before it was adopted.
    /// [`into_fd`](Socket::into_fd) returns the descriptor.
    pub socket: Socket,
    /// Bytes that were received but not passed to the handler.
    pub unread: Vec<u8>,
}

/// The reason why a connection was not detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetachError {
    /// The connection is being closed, or has [finished](Io::finish) sending.
    #[error("detach a connection: it is being closed")]
    Closed,
    /// The connection has [layers](crate::Layer). The bytes on its socket mean nothing without them.
    #[error("detach a connection: it has layers")]
    Layered,
}

/// The reason why a connection was not moved to another reactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The connection is being closed, or has [finished](Io::finish) sending.
    #[error("move a connection: it is being closed")]
    Closed,
    /// The connection has [layers](crate::Layer), which belong to this reactor.
    #[error("move a connection: it has layers")]
    Layered,
    /// The other reactor has stopped. The connection stays on this reactor.
    #[error("move a connection: the other reactor has stopped")]
    Stopped,
}

/// Receives the detached connection.
pub(super) type OnDetached = Box<dyn FnOnce(&mut Reactor, Detached)>;

impl Io<'_> {
    /// Detaches the connection from the reactor. When the send queue is flushed and the engine has released the socket,
    /// the handler's [`closed`](Connection::closed) is called with [`Reason::Detached`]. Then `then` is called with the
    /// socket and the unread input. If the connection ends before that, only `closed` is called.
    ///
    /// The reactor stops reading immediately.
    ///
    /// A connection with [layers](crate::Layer) cannot be detached, because the bytes on its socket mean nothing without
    /// them: fails with [`DetachError::Layered`]. A layer that has [left](crate::LayerIo::leave) does not matter.
    pub fn detach(&mut self, then: impl FnOnce(&mut Reactor, Detached) + 'static) -> Result<(), DetachError> {
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return Err(DetachError::Closed) };
        if !stream.may_send() || stream.failed() {
            return Err(DetachError::Closed);
        }
        if stream.layered {
            return Err(DetachError::Layered);
        }
        stream.ending = Ending::Detach;
        stream.extra().detach = Some(Box::new(then));
        self.reactor.set_receiving(self.id.0);
        self.reactor.request_flush(self.id.0);
        Ok(())
    }

    /// Moves the connection to the reactor of `handle`. There, `serve` makes its new handler, which is
    /// [opened](Connection::opened) and receives the unread input. The handler here is [closed](Connection::closed)
    /// with [`Reason::Detached`].
    ///
    /// A connection with [layers](crate::Layer) cannot be moved, like it cannot be [detached](Io::detach).
    ///
    /// If that reactor has stopped, the move is refused and the connection stays here. If it stops before it adopts the
    /// connection, the connection is closed.
    #[track_caller]
    pub fn move_to<C: Connection>(
        &mut self,
        handle: &Handle,
        serve: impl FnOnce(&mut Reactor) -> C + Send + 'static,
    ) -> Result<(), MoveError> {
        if handle.has_stopped() {
            return Err(MoveError::Stopped);
        }
        let handle = handle.clone();
        let location = Location::caller();
        self.detach(move |reactor, detached| {
            let taken_on = handle.post(move |reactor| {
                // This reactor accepts no new work: close the socket.
                if reactor.check_takes_on().is_err() {
                    return;
                }
                let handler = serve(reactor);
                if let Err(error) = reactor.take_on_detached(location, detached, Box::new(handler)) {
                    let message = format!("could not adopt a connection that was moved here: {error}");
                    reactor.report(Fault::at(location, "connection", message));
                }
            });
            if taken_on.is_err() {
                let message = "closed a connection that was being moved: the other reactor has stopped";
                reactor.report(Fault::at(location, "connection", message));
            }
        })
        .map_err(|error| match error {
            DetachError::Closed => MoveError::Closed,
            DetachError::Layered => MoveError::Layered,
        })
    }
}

impl Reactor {
    /// Asks the engine to release a connection whose send queue is flushed.
    pub(super) fn begin_detaching(&mut self, token: Token) {
        if let Err(error) = self.engine.detach(token) {
            self.connection_is_over(token, Reason::from_error(error));
        }
    }

    /// Completes a detach: the engine has released the socket.
    pub(crate) fn connection_is_detached(&mut self, token: Token, socket: Socket) {
        let id = ConnectionId(token);
        // The connection may have been closed meanwhile. Then the socket is dropped.
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage == Stage::Detaching) else { return };
        let Some(then) = stream.extra().detach.take() else { return };
        let site = Site { kind: CallbackKind::Connection, place: stream.location, source: Some(id.into()) };
        let mut unread = Vec::new();
        for input in std::mem::take(&mut stream.extra().held) {
            match input {
                Input::Chunk(chunk) => unread.extend_from_slice(&chunk),
                // The next reader of the socket sees the end as well.
                Input::End => {}
            }
        }
        self.connection_is_over(token, Reason::Detached);
        self.reap_sources();
        self.call_once(site, |reactor| then(reactor, Detached { socket, unread }));
    }

    pub(super) fn hold_unread(&mut self, token: Token, unread: Vec<u8>) {
        if !unread.is_empty()
            && let Some(stream) = self.stream_mut(token)
        {
            stream.extra().held.push_back(Input::Chunk(Chunk::from(unread)));
        }
    }
}
