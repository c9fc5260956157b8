//! Errors of tasks and hosts.

use std::fmt;

use crate::value::{ConversionError, Object};

use super::Call;

/// Why a task has no result. The same for functions and coroutines, on loops and on workers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Python raised an exception of any class, including `SystemExit` and `KeyboardInterrupt`.
    #[error("{0}")]
    Raised(Box<Exception>),
    /// An argument could not be converted to a Python object, or the result could not be converted to a
    /// [`Value`](crate::Value).
    #[error("{0}")]
    Conversion(ConversionError),
    /// It was cancelled: by [`Reply::cancel`](super::Reply::cancel), by the task itself, or by a shutdown.
    #[error("the task was cancelled")]
    Cancelled,
    /// It did not finish within its [timeout](Call::timeout).
    #[error("the task timed out")]
    TimedOut,
    /// It was refused.
    #[error("{0}")]
    Refused(RefusalKind),
    /// Its loop has ended.
    #[error("the loop of the task has ended")]
    LoopGone,
}

impl TaskError {
    /// Returns the exception, if the task raised one.
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
    /// Returns the name of its class: `ValueError`, or `package.module.Error` if it is not built in.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns its message. Surrogates are replaced.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the traceback as Python prints it, including causes.
    pub fn traceback(&self) -> &str {
        &self.traceback
    }

    /// Returns the exception object, if it was [requested](Call::keep_exception).
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

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The queue has reached its [bound](super::Config::queue_bound).
    #[error("the queue is full")]
    Full,
    /// The host is shutting down.
    #[error("the host is shutting down")]
    ShuttingDown,
    /// Python is not running in this process: no [`Host`](super::Host) was started.
    #[error("Python is not running; start a host first")]
    NotRunning,
}

/// A refused call, returned unchanged.
#[derive(Debug)]
pub struct Refused {
    /// The reason.
    pub kind: RefusalKind,
    /// The call with its arguments.
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

/// Why a host did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A host is already running. Python has one interpreter lock, and its state is shared by the whole process.
    #[error("another host is running in this process")]
    AlreadyRunning,
    /// The virtual environment does not exist or is for another Python.
    #[error("virtual environment {path}: {problem}")]
    Environment {
        /// Its path.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// Python code that prepares the interpreter failed.
    #[error("prepare Python: {0}")]
    Python(Box<Exception>),
    /// A thread could not be started.
    #[error("start a thread for the loop: {0}")]
    Thread(#[from] std::io::Error),
    /// An invalid setting.
    #[error("{0}")]
    Setting(&'static str),
}
