//! What can go wrong with a reactor.

use std::convert::Infallible;
use std::io;
use std::os::fd::RawFd;
use std::panic::Location;

use pelton_os::engine::UnknownEngine;

use crate::{BadAddress, BadEndpoint};

/// What can go wrong with a reactor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `PELTON_ENGINE` names no engine.
    #[error(transparent)]
    UnknownEngine(#[from] UnknownEngine),

    /// The reactor was told to stop. It does not run again: its shutdown hooks have run, or will when
    /// [`run`](crate::EventLoop::run) is called.
    #[error("this reactor was stopped; build a new one")]
    Stopped,

    /// The process was forked since the reactor was built, and this is the child.
    #[error(
        "this reactor belongs to the process that forked this one; call after_fork() to make it this process's own"
    )]
    Forked,

    /// A loop was to be run inside a callback or a task of another loop on the same thread, which would stand still meanwhile.
    /// See [`Builder::nested`](crate::Builder::nested).
    #[error(
        "run a loop: this is inside a callback of another loop, which would stand still; use that loop, or give this one a \
         thread of its own with Reactor::start_thread, or say Builder::nested if it is meant"
    )]
    Nested,

    /// The descriptor is being watched already.
    #[error("watch descriptor {fd}: it is being watched already, since {place}")]
    AlreadyWatched {
        /// The descriptor.
        fd: RawFd,
        /// Where the other watch was asked for.
        place: &'static Location<'static>,
    },

    /// There is no such watch any more.
    #[error("change what is watched: this watch has ended")]
    NotWatched,

    /// A signal that no program may catch, or none at all.
    #[error("catch signal {signal}: {reason}")]
    Signal {
        /// Its number.
        signal: i32,
        /// What is wrong with it.
        reason: String,
    },

    /// A text that should be an address is none.
    #[error(transparent)]
    BadAddress(#[from] BadAddress),

    /// A text that should say what to connect to does not.
    #[error(transparent)]
    BadEndpoint(#[from] BadEndpoint),

    /// So much waits for threads already that no more is taken on. See [`LaneSettings`](crate::LaneSettings).
    #[error("{doing}: {waiting} of its kind are waiting for a thread already, and no more may")]
    LaneFull {
        /// What was being done, and to what.
        doing: String,
        /// How many wait.
        waiting: usize,
    },

    /// One of several [reactors](crate::Reactors) panicked, and was ended by it.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// The name of its thread.
        thread: String,
        /// What it panicked with.
        message: String,
    },

    /// A system call failed.
    #[error("{doing}: {error}")]
    System {
        /// What was being done, and to what.
        doing: String,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn system(doing: impl Into<String>, error: io::Error) -> Error {
        Error::System { doing: doing.into(), error }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::System { error, .. } => error.kind(),
            Error::AlreadyWatched { .. } => io::ErrorKind::AlreadyExists,
            Error::NotWatched => io::ErrorKind::NotFound,
            Error::LaneFull { .. } => io::ErrorKind::ResourceBusy,
            Error::UnknownEngine(_) | Error::BadAddress(_) | Error::BadEndpoint(_) | Error::Signal { .. } => {
                io::ErrorKind::InvalidInput
            }
            Error::Stopped | Error::Forked | Error::Nested | Error::Panicked { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
