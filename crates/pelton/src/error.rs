//! The errors of a reactor.

use std::convert::Infallible;
use std::io;
use std::os::fd::RawFd;
use std::panic::Location;

use pelton_os::engine::UnknownEngine;

use crate::{BadAddress, BadEndpoint};

/// An error of a reactor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `PELTON_ENGINE` does not name an engine.
    #[error(transparent)]
    UnknownEngine(#[from] UnknownEngine),

    /// The reactor was stopped and does not run again. Its shutdown hooks have run, or they run when
    /// [`run`](crate::EventLoop::run) is called.
    #[error("this reactor was stopped; build a new one")]
    Stopped,

    /// The process was forked after the reactor was built, and this is the child.
    #[error(
        "this reactor belongs to the process that forked this one; call after_fork() to make it this process's own"
    )]
    Forked,

    /// A callback or a task of one loop tried to run another loop on the same thread, which would block the first one.
    /// See [`Builder::nested`](crate::Builder::nested).
    #[error(
        "run a loop: a callback of another loop is running on this thread, and that loop would block; use that loop, give \
 this one its own thread with Reactor::start_thread, or allow it with Builder::nested"
    )]
    Nested,

    /// The reactor has a [guest](crate::Guest) already.
    #[error("host a guest: the reactor has one already, since {place}")]
    HasGuest {
        /// Where the other guest was registered.
        place: &'static Location<'static>,
    },

    /// The descriptor is already being watched.
    #[error("watch descriptor {fd}: it is already being watched, since {place}")]
    AlreadyWatched {
        /// The descriptor.
        fd: RawFd,
        /// Where the other watch was created.
        place: &'static Location<'static>,
    },

    /// The watch has ended.
    #[error("change a watch: it has ended")]
    NotWatched,

    /// The signal does not exist, or programs cannot catch it.
    #[error("catch signal {signal}: {reason}")]
    Signal {
        /// Its number.
        signal: i32,
        /// What is wrong with it.
        reason: String,
    },

    /// The text is not a valid address.
    #[error(transparent)]
    BadAddress(#[from] BadAddress),

    /// The text does not name a valid endpoint to connect to.
    #[error(transparent)]
    BadEndpoint(#[from] BadEndpoint),

    /// The lane's queue is full. See [`LaneSettings`](crate::LaneSettings).
    #[error("{doing}: the lane is full, with {waiting} waiting for a thread")]
    LaneFull {
        /// What was being done, and to what.
        doing: String,
        /// How many jobs are waiting.
        waiting: usize,
    },

    /// One of several [reactors](crate::Reactors) panicked and ended.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// The name of its thread.
        thread: String,
        /// The panic message.
        message: String,
    },

    /// A system call failed.
    #[error("{doing}: {error}")]
    System {
        /// What was being done, and to what.
        doing: String,
        /// The system's error.
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
            Error::AlreadyWatched { .. } | Error::HasGuest { .. } => io::ErrorKind::AlreadyExists,
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
