//! Commands on their way to connections.
//!
//! Everything that answers a request ends up here: a response, a piece of a stream, a reader for a body. The connection takes
//! its commands out and applies them, either when the running callback returns or, if none is running, during a visit that the
//! sender makes immediately. A handler that responds while it runs uses the inbox, too; the connection only checks for this
//! case first, because then it needs no state for the request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pelton::ConnectionId;

use crate::Response;
use crate::exchange::{Command, SendState};

/// While a connection runs, a stream counts as full when more bytes than this are in the inbox.
const BYTES_BEFORE_FULL: usize = 64 * 1024;

/// The commands for the connections of a server. A connection empties its part before its callback returns.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The connection whose handler is running, the innermost if handlers are nested.
    running: Cell<Option<ConnectionId>>,
    commands: RefCell<Commands>,
}

#[derive(Default)]
struct Commands {
    /// The first command, if it is a response. It nearly always is, and is taken out before another arrives, so this avoids the
    /// queue.
    first: Option<(RequestId, Response)>,
    others: VecDeque<(RequestId, Command)>,
    /// The number of stream bytes in the other commands.
    bytes: usize,
}

/// A connection and the number of one of its requests.
type RequestId = (ConnectionId, u32);

impl Inbox {
    /// Adds a command.
    #[inline]
    pub(crate) fn put(&self, to: RequestId, command: Command) -> SendState {
        let commands = &mut *self.commands.borrow_mut();
        match command {
            Command::Respond(response) if commands.is_empty() => commands.first = Some((to, response)),
            command => commands.put_behind(to, command),
        }
        if commands.bytes > BYTES_BEFORE_FULL { SendState::Full } else { SendState::Ready }
    }

    /// Takes the first command for a connection.
    pub(crate) fn take(&self, connection: ConnectionId) -> Option<(u32, Command)> {
        self.commands.borrow_mut().take(connection)
    }

    /// Takes the response to a request, if there is no other command.
    #[inline]
    pub(crate) fn take_response(&self, to: RequestId) -> Option<Response> {
        let commands = &mut *self.commands.borrow_mut();
        if !commands.others.is_empty() {
            return None;
        }
        commands.first.take_if(|(request, _)| *request == to).map(|(_, response)| response)
    }

    /// Calls the handler of a request, and records which connection is running meanwhile.
    #[inline]
    pub(crate) fn while_running<R>(&self, connection: ConnectionId, call: impl FnOnce() -> R) -> R {
        let outer = self.running.replace(Some(connection));
        let result = call();
        self.running.set(outer);
        result
    }

    /// Whether this connection's handler is the innermost one running.
    #[inline]
    pub(crate) fn is_running(&self, connection: ConnectionId) -> bool {
        self.running.get() == Some(connection)
    }
}

impl Commands {
    #[inline]
    fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    #[inline(never)]
    fn put_behind(&mut self, to: RequestId, command: Command) {
        if let Command::Data(data) = &command {
            self.bytes = self.bytes.saturating_add(usize::try_from(data.len()).unwrap_or(usize::MAX));
        }
        self.others.push_back((to, command));
    }

    fn take(&mut self, connection: ConnectionId) -> Option<(u32, Command)> {
        if let Some(((_, sequence), response)) = self.first.take_if(|(to, _)| to.0 == connection) {
            return Some((sequence, Command::Respond(response)));
        }
        let at = self.others.iter().position(|(to, _)| to.0 == connection)?;
        let ((_, sequence), command) = self.others.remove(at)?;
        if self.others.is_empty() {
            self.bytes = 0;
        }
        Some((sequence, command))
    }
}
