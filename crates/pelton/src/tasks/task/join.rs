//! What becomes of a task.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_task::FallibleTask;

/// Why a task has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// It was cancelled, or its reactor has stopped.
    #[error("the task was cancelled")]
    Cancelled,
    /// It panicked. The reactor's [fault hook](crate::Reactor::on_fault) has been told.
    #[error("the task panicked: {message}")]
    Panicked {
        /// What it panicked with.
        message: String,
    },
}

/// A task that was spawned: await it for its result.
///
/// Dropping it leaves the task to itself, which runs on, as [`detach`](JoinHandle::detach) does; with
/// [`cancel_on_drop`](JoinHandle::cancel_on_drop), it cancels the task.
///
/// ```
/// use pelton::task::{self, TaskError};
/// use pelton::Reactor;
///
/// let mut reactor = Reactor::new()?;
/// let forever = reactor.spawn(std::future::pending::<()>());
/// let outcome = reactor.block_on(forever.cancel_and_wait())?;
/// assert_eq!(outcome, Err(TaskError::Cancelled));
/// # Ok::<(), pelton::Error>(())
/// ```
pub struct JoinHandle<T> {
    /// `None` only while it is taken apart.
    task: Option<FallibleTask<Result<T, TaskError>>>,
    on_drop: OnDrop,
}

/// What happens to a task whose handle is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OnDrop {
    Detach,
    Cancel,
}

impl<T> JoinHandle<T> {
    pub(super) fn new(task: FallibleTask<Result<T, TaskError>>) -> JoinHandle<T> {
        JoinHandle { task: Some(task), on_drop: OnDrop::Detach }
    }

    /// Leaves the task to itself. It runs to its end, or to that of the reactor.
    pub fn detach(mut self) {
        self.on_drop = OnDrop::Detach;
    }

    /// Has the task cancelled when this handle is dropped.
    pub fn cancel_on_drop(mut self) -> JoinHandle<T> {
        self.on_drop = OnDrop::Cancel;
        self
    }

    /// Cancels the task: it is not polled any more, and what it owns is dropped by the loop in its next tick phase. Nothing
    /// happens if it is done.
    pub fn cancel(mut self) {
        self.on_drop = OnDrop::Cancel;
    }

    /// Cancels the task, and waits until what it owns has been dropped. Gives its result, if it was done before that.
    ///
    /// The task is cancelled also if this future is dropped before it has been polled.
    pub fn cancel_and_wait(mut self) -> impl Future<Output = Result<T, TaskError>> {
        self.on_drop = OnDrop::Cancel;
        async move {
            match self.task.take() {
                Some(task) => task.cancel().await.unwrap_or(Err(TaskError::Cancelled)),
                None => Err(TaskError::Cancelled),
            }
        }
    }

    /// Whether there is a result, or never will be one.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(|task| task.is_finished())
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, TaskError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.task {
            Some(task) => Pin::new(task).poll(context).map(|outcome| outcome.unwrap_or(Err(TaskError::Cancelled))),
            None => Poll::Ready(Err(TaskError::Cancelled)),
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        // Dropping the task itself cancels it.
        if let (Some(task), OnDrop::Detach) = (self.task.take(), self.on_drop) {
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("is_finished", &self.is_finished()).field("on_drop", &self.on_drop).finish()
    }
}
