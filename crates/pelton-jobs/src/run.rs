//! A run of a job: what handlers get.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pelton::{Handle, Reactor};

use crate::JobId;
use crate::job::millis;
use crate::store::{Outcome, TakenJob};
use crate::worker::Worker;

/// One run of a job by one worker. Handlers get it, and end it once, with [`done`](Run::done) or [`fail`](Run::fail), on any
/// thread. If all clones are dropped before that, for example because a handler panicked, the run has failed.
#[derive(Clone)]
pub struct Run {
    inner: Arc<Inner>,
}

struct Inner {
    job: TakenJob,
    handle: Handle,
    worker: u64,
    flags: Arc<Flags>,
    ended: AtomicBool,
}

/// What the worker tells the run.
#[derive(Default)]
pub(crate) struct Flags {
    cancelled: AtomicBool,
    lost: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Flags {
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::Release);
        if lost {
            self.wake();
        }
    }

    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }

    fn is_raised(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.lost.load(Ordering::Acquire)
    }

    fn poll_raised(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_raised() {
            return Poll::Ready(());
        }
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        drop(wakers);
        // It may have been raised before the waker was stored.
        if self.is_raised() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Why a run failed, and whether the job is tried again. Every error can be made one with `?`.
///
/// ```
/// use pelton_jobs::Failure;
/// use std::time::Duration;
///
/// fn parse(payload: &str) -> Result<u32, Failure> {
///     if payload.is_empty() {
///         return Err(Failure::reject("the payload is empty"));
///     }
///     Ok(payload.parse::<u32>()?)
/// }
/// assert_eq!(parse("seven").unwrap_err().to_string(), "invalid digit found in string");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    why: String,
    next: Next,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Retry,
    RetryIn(Duration),
    Reject,
}

impl Failure {
    /// The job is tried again, unless this was its last attempt.
    pub fn new(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), next: Next::Retry }
    }

    /// The job is moved to the dead-letter list. Trying again would not help.
    pub fn reject(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), next: Next::Reject }
    }

    /// The job is tried again after this time, unless this was its last attempt.
    pub fn retry_in(wait: Duration, why: impl Into<String>) -> Failure {
        Failure { why: why.into(), next: Next::RetryIn(wait) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// `Failure` itself is not an error, so that every error can become one.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error.to_string())
    }
}

/// Longer reasons are cut: they are stored with the job, and shown in lists.
const REASON_LIMIT: usize = 1000;

impl Run {
    pub(crate) fn new(job: TakenJob, handle: Handle, worker: u64, flags: Arc<Flags>) -> Run {
        Run { inner: Arc::new(Inner { job, handle, worker, flags, ended: AtomicBool::new(false) }) }
    }

    /// Returns the job.
    pub fn id(&self) -> &JobId {
        &self.inner.job.id
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.inner.job.payload
    }

    /// Returns the key of the job.
    pub fn key(&self) -> Option<&str> {
        self.inner.job.key.as_deref()
    }

    /// Returns the number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.job.attempt
    }

    /// Returns the number of this run. It is larger than that of all earlier runs of the queue.
    ///
    /// A worker that was frozen may come back after its lease was over, and overlap with the worker that has taken over. Only
    /// the effects of a job can exclude that: let the database remember the largest number that it has seen for a key, and
    /// refuse smaller ones.
    pub fn fence(&self) -> u64 {
        self.inner.job.fence
    }

    /// Returns what an earlier run has [reported](Run::report) last, so that this one can continue there.
    pub fn progress(&self) -> &[u8] {
        &self.inner.job.progress
    }

    /// Returns whether the job was [cancelled](crate::Jobs::cancel). It is then not tried again if this run fails.
    pub fn is_cancelled(&self) -> bool {
        self.inner.flags.cancelled.load(Ordering::Acquire)
    }

    /// Returns whether the lease is over, as far as this worker knows. Another worker may have the job, and the end of this run
    /// will not count.
    pub fn is_lost(&self) -> bool {
        self.inner.flags.lost.load(Ordering::Acquire)
    }

    /// Waits until the job is cancelled or its lease is over: the run should end.
    pub async fn unwanted(&self) {
        std::future::poll_fn(|context| self.inner.flags.poll_raised(context)).await;
    }

    /// Stores how far the run is. Anybody can [look](crate::Jobs::inspect) at it.
    pub fn report(&self, progress: impl Into<Vec<u8>>) {
        let (worker, id, fence, progress) = (self.inner.worker, self.id().clone(), self.fence(), progress.into());
        self.post(move |reactor| Worker::report(reactor, worker, id, fence, progress));
    }

    /// Ends the run: the job is done, with this result.
    pub fn done(&self, result: impl Into<Vec<u8>>) {
        self.end(Outcome::Done(result.into()));
    }

    /// Ends the run: it failed.
    pub fn fail(&self, why: impl Into<Failure>) {
        let Failure { mut why, next } = why.into();
        if why.len() > REASON_LIMIT {
            why.truncate(why.floor_char_boundary(REASON_LIMIT));
        }
        let job = &self.inner.job;
        let wait = match next {
            Next::Reject => None,
            Next::Retry => job.retry.wait_after(job.attempt),
            Next::RetryIn(wait) => job.retry.wait_after(job.attempt).map(|_| millis(wait)),
        };
        self.end(match wait {
            Some(wait) => Outcome::Retry(wait, why),
            None => Outcome::Dead(why),
        });
    }

    /// Gives the job back. Another worker may run it at once, and the attempt does not count.
    pub fn release(&self) {
        self.end(Outcome::Released);
    }

    /// Ends the run with what a function returned.
    pub fn end_with(&self, result: Result<Vec<u8>, Failure>) {
        match result {
            Ok(result) => self.done(result),
            Err(failure) => self.fail(failure),
        }
    }

    fn end(&self, outcome: Outcome) {
        if self.inner.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let (worker, fence) = (self.inner.worker, self.fence());
        self.post(move |reactor| Worker::end(reactor, worker, fence, outcome));
    }

    fn post(&self, f: impl FnOnce(&mut Reactor) + Send + 'static) {
        // If the loop has stopped, nobody renews the lease, and another worker takes the job.
        let _ = self.inner.handle.post(f);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if *self.ended.get_mut() {
            return;
        }
        let why = "its handler dropped it without a result; it may have panicked".to_owned();
        let outcome = match self.job.retry.wait_after(self.job.attempt) {
            Some(wait) => Outcome::Retry(wait, why),
            None => Outcome::Dead(why),
        };
        let (worker, fence) = (self.worker, self.job.fence);
        let _ = self.handle.post(move |reactor: &mut Reactor| Worker::end(reactor, worker, fence, outcome));
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("id", self.id())
            .field("key", &self.key())
            .field("attempt", &self.attempt())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}
