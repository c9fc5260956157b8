//! Commands on their way to connections.
//!
//! Everything that answers a request ends up here: a response, a piece of a stream, a reader for a body. The connection takes its
//! commands out and applies them, either when the callback that is running returns or, if none is running, during a visit that the
//! sender makes at once. A handler that responds while it runs takes the same way; the connection only checks for this case first,
//! because then it needs no state for the request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pelton::ConnectionId;

use crate::Response;
use crate::exchange::{Command, SendState};

/// While a connection runs, a stream counts as full when more bytes than this are in the inbox.
const BYTES_BEFORE_FULL: usize = 64 * 1024;

/// The commands for the connections of a server. Only connections that are running have any: a connection leaves none behind.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The connection whose handler is running. If that handler has caused another to run, the inner one.
    running: Cell<Option<ConnectionId>>,
    commands: RefCell<Commands>,
}

#[derive(Default)]
struct Commands {
    /// The first, if it is a response. Nearly always it is, and is taken out before anything comes after it; a queue would cost more.
    first: Option<(RequestId, Response)>,
    others: VecDeque<(RequestId, Command)>,
    /// Bytes of streams among the others.
    bytes: usize,
}

/// A connection, and the number of a request of it.
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

    /// Calls the handler of a request, and remembers for that time which connection is running.
    #[inline]
    pub(crate) fn while_running<R>(&self, connection: ConnectionId, call: impl FnOnce() -> R) -> R {
        let outer = self.running.replace(Some(connection));
        let result = call();
        self.running.set(outer);
        result
    }

    /// Whether it is this connection's handler that is running. A connection further out may be running, too.
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
