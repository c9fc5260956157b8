//! Callbacks of a loop for pending tasks.

use std::sync::Arc;

use pyo3::prelude::*;

use super::TaskError;
use super::loops::{Control, HostedLoop, Waiting};
use super::returned::outcome_of;

/// Called when a future is done.
#[pyclass(frozen, module = "pelton._host")]
pub(crate) struct Finished {
    pub(crate) home: Arc<HostedLoop>,
    pub(crate) number: u64,
}

#[pymethods]
impl Finished {
    fn __call__(&self, py: Python<'_>, future: &Bound<'_, PyAny>) {
        let entry = self.home.waiting.lock().remove(&self.number);
        let Some(Waiting { completion, timer, options, .. }) = entry else {
            // The task timed out before. Retrieve the exception, because asyncio logs exceptions that are never
            // retrieved.
            let cancelled = future.call_method0("cancelled").and_then(|cancelled| cancelled.is_truthy());
            if !cancelled.unwrap_or(true) {
                let _ = future.call_method0("exception");
            }
            return;
        };
        if let Some(timer) = timer {
            let _ = timer.bind(py).call_method0("cancel");
        }
        if completion.tag().is_wanted(super::completion::INTERRUPT) {
            let thread = self.home.executor.thread.load(std::sync::atomic::Ordering::Relaxed);
            super::interpreter::take_back_interrupt(py, thread);
        }
        // SAFETY: the future is alive and the lock is held, as `Bound` shows.
        let outcome = unsafe { outcome_of(py, future.as_ptr(), options, &completion) };
        completion.settle(outcome);
        self.home.look_if_closing();
    }
}

/// Called when a task's timeout expires.
#[pyclass(frozen, module = "pelton._host")]
pub(crate) struct Expired {
    pub(crate) home: Arc<HostedLoop>,
    pub(crate) number: u64,
}

#[pymethods]
impl Expired {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let entry = self.home.waiting.lock().remove(&self.number);
        if let Some(Waiting { completion, future, .. }) = entry {
            completion.settle(Err(TaskError::TimedOut));
            future.bind(py).call_method0("cancel")?;
            self.home.look_if_closing();
        }
        Ok(())
    }
}

/// Cancels the task of this number if it is still pending.
pub(crate) fn cancel(py: Python<'_>, home: &HostedLoop, number: u64) {
    let future = home.waiting.lock().get(&number).map(|waiting| waiting.future.as_ptr());
    // SAFETY: the map owned a reference when the pointer was read. References are only dropped with the interpreter
    // lock held, which this thread has held since.
    if let Some(future) = future.map(|future| unsafe { Bound::<PyAny>::from_borrowed_ptr(py, future) })
        && let Err(error) = future.call_method0("cancel")
    {
        error.write_unraisable(py, Some(&future));
    }
}

impl HostedLoop {
    /// Lets the loop check whether it can end, if it is shutting down.
    pub(crate) fn look_if_closing(&self) {
        if self.closing.load(std::sync::atomic::Ordering::Relaxed) {
            self.control(Control::Look);
        }
    }
}
