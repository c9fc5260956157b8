//! The owned name of an exchange, a request and its answer, by which answers find their connection.

use std::fmt;
use std::rc::Rc;

use pelton::{Connection, ConnectionId, Reactor};

use crate::body::Reader;
use crate::connection::HttpConnection;
use crate::server::Shared;
use crate::{BodyError, BodyEvent, Content, Response};

/// The exchange is over: the client has gone, or has been answered otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the exchange is over")]
pub struct Gone;

/// Whether more may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Yes.
    Ready,
    /// Better not: much waits to be sent already.
    Full,
}

pub(crate) type Callback = Box<dyn FnOnce(&mut Reactor)>;

/// What an exchange's connection can be told.
pub(crate) enum Command {
    Respond(Response),
    /// A response whose body comes bit by bit.
    Stream(Response),
    Data(Content),
    /// The body is complete; these are its trailers.
    Finish(Vec<u8>),
    /// The body will not be completed.
    Abort,
    WhenReady(Callback),
    OnGone(Callback),
    Read(Reader, Option<u64>),
    Pause,
    Resume,
    Upgrade(Response, Box<dyn Connection>),
    /// Nobody will answer.
    Dropped,
}

/// Names an exchange. Holding one keeps nothing open.
#[derive(Clone)]
pub(crate) struct ExchangeToken {
    pub(crate) shared: Rc<Shared>,
    pub(crate) connection: ConnectionId,
    pub(crate) sequence: u32,
}

impl ExchangeToken {
    /// Answers. Most handlers do so while they run: then the answer is where the connection looks when they return.
    #[inline]
    pub(crate) fn respond(&self, reactor: &mut Reactor, response: Response) {
        if self.shared.running.get() == Some((self.connection, self.sequence)) {
            self.shared.answer.set(Some(response));
        } else {
            // If the client has gone, that is nobody's loss.
            let _ = self.tell(reactor, Command::Respond(response));
        }
    }

    /// Tells the connection. If it is just running, it will find out before its callback is over.
    pub(crate) fn tell(&self, reactor: &mut Reactor, command: Command) -> Result<Flow, Gone> {
        // It would be found out anyway that it cannot be visited; so it takes less time.
        if self.shared.running.get().is_some_and(|(connection, _)| connection == self.connection) {
            return Ok(self.shared.leave(self.connection, self.sequence, command));
        }
        let mut command = Some(command);
        let told = reactor.visit(self.connection, |http: &mut HttpConnection, io| {
            command.take().map(|command| http.told(io, self.sequence, command))
        });
        match (told.flatten(), command) {
            (Some(outcome), _) => outcome,
            (None, Some(command)) if self.is_running(reactor) => {
                Ok(self.shared.leave(self.connection, self.sequence, command))
            }
            (None, command) => {
                match command {
                    Some(Command::Read(mut reader, _)) => reader(reactor, BodyEvent::Failed(BodyError::Gone)),
                    Some(Command::OnGone(callback)) => callback(reactor),
                    _ => {}
                }
                Err(Gone)
            }
        }
    }

    /// Whether the connection could not be visited because it is just running.
    fn is_running(&self, reactor: &mut Reactor) -> bool {
        let handed_over = self.shared.handed_over.borrow().contains(&self.connection);
        reactor.connection(self.connection).is_some() && !handed_over
    }

    /// Tells the connection soon, from where there is no reactor at hand.
    pub(crate) fn post(&self, command: fn() -> Command) {
        let (connection, sequence) = (self.connection, self.sequence);
        let Some(handle) = self.shared.handle.get() else { return };
        // A loop that is gone has no connections.
        let _ = handle.post(move |reactor| {
            reactor.visit(connection, |http: &mut HttpConnection, io| http.told(io, sequence, command()));
        });
    }
}

impl fmt::Debug for ExchangeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of {}", self.sequence, self.connection)
    }
}
