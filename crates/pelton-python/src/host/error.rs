//! What comes of a task that does not come to its end.

use std::fmt;

use crate::value::{ConversionError, Object};

use super::Call;

/// Why there is no value. The same for functions and coroutines, wherever they ran.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Python raised an exception: any at all, `SystemExit` and `KeyboardInterrupt` included.
    #[error("{0}")]
    Raised(Box<Exception>),
    /// An argument could not be made a Python object, or the result no [`Value`](crate::Value).
    #[error("{0}")]
    Conversion(ConversionError),
    /// It was cancelled: by [`Reply::cancel`](super::Reply::cancel), by the task itself, or by a shutdown.
    #[error("the task was cancelled")]
    Cancelled,
    /// It was not done in [time](Call::timeout).
    #[error("the task took longer than it was given")]
    TimedOut,
    /// It was not taken on.
    #[error("{0}")]
    Refused(RefusalKind),
    /// The loop that had it is gone.
    #[error("the loop that had the task is gone")]
    LoopGone,
}

impl TaskError {
    /// The exception, if it is one.
    pub fn exception(&self) -> Option<&Exception> {
        if let TaskError::Raised(exception) = self { Some(exception) } else { None }
    }
}

/// A Python exception, as text. The object itself is kept [on request](Call::keep_exception).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    pub(crate) type_name: String,
    pub(crate) message: String,
    pub(crate) traceback: String,
    pub(crate) object: Option<Object>,
}

impl Exception {
    /// What its class is called: `ValueError`, or `package.module.Error` if it is not built in.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// What it says. What is no Unicode text in it is replaced.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The traceback as Python prints it, causes included.
    pub fn traceback(&self) -> &str {
        &self.traceback
    }

    /// The exception itself, if it was [asked for](Call::keep_exception).
    pub fn object(&self) -> Option<&Object> {
        self.object.as_ref()
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.type_name)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

impl std::error::Error for Exception {}

/// Why a call is not taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusalKind {
    /// As many wait as [may](super::Config::queue_bound).
    #[error("the queue is full")]
    Full,
    /// The host has been told to shut down.
    #[error("the host is shutting down")]
    ShuttingDown,
    /// Python is not running in this process: no [`Host`](super::Host) was started.
    #[error("Python is not running; start a host first")]
    NotRunning,
}

/// A call that is not taken on. It comes back as it was.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub kind: RefusalKind,
    /// What was to be called, arguments included.
    pub call: Box<Call>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call.name(), self.kind)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for TaskError {
    fn from(refused: Refused) -> TaskError {
        TaskError::Refused(refused.kind)
    }
}

impl From<ConversionError> for TaskError {
    fn from(error: ConversionError) -> TaskError {
        TaskError::Conversion(error)
    }
}

/// Why a host does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is one already: Python has one interpreter lock, and its state is shared by the whole process.
    #[error("another host is running in this process")]
    AlreadyRunning,
    /// A virtual environment that is none, or of another Python.
    #[error("virtual environment {path}: {problem}")]
    Environment {
        /// Where it was to be.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Python code failed that prepares the interpreter.
    #[error("prepare Python: {0}")]
    Python(Box<Exception>),
    /// No thread could be started.
    #[error("start a thread for the loop: {0}")]
    Thread(#[from] std::io::Error),
    /// A setting that makes no sense.
    #[error("{0}")]
    Setting(&'static str),
}
