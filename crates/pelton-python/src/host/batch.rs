//! Many tasks, one wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use super::completion::Tag;
use super::error::RefusalKind;
use super::loops::LoopShared;
use super::reply::{Outcome, Slot};
use super::{Call, TaskError};
use crate::value::Value;

/// What the tasks of a batch share: one allocation for all of their outcomes, and one wake-up when the last has come.
#[derive(Debug)]
pub(crate) struct BatchShared {
    items: Box<[Item]>,
    /// How many of them count: those that were taken on.
    count: AtomicUsize,
    left: AtomicUsize,
    /// Settled when all are.
    done: Slot,
}

#[derive(Debug, Default)]
struct Item {
    tag: Tag,
    /// Written once by the loop; there is nobody else to wait for the lock.
    outcome: Mutex<Option<Outcome>>,
}

impl BatchShared {
    pub(crate) fn new(tasks: usize) -> BatchShared {
        let items = (0..tasks).map(|_| Item::default()).collect();
        let shared =
            BatchShared { items, count: AtomicUsize::new(tasks), left: AtomicUsize::new(tasks), done: Slot::new() };
        if tasks == 0 {
            shared.done.settle(Ok(Value::None));
        }
        shared
    }

    pub(crate) fn tag(&self, index: u32) -> &Tag {
        &self.items[index as usize].tag
    }

    pub(crate) fn settle(&self, index: u32, outcome: Outcome) {
        *self.items[index as usize].outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.settled(1);
    }

    /// From the item at `count` on none was taken on; `unsettled` of them were not settled either.
    pub(crate) fn give_up(&self, count: usize, unsettled: usize) {
        self.count.store(count, Ordering::Relaxed);
        self.settled(unsettled);
    }

    fn settled(&self, items: usize) {
        // Whoever sees that none is left sees all outcomes.
        if items > 0 && self.left.fetch_sub(items, Ordering::AcqRel) == items {
            self.done.settle(Ok(Value::None));
        }
    }

    fn take(&self) -> Vec<Outcome> {
        let take = |item: &Item| {
            let outcome = item.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
            outcome.unwrap_or(Err(TaskError::LoopGone))
        };
        self.items[..self.count.load(Ordering::Relaxed)].iter().map(take).collect()
    }
}

/// What will come of many tasks: a future of all outcomes, in the order of the calls, which can also be waited for.
#[derive(Debug)]
#[must_use = "outcomes that nobody takes are dropped"]
pub struct Batch {
    pub(crate) shared: Arc<BatchShared>,
    pub(crate) home: Arc<LoopShared>,
}

impl Batch {
    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many outcomes are still to come.
    pub fn left(&self) -> usize {
        self.shared.left.load(Ordering::Acquire)
    }

    /// Waits for all outcomes.
    ///
    /// # Panics
    ///
    /// On the thread of the loop that has the tasks, where it would wait for ever.
    pub fn wait(self) -> Vec<Outcome> {
        self.home.refuse_to_wait();
        self.shared.done.wait(None);
        self.shared.take()
    }

    /// Waits for all outcomes, for at most `timeout`. If they are not all there by then, this is given back.
    ///
    /// # Panics
    ///
    /// As [`wait`](Batch::wait) does.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Vec<Outcome>, Batch> {
        self.home.refuse_to_wait();
        match self.shared.done.wait_for(timeout) {
            Some(_) => Ok(self.shared.take()),
            None => Err(self),
        }
    }

    /// Cancels all of them, as [`Reply::cancel`](super::Reply::cancel) does.
    pub fn cancel(&self) {
        for item in &self.shared.items {
            self.home.cancel(&item.tag);
        }
    }
}

impl Future for Batch {
    type Output = Vec<Outcome>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        self.shared.done.poll(context).map(|_| self.shared.take())
    }
}

/// A batch of which not all was taken on.
#[derive(Debug, thiserror::Error)]
#[error("{} calls were not taken on: {kind}", rest.len())]
pub struct PartlyRefused {
    /// Why.
    pub kind: RefusalKind,
    /// The calls that were taken on, the first ones.
    pub accepted: Batch,
    /// The others, as they were.
    pub rest: Vec<Call>,
}
