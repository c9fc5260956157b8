//! The errors of a client.

use std::sync::Arc;
use std::time::Duration;

use pelton::Rejected;

use crate::{ProtocolError, ServerError};

/// Why a command has no answer.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error. [`ServerError::code`] tells which.
    #[error("the server answered: {0}")]
    Server(ServerError),
    /// Too many commands are waiting for an answer. The command was not sent.
    #[error("{command}: {waiting} commands wait for an answer, and at most {most} may")]
    Busy {
        /// The command.
        command: &'static str,
        /// How many are waiting.
        waiting: usize,
        /// The [limit](crate::Options::in_flight).
        most: usize,
    },
    /// The commands that wait to be sent are too large, or this one alone is. It was not sent.
    #[error("{command}: {bytes} bytes with those that wait to be sent, and at most {most} may wait")]
    TooLarge {
        /// The command.
        command: &'static str,
        /// Its size, together with those that wait.
        bytes: usize,
        /// The [limit](crate::Options::queued_bytes).
        most: usize,
    },
    /// The answer did not arrive in time. The command may have run, or may still run.
    #[error("{command}: no answer within {limit:?}; it may have run")]
    TimedOut {
        /// The command.
        command: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The connection ended before the answer arrived. The command may have run.
    #[error("{command}: the connection ended before the answer: {reason}; it may have run")]
    Interrupted {
        /// The command.
        command: &'static str,
        /// Why it ended.
        reason: Arc<str>,
    },
    /// There was no connection within the time limit. The command was not sent.
    #[error("{command}: not connected within {limit:?}: {reason}")]
    Unavailable {
        /// The command.
        command: &'static str,
        /// The time limit.
        limit: Duration,
        /// Why the last attempt to connect failed.
        reason: Arc<str>,
    },
    /// The server refuses this user, password, database or protocol. The command was not sent.
    #[error("{command}: the server refuses the connection: {error}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The server's answer.
        error: ServerError,
    },
    /// The server has sent bytes that are not a reply.
    #[error("{command}: {error}")]
    Protocol {
        /// The command.
        command: &'static str,
        /// What is wrong.
        error: ProtocolError,
    },
    /// The answer has another type than the program expects.
    #[error("the answer is {found}, not {expected}")]
    WrongType {
        /// The type that the program expects.
        expected: &'static str,
        /// The type that the server has sent.
        found: &'static str,
    },
    /// The command would change the connection, which others use too.
    #[error("{command} changes the connection that others use too; use {instead}")]
    Misplaced {
        /// The command.
        command: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// The client was [closed](crate::Client::close), or its loop has stopped.
    #[error("{command}: the client is closed")]
    Closed {
        /// The command.
        command: &'static str,
    },
}

impl Error {
    /// Returns whether the command may have run although there is no answer.
    pub fn may_have_run(&self) -> bool {
        matches!(self, Error::TimedOut { .. } | Error::Interrupted { .. } | Error::Protocol { .. })
    }

    /// Turns the rejection of a promise into an error.
    pub(crate) fn of(rejected: Rejected<Error>, command: &'static str) -> Error {
        match rejected {
            Rejected::Failed(error) => error,
            _ => Error::Closed { command },
        }
    }
}

/// Why the settings of a connection cannot be used. It never shows the URL, which may contain a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The URL is malformed.
    #[error("the URL of a Redis server: {0}")]
    BadUrl(String),
    /// The settings of TLS cannot be used.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] pelton_tls::ConfigError),
    /// The loop was stopped, or could not be started.
    #[error(transparent)]
    Reactor(#[from] pelton::Error),
}

/// Options that are given as such cannot fail.
impl From<std::convert::Infallible> for ConfigError {
    fn from(never: std::convert::Infallible) -> ConfigError {
        match never {}
    }
}
