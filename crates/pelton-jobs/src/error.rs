//! Errors.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a store did not do what it was asked to.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The job, or a name, is not valid.
    #[error("a job was refused: {0}")]
    BadJob(String),
    /// The queue holds as many unfinished jobs as its [limit](crate::Limits::most) allows.
    #[error("the queue {queue} is full, with {most} jobs")]
    Full {
        /// The queue.
        queue: String,
        /// The limit.
        most: u64,
    },
    /// The URL of a store is malformed.
    #[error("the URL of a store of jobs: {0}")]
    BadUrl(String),
    /// Another process has the files open.
    #[error("{}: another process uses these jobs{}", path.display(), pid.map(|pid| format!(", process {pid}")).unwrap_or_default())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// A file is damaged before its end, so jobs that were acknowledged are lost. It is not changed.
    #[error("{}: damaged at byte {offset}, with valid records behind it; restore it from a copy", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The position of the first damaged record.
        offset: u64,
    },
    /// The system refused an operation on a file.
    #[error("{doing} {}: {error}", path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        error: Arc<io::Error>,
    },
    /// The server did not do it.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] pelton_redis::Error),
    /// The settings of the connection cannot be used.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Config(Arc<pelton_redis::ConfigError>),
    /// The store answered with something else than expected, or holds something else than jobs under its names.
    #[error("{request}: the store answered {found}")]
    Nonsense {
        /// The request.
        request: &'static str,
        /// What it answered.
        found: String,
    },
    /// The reactor did not run it.
    #[error("{0}")]
    Reactor(Arc<pelton::Error>),
    /// The loop has stopped, or the store was closed.
    #[error("the store of jobs is closed")]
    Closed,
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path, error: impl Into<io::Error>) -> Error {
        Error::Io { doing, path: path.to_owned(), error: Arc::new(error.into()) }
    }

    /// Returns whether the same request may succeed later: the server is away, a disk is full.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Io { .. } | Error::Full { .. } => true,
            #[cfg(feature = "redis")]
            Error::Redis(error) => !matches!(error, pelton_redis::Error::Closed { .. }),
            Error::Reactor(error) => matches!(**error, pelton::Error::LaneFull { .. }),
            _ => false,
        }
    }
}

impl From<pelton::Error> for Error {
    fn from(error: pelton::Error) -> Error {
        Error::Reactor(Arc::new(error))
    }
}

#[cfg(feature = "redis")]
impl From<pelton_redis::ConfigError> for Error {
    fn from(error: pelton_redis::ConfigError) -> Error {
        Error::Config(Arc::new(error))
    }
}
