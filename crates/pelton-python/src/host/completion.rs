//! The duty to say what has become of a task. It cannot be forgotten: dropping it says that the loop is gone.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pelton_os::{Time, clock};

use super::batch::BatchShared;
use super::call::Target;
use super::reply::{Outcome, Slot};
use super::stream::StreamShared;
use super::{Call, TaskError};
use crate::value;

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

/// A task as it was handed in.
///
/// It stays where it was made, together with the place for its outcome, and is freed with it, as a rule by the thread that made
/// it. What goes through the queue is a reference: memory that one thread allocates and another frees is what costs most. The
/// arguments themselves go as soon as the call has been made; whoever keeps a reply does not keep them.
#[derive(Debug)]
pub(crate) struct Request {
    /// Taken by the loop, which nobody competes with, and put back empty.
    call: Mutex<Option<Call>>,
    pub(crate) deadline: Option<Time>,
    /// The namespace that `__main__` means, or 0 for Python's own.
    pub(crate) namespace: u64,
    pub(crate) tag: Tag,
}

impl Request {
    pub(crate) fn new(call: Call, namespace: u64) -> Request {
        let deadline = call.timeout.map(|timeout| clock::now() + timeout);
        Request { call: Mutex::new(Some(call)), deadline, namespace, tag: Tag::default() }
    }

    /// The call, if it has not been taken.
    pub(crate) fn take(&self) -> Option<Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Lets go of what a call was made with, but for memory that is better freed by the thread that allocated it.
    pub(crate) fn put_back(&self, mut call: Call) {
        discard(&mut call);
        if matches!(call.target, Target::Function(..)) {
            *self.call.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(call) = self.call.get_mut().unwrap_or_else(PoisonError::into_inner) {
            discard(call);
        }
    }
}

/// Drops what a call was to be made with. That may be deeper than the stack of the thread which happens to do it: a loop's, as a
/// rule, which serves everybody.
fn discard(call: &mut Call) {
    value::discard(call.args.drain(..).chain(call.keywords.drain(..).map(|(_, value)| value)));
}

/// A task, and who is to be told of its outcome.
#[derive(Debug)]
pub(crate) struct Completion(Option<To>);

#[derive(Debug)]
pub(crate) enum To {
    /// Nobody; what goes wrong is logged.
    Nobody(Arc<Request>),
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
    pub(crate) fn request(&self) -> &Request {
        match self.0.as_ref().expect("there until it is settled") {
            To::Nobody(request) => request,
            To::Reply(slot) => &slot.request,
            To::Batch(batch, index) => batch.request(*index),
            To::Stream(stream) => &stream.request,
        }
    }

    #[inline]
    pub(crate) fn tag(&self) -> &Tag {
        &self.request().tag
    }

    /// Takes the call back, of a task that no loop has taken on.
    pub(crate) fn into_call(mut self) -> Option<Call> {
        Some(match self.0.take()? {
            To::Nobody(request) => Arc::into_inner(request)?.take()?,
            To::Reply(slot) => Arc::into_inner(slot)?.request.take()?,
            To::Stream(stream) => Arc::into_inner(stream)?.request.take()?,
            To::Batch(..) => return None,
        })
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
        To::Reply(slot) => slot.answer.settle(outcome),
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
