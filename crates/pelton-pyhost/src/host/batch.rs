//! Batches: many tasks, one wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::completion::{Completion, Request, To};
use super::error::RefusalKind;
use super::loops::HostedLoop;
use super::reply::{self, Outcome, OutcomeCell};
use super::waiters::{Awaited, Entry};
use super::{Call, TaskError};
use crate::value::Value;

/// Shared by the tasks of a batch: one allocation for all tasks and their outcomes, and one wake-up after the last one.
#[derive(Debug)]
pub(crate) struct BatchState {
    items: Box<[Item]>,
    left: AtomicUsize,
    /// Settled when all tasks are settled.
    done: OutcomeCell,
}

#[derive(Debug)]
struct Item {
    request: Request,
    /// Written once by the loop, without contention.
    outcome: Mutex<Option<Outcome>>,
}

impl BatchState {
    pub(crate) fn new(calls: Vec<Call>, namespace: u64) -> BatchState {
        let item = |call| Item { request: Request::new(call, namespace), outcome: Mutex::new(None) };
        let items: Box<[Item]> = calls.into_iter().map(item).collect();
        let shared = BatchState { left: AtomicUsize::new(items.len()), items, done: OutcomeCell::new() };
        if shared.items.is_empty() {
            shared.done.settle(Ok(Value::None));
        }
        shared
    }

    pub(crate) fn request(&self, index: u32) -> &Request {
        &self.items[index as usize].request
    }

    pub(crate) fn settle(&self, index: u32, outcome: Outcome) {
        *self.items[index as usize].outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        // The last one to decrement sees all outcomes.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.settle(Ok(Value::None));
        }
    }

    /// Takes back the calls from `start` to `end`, which no loop has received.
    fn take_back(&self, start: u32, end: usize) -> Vec<Call> {
        let items = &self.items[start as usize..end];
        let calls = items.iter().filter_map(|item| item.request.take()).collect();
        if self.left.fetch_sub(items.len(), Ordering::AcqRel) == items.len() {
            self.done.settle(Ok(Value::None));
        }
        calls
    }

    fn take(&self, count: usize) -> Vec<Outcome> {
        let take = |item: &Item| {
            let outcome = item.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
            outcome.unwrap_or(Err(TaskError::LoopGone))
        };
        self.items[..count].iter().map(take).collect()
    }
}

impl Awaited for BatchState {
    fn abandon(&self) {
        self.done.abandon();
    }
}

/// Some tasks of a batch, queued together.
#[derive(Debug)]
pub(crate) struct Portion {
    shared: Arc<BatchState>,
    next: u32,
    end: u32,
}

impl Portion {
    pub(crate) fn new(shared: &Arc<BatchState>, next: usize, end: usize) -> Portion {
        Portion { shared: shared.clone(), next: next as u32, end: end as u32 }
    }

    pub(crate) fn len(&self) -> usize {
        (self.end - self.next) as usize
    }

    /// Takes back the calls from here to `end`, which the loop has not received.
    pub(crate) fn take_back(mut self, end: usize) -> Vec<Call> {
        let start = std::mem::replace(&mut self.next, self.end);
        self.shared.take_back(start, end)
    }

    /// Returns the next task.
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        if self.next == self.end {
            return None;
        }
        self.next += 1;
        Some(Completion::new(To::Batch(self.shared.clone(), self.next - 1)))
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        // Each remaining task is settled with `LoopGone`.
        while self.pop().is_some() {}
    }
}

/// The outcomes of many tasks, in the order of the calls: a future, which can also be waited for.
#[derive(Debug)]
#[must_use = "outcomes are dropped with the batch"]
pub struct Batch {
    shared: Arc<BatchState>,
    /// The number of calls that the loop accepted: the first `len`.
    len: usize,
    home: Arc<HostedLoop>,
    entry: Option<Entry>,
}

impl Batch {
    pub(crate) fn new(shared: Arc<BatchState>, len: usize, home: Arc<HostedLoop>) -> Batch {
        Batch { shared, len, home, entry: None }
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of outcomes that are still missing.
    pub fn left(&self) -> usize {
        self.shared.left.load(Ordering::Acquire)
    }

    /// Waits for all outcomes.
    ///
    /// # Panics
    ///
    /// Panics on the thread of the loop that has the tasks, where waiting would deadlock.
    pub fn wait(self) -> Vec<Outcome> {
        self.home.refuse_to_wait();
        reply::wait(&self.home, &self.shared, &self.shared.done, None);
        self.shared.take(self.len)
    }

    /// Waits for all outcomes, for at most `timeout`. Returns the batch if some are still missing.
    ///
    /// # Panics
    ///
    /// Panics on the thread of the loop that has the tasks.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Vec<Outcome>, Batch> {
        self.home.refuse_to_wait();
        match reply::wait(&self.home, &self.shared, &self.shared.done, Instant::now().checked_add(timeout)) {
            Some(_) => Ok(self.shared.take(self.len)),
            None => Err(self),
        }
    }

    /// Cancels all tasks, as [`Reply::cancel`](super::Reply::cancel) does.
    pub fn cancel(&self) {
        for item in &self.shared.items[..self.len] {
            self.home.cancel(&item.request.tag);
        }
    }
}

impl Future for Batch {
    type Output = Vec<Outcome>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let Batch { shared, home, entry, len } = self.get_mut();
        reply::poll(home, shared, &shared.done, entry, context).map(|_| shared.take(*len))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.home.waiters.leave(entry);
        }
    }
}

/// A batch that was only accepted in part.
#[derive(Debug, thiserror::Error)]
#[error("{} calls were refused: {kind}", rest.len())]
pub struct PartlyRefused {
    /// The reason.
    pub kind: RefusalKind,
    /// The accepted calls: the first ones.
    pub accepted: Batch,
    /// The refused calls, unchanged.
    pub rest: Vec<Call>,
}
