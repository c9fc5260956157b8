//! The obligation to settle a task. It cannot be forgotten: dropping it settles the task with `LoopGone`.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pelton_os::{Time, clock};

use super::batch::BatchState;
use super::call::Target;
use super::foreign::ForeignTask;
use super::loops::HostedLoop;
use super::reply::{Outcome, Slot};
use super::stream::StreamState;
use super::{Call, TaskError};
use crate::value;

/// Flags of a task: a cancellation was requested; an interruption was requested.
pub(crate) const CANCEL: u8 = 1;
pub(crate) const INTERRUPT: u8 = 2;

/// State shared by the waiters of a task and its loop.
#[derive(Debug, Default)]
pub(crate) struct Tag {
    wanted: AtomicU8,
    /// The loop's number for the task, set when it first waits; 0 before.
    number: AtomicU64,
}

impl Tag {
    /// Returns whether this flag is set.
    #[inline]
    pub(crate) fn is_wanted(&self, what: u8) -> bool {
        self.wanted.load(Ordering::SeqCst) & what != 0
    }

    /// Sets a flag. Returns the task's number if the loop has to be notified. A task without a number checks the
    /// flag later.
    ///
    /// This sets the flag before it reads the number, and the loop sets the number before it reads the flag, all
    /// sequentially consistent. So at least one of the two sees the other.
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

/// A submitted task.
///
/// It stays in the same allocation as its outcome and is freed with it, usually by the thread that created it. Only a
/// reference goes through the queue, because memory that one thread allocates and another frees is the most expensive
/// part. The arguments are dropped as soon as the call has been made, so keeping a reply does not keep them.
#[derive(Debug)]
pub(crate) struct Request {
    /// The call. The loop takes it without contention, and puts it back without its arguments.
    call: Mutex<Option<Call>>,
    pub(crate) deadline: Option<Time>,
    /// The namespace used as `__main__`; 0 for Python's own.
    pub(crate) namespace: u64,
    /// The table with the namespace, if it belongs to another thread.
    pub(crate) elsewhere: Option<Arc<HostedLoop>>,
    pub(crate) tag: Tag,
}

impl Request {
    pub(crate) fn new(call: Call, namespace: u64) -> Request {
        let deadline = call.timeout.map(|timeout| clock::now() + timeout);
        Request { call: Mutex::new(Some(call)), deadline, namespace, elsewhere: None, tag: Tag::default() }
    }

    /// Like `new`, for a thread other than the namespace's own.
    pub(crate) fn with_namespace_of(home: &Arc<HostedLoop>, call: Call, namespace: u64) -> Request {
        let mut request = Request::new(call, namespace);
        request.elsewhere = Some(home.clone());
        request
    }

    /// Takes the call, if it has not been taken.
    pub(crate) fn take(&self) -> Option<Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Drops the arguments of a call, but keeps memory that the thread that allocated it should free.
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

/// Drops the arguments of a call without recursion. They may be nested too deeply for the stack of the current
/// thread, usually a loop's.
fn discard(call: &mut Call) {
    value::discard(call.args.drain(..).chain(call.keywords.drain(..).map(|(_, value)| value)));
}

/// A task, and the recipient of its outcome.
#[derive(Debug)]
pub(crate) struct Completion(Option<To>);

#[derive(Debug)]
pub(crate) enum To {
    /// No recipient; errors are logged.
    Nobody(Arc<Request>),
    Reply(Arc<Slot>),
    /// One of a batch.
    Batch(Arc<BatchState>, u32),
    /// The end of a stream.
    Stream(Arc<StreamState>),
    /// A task that converts its own data.
    Foreign(Arc<ForeignTask>),
}

impl Completion {
    pub(crate) fn new(to: To) -> Completion {
        Completion(Some(to))
    }

    #[inline]
    pub(crate) fn request(&self) -> &Request {
        match self.0.as_ref().expect("only `settle` and `into_call` take it") {
            To::Nobody(request) => request,
            To::Reply(slot) => &slot.request,
            To::Batch(batch, index) => batch.request(*index),
            To::Stream(stream) => &stream.request,
            To::Foreign(task) => &task.request,
        }
    }

    #[inline]
    pub(crate) fn tag(&self) -> &Tag {
        &self.request().tag
    }

    /// Takes back the call of a task that no loop has accepted.
    pub(crate) fn into_call(mut self) -> Option<Call> {
        Some(match self.0.take()? {
            To::Nobody(request) => Arc::into_inner(request)?.take()?,
            To::Reply(slot) => Arc::into_inner(slot)?.request.take()?,
            To::Stream(stream) => Arc::into_inner(stream)?.request.take()?,
            To::Foreign(task) => task.request.take()?,
            To::Batch(..) => return None,
        })
    }

    /// Returns the stream that the task feeds.
    pub(crate) fn stream(&self) -> Option<&Arc<StreamState>> {
        if let Some(To::Stream(stream)) = &self.0 { Some(stream) } else { None }
    }

    /// Returns the task, if it converts its own data.
    #[inline]
    pub(crate) fn foreign(&self) -> Option<&Arc<ForeignTask>> {
        if let Some(To::Foreign(task)) = &self.0 { Some(task) } else { None }
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
                tracing::warn!(%error, "a spawned Python task failed");
            }
        }
        To::Reply(slot) => slot.answer.settle(outcome),
        To::Batch(batch, index) => batch.settle(index, outcome),
        To::Stream(stream) => stream.end(outcome.map(drop)),
        To::Foreign(task) => task.settle(outcome),
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(to) = self.0.take() {
            tell(to, Err(TaskError::LoopGone));
        }
    }
}
