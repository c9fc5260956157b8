//! Where connections go: back to their owner, or to another reactor.

use std::panic::Location;

use pelton_os::{Chunk, Socket, Token};

use super::io::Input;
use super::stream::{Ending, Stage};
use super::{Connection, ConnectionId, Io, Reason};
use crate::reactor::callback::{CallbackKind, Site};
use crate::{Fault, Handle, Reactor, SendError};

/// A connection that the reactor has let go.
#[derive(Debug)]
pub struct Detached {
    /// Its socket: [`into_fd`](Socket::into_fd) gives the descriptor. It does not block.
    pub socket: Socket,
    /// What had come in already, and its handler was not given.
    pub unread: Vec<u8>,
}

/// Why a connection was not moved to another reactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The connection is being closed, or has [finished](Io::finish) sending.
    #[error("move a connection: it is being closed")]
    Closed,
    /// The other reactor has stopped. The connection stays where it is.
    #[error("move a connection: the other reactor has stopped")]
    Stopped,
}

/// What to do with it.
pub(super) type Then = Box<dyn FnOnce(&mut Reactor, Detached)>;

impl Io<'_> {
    /// Takes the connection off the reactor: when everything that waits has been sent and the engine has let go of it, the
    /// handler is told that it is [closed](Connection::closed) with [`Reason::Detached`], and `then` is called with the
    /// socket and what had come in and was not read. If the connection ends before that, only the handler is told.
    ///
    /// Nothing more is read from now on.
    pub fn detach(&mut self, then: impl FnOnce(&mut Reactor, Detached) + 'static) -> Result<(), SendError> {
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return Err(SendError::Closed) };
        if !stream.may_send() || stream.failed {
            return Err(SendError::Closed);
        }
        stream.ending = Ending::Detach;
        stream.extra().detach = Some(Box::new(then));
        self.reactor.set_receiving(self.id.0);
        self.reactor.request_flush(self.id.0);
        Ok(())
    }

    /// Moves the connection to the reactor that `handle` leads to, where what `serve` makes takes it over: it is
    /// [opened](Connection::opened) there, and given what had come in and was not read. The handler here is told that it is
    /// [closed](Connection::closed) with [`Reason::Detached`].
    ///
    /// If that reactor has stopped already, the move is refused and the connection stays here. If it stops before it has taken
    /// the connection on, the connection is closed.
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
        let place = Location::caller();
        self.detach(move |reactor, detached| {
            let taken_on = handle.post(move |reactor| {
                // It takes on nothing new; the socket is closed.
                if reactor.check_takes_on().is_err() {
                    return;
                }
                let handler = serve(reactor);
                if let Err(error) = reactor.take_on_detached(place, detached, Box::new(handler)) {
                    let message = format!("a connection was moved here and could not be taken on: {error}");
                    reactor.report(Fault::at(place, "connection", message));
                }
            });
            if taken_on.is_err() {
                let message = "a connection was to be moved to a reactor that has stopped; it is closed";
                reactor.report(Fault::at(place, "connection", message));
            }
        })
        .map_err(|_| MoveError::Closed)
    }
}

impl Reactor {
    /// Everything has been sent: the engine may let go.
    pub(super) fn begin_detaching(&mut self, token: Token) {
        if let Err(error) = self.engine.detach(token) {
            self.connection_is_over(token, Reason::from_error(error));
        }
    }

    /// The engine has let go.
    pub(crate) fn connection_is_detached(&mut self, token: Token, socket: Socket) {
        let id = ConnectionId(token);
        // It may have been closed meanwhile; the socket then goes with it.
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage == Stage::Detaching) else { return };
        let Some(then) = stream.extra().detach.take() else { return };
        let site = Site { kind: CallbackKind::Connection, place: stream.place, source: Some(id.into()) };
        let mut unread = Vec::new();
        for input in std::mem::take(&mut stream.extra().held) {
            match input {
                Input::Chunk(chunk) => unread.extend_from_slice(&chunk),
                // It is in the socket too, for whoever reads it next.
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
