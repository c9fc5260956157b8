//! Results of tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_task::FallibleTask;

/// Why a task has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The task was cancelled, or its reactor has stopped.
    #[error("the task was cancelled")]
    Cancelled,
    /// The task panicked. The panic has been reported to the reactor's [fault hook](crate::Reactor::on_fault).
    #[error("the task panicked: {message}")]
    Panicked {
        /// The panic message.
        message: String,
    },
}

/// A spawned task. Await it for the result.
///
/// Dropping it [detaches](JoinHandle::detach) the task, which continues to run, or cancels it after
/// [`cancel_on_drop`](JoinHandle::cancel_on_drop).
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
    /// `None` only after the task was taken out.
    task: Option<FallibleTask<Result<T, TaskError>>>,
    on_drop: OnDrop,
}

/// What to do with the task when its handle is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OnDrop {
    Detach,
    Cancel,
}

impl<T> JoinHandle<T> {
    pub(super) fn new(task: FallibleTask<Result<T, TaskError>>) -> JoinHandle<T> {
        JoinHandle { task: Some(task), on_drop: OnDrop::Detach }
    }

    /// Detaches the task. It runs until it or the reactor ends.
    pub fn detach(mut self) {
        self.on_drop = OnDrop::Detach;
    }

    /// Makes the handle cancel the task when it is dropped.
    pub fn cancel_on_drop(mut self) -> JoinHandle<T> {
        self.on_drop = OnDrop::Cancel;
        self
    }

    /// Cancels the task. It is not polled again, and the loop drops it in its next tick phase. Does nothing if the task
    /// has finished.
    pub fn cancel(mut self) {
        self.on_drop = OnDrop::Cancel;
    }

    /// Cancels the task and waits until it has been dropped. Returns its result if it finished first.
    ///
    /// The task is also cancelled if this future is dropped before it has been polled.
    pub fn cancel_and_wait(mut self) -> impl Future<Output = Result<T, TaskError>> {
        self.on_drop = OnDrop::Cancel;
        async move {
            match self.task.take() {
                Some(task) => task.cancel().await.unwrap_or(Err(TaskError::Cancelled)),
                None => Err(TaskError::Cancelled),
            }
        }
    }

    /// Returns whether there is a result, or never will be one.
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
        // Dropping the inner task cancels it.
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
