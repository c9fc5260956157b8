//! Tokens that name an exchange (a request and its response), by which commands reach the connection.

use std::fmt;
use std::rc::Rc;

use pelton::{Connection, ConnectionId, Reactor};

use crate::body::Reader;
use crate::connection::HttpConnection;
use crate::server::Shared;
use crate::{BodyError, BodyEvent, Content, Response};

/// The exchange is over: the client has disconnected, or the request is already answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the exchange is over")]
pub struct Gone;

/// Whether a stream accepts more data without queueing too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendState {
    /// The stream accepts more data.
    Ready,
    /// Not now: a lot of output is queued. Data sent anyway is queued in memory.
    Full,
}

pub(crate) type Callback = Box<dyn FnOnce(&mut Reactor)>;

/// A command to the connection of an exchange.
pub(crate) enum Command {
    Respond(Response),
    /// An interim response, as bytes on the wire.
    Interim(Vec<u8>),
    /// A response whose body is sent in pieces.
    Stream(Response),
    Data(Content),
    /// The body is complete, with these trailers.
    Finish(Vec<u8>),
    /// The body will not be completed.
    Abort,
    WhenReady(Callback),
    OnGone(Callback),
    Read(Reader, Option<u64>),
    Pause,
    Resume,
    /// The rest of the body is not wanted.
    Discard,
    Upgrade(Response, Box<dyn Connection>),
    /// The responder was dropped without an answer.
    Dropped,
}

/// Names an exchange. It does not keep the connection open.
#[derive(Clone)]
pub(crate) struct ExchangeToken {
    pub(crate) shared: Rc<Shared>,
    pub(crate) connection: ConnectionId,
    pub(crate) sequence: u32,
}

impl ExchangeToken {
    /// Sends a command to the connection. If the connection is running, it applies the command before its callback returns.
    /// Otherwise the command is applied immediately.
    #[inline]
    pub(crate) fn tell(&self, reactor: &mut Reactor, command: Command) -> Result<SendState, Gone> {
        let state = self.shared.inbox.put((self.connection, self.sequence), command);
        // Fast path: a visit would fail for the same reason, but takes longer.
        if self.shared.inbox.is_running(self.connection) { Ok(state) } else { self.visit(reactor, state) }
    }

    /// Visits the connection, so that it applies the command.
    #[inline(never)]
    fn visit(&self, reactor: &mut Reactor, state: SendState) -> Result<SendState, Gone> {
        let visited = reactor.visit(self.connection, |http: &mut HttpConnection, io| http.apply_inbox(io));
        match visited {
            Some(outcome) => outcome,
            None if self.runs_a_callback(reactor) => Ok(state),
            None => {
                match self.shared.inbox.take(self.connection) {
                    Some((_, Command::Read(mut reader, _))) => reader(reactor, BodyEvent::Failed(BodyError::Gone)),
                    Some((_, Command::OnGone(callback))) => callback(reactor),
                    _ => {}
                }
                Err(Gone)
            }
        }
    }

    /// Calls `then` if the client disconnects before the exchange is over.
    pub(crate) fn on_gone(&self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor) + 'static) {
        // If it has disconnected already, `tell` has called it.
        let _ = self.tell(reactor, Command::OnGone(Box::new(then)));
    }

    /// Whether the client has disconnected.
    pub(crate) fn is_gone(&self, reactor: &mut Reactor) -> bool {
        reactor.connection(self.connection).is_none()
    }

    /// Whether the connection could not be visited because one of its callbacks is running.
    fn runs_a_callback(&self, reactor: &mut Reactor) -> bool {
        let handed_over = self.shared.handed_over.borrow().contains(&self.connection);
        reactor.connection(self.connection).is_some() && !handed_over
    }

    /// Sends a command without access to the reactor. It is applied in a later turn.
    pub(crate) fn post(&self, command: fn() -> Command) {
        let (connection, sequence) = (self.connection, self.sequence);
        let Some(handle) = self.shared.handle.get() else { return };
        // If the loop is gone, so are its connections.
        let _ = handle.post(move |reactor| {
            reactor.visit(connection, |http: &mut HttpConnection, io| http.tell(io, sequence, command()));
        });
    }
}

impl fmt::Debug for ExchangeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of {}", self.sequence, self.connection)
    }
}
