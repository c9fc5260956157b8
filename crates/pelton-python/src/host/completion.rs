//! The duty to say what has become of a task. It cannot be forgotten: dropping it says that the loop is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::TaskError;
use super::batch::BatchShared;
use super::reply::{Outcome, Slot};
use super::stream::StreamShared;

/// What is wanted of a task: that it be cancelled; that it has been interrupted.
pub(crate) const CANCEL: u8 = 1;
pub(crate) const INTERRUPT: u8 = 2;

/// What those who wait for a task and the loop that has it tell each other.
#[derive(Debug, Default)]
pub(crate) struct Tag {
    wanted: AtomicU8,
    /// What the loop knows the task as, from when it first waits for something; 0 before.
    number: AtomicU64,
}

impl Tag {
    /// Whether somebody wants that.
    #[inline]
    pub(crate) fn is_wanted(&self, what: u8) -> bool {
        self.wanted.load(Ordering::SeqCst) & what != 0
    }

    /// Asks for it. The number is that of a task that the loop has to be told of; one without is yet to look here.
    ///
    /// Asking comes before looking for the number, and the loop sets the number before it looks for what is asked, all in one
    /// order: so at least one of the two sees the other.
    pub(crate) fn want(&self, what: u8) -> Option<u64> {
        self.wanted.fetch_or(what, Ordering::SeqCst);
        self.number()
    }

    pub(crate) fn number(&self) -> Option<u64> {
        Some(self.number.load(Ordering::SeqCst)).filter(|number| *number != 0)
    }

    pub(crate) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::SeqCst);
    }
}

/// Who is to be told.
#[derive(Debug)]
pub(crate) struct Completion(Option<To>);

#[derive(Debug)]
pub(crate) enum To {
    /// Nobody; what goes wrong is logged.
    Nobody(Arc<Tag>),
    Reply(Arc<Slot>),
    /// One of a batch.
    Batch(Arc<BatchShared>, u32),
    /// The end of a stream.
    Stream(Arc<StreamShared>),
}

impl Completion {
    pub(crate) fn new(to: To) -> Completion {
        Completion(Some(to))
    }

    #[inline]
    pub(crate) fn tag(&self) -> &Tag {
        match self.0.as_ref().expect("there until it is settled") {
            To::Nobody(tag) => tag,
            To::Reply(slot) => &slot.tag,
            To::Batch(batch, index) => batch.tag(*index),
            To::Stream(stream) => &stream.tag,
        }
    }

    /// The stream that the task is to feed.
    pub(crate) fn stream(&self) -> Option<&Arc<StreamShared>> {
        if let Some(To::Stream(stream)) = &self.0 { Some(stream) } else { None }
    }

    #[inline]
    pub(crate) fn settle(mut self, outcome: Outcome) {
        if let Some(to) = self.0.take() {
            tell(to, outcome);
        }
    }
}

fn tell(to: To, outcome: Outcome) {
    match to {
        To::Nobody(_) => {
            if let Err(error) = outcome {
                tracing::warn!(%error, "a Python task that nobody waits for has failed");
            }
        }
        To::Reply(slot) => slot.settle(outcome),
        To::Batch(batch, index) => batch.settle(index, outcome),
        To::Stream(stream) => stream.end(outcome.map(drop)),
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(to) = self.0.take() {
            tell(to, Err(TaskError::LoopGone));
        }
    }
}
