//! Where a task's outcome goes: exactly once, whatever happens to the task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::TaskError;
use super::completion::Request;
use super::lock_order::{Rank, Ranked};
use super::loops::LoopShared;
use crate::value::Value;

/// What comes of a task.
pub type Outcome = Result<Value, TaskError>;

/// One for each task whose outcome somebody wants.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) answer: Answer,
    pub(crate) request: Request,
}

/// A place for one outcome, and who waits for it.
#[derive(Debug)]
pub(crate) struct Answer {
    state: Ranked<State>,
    settled: Condvar,
}

#[derive(Debug)]
struct State {
    outcome: Option<Outcome>,
    /// Whether a thread waits, so that nobody is woken in vain, which would be a system call.
    waiting: bool,
    waker: Option<Waker>,
}

impl Slot {
    pub(crate) fn new(request: Request) -> Slot {
        Slot { answer: Answer::new(), request }
    }
}

impl Answer {
    pub(crate) fn new() -> Answer {
        let state = State { outcome: None, waiting: false, waker: None };
        Answer { state: Ranked::new(Rank::Reply, state), settled: Condvar::new() }
    }

    pub(crate) fn settle(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        debug_assert!(state.outcome.is_none(), "there is one outcome");
        state.outcome = Some(outcome);
        let (waiting, waker) = (state.waiting, state.waker.take());
        drop(state);
        if waiting {
            self.settled.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn wait_for(&self, timeout: Duration) -> Option<Outcome> {
        self.wait(Instant::now().checked_add(timeout))
    }

    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<Outcome> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return Some(outcome);
            }
            let left = match deadline {
                None => None,
                Some(deadline) => Some(deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?),
            };
            state.waiting = true;
            state = state.wait(|guard| match left {
                None => self.settled.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.settled.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
            });
            state.waiting = false;
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// What will come of a task: a future, which can also be waited for.
///
/// Dropping it leaves the task alone; its outcome is dropped then.
#[derive(Debug)]
#[must_use = "an outcome that nobody takes is dropped; `spawn` is for tasks nobody waits for"]
pub struct Reply {
    pub(crate) slot: Arc<Slot>,
    pub(crate) home: Arc<LoopShared>,
}

impl Reply {
    /// Waits for the outcome, however long it takes.
    ///
    /// # Panics
    ///
    /// On the thread of the loop that has the task, where it would wait for ever.
    pub fn wait(self) -> Outcome {
        self.home.refuse_to_wait();
        self.slot.answer.wait(None).unwrap_or(Err(TaskError::LoopGone))
    }

    /// Waits for the outcome, for at most `timeout`. If it is not there by then, this is given back, and the task goes on.
    ///
    /// # Panics
    ///
    /// As [`wait`](Reply::wait) does.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Outcome, Reply> {
        if timeout.is_zero() {
            return self.try_take();
        }
        self.home.refuse_to_wait();
        self.slot.answer.wait_for(timeout).ok_or(self)
    }

    /// The outcome, if it is there.
    pub fn try_take(self) -> Result<Outcome, Reply> {
        self.slot.answer.wait(Some(Instant::now())).ok_or(self)
    }

    /// Cancels the task: one that is queued never starts; one that awaits something gets `asyncio.CancelledError` there, and
    /// may clean up. The outcome comes when it has: [`Cancelled`](TaskError::Cancelled), unless the task was done before, or
    /// will not be cancelled. A function that is running runs to its end; see [`interrupt`](Reply::interrupt).
    pub fn cancel(&self) {
        self.home.cancel(&self.slot.request.tag);
    }

    /// Interrupts the task where it runs right now: `pelton.Interrupted`, a `BaseException`, is raised in its Python code. That is
    /// for what is stuck. It takes the interpreter lock, so it may take a while, and has no effect before a call of
    /// something that is not Python returns. Says whether the task was running.
    pub fn interrupt(&self) -> bool {
        self.home.interrupt(&self.slot.request.tag)
    }
}

impl Future for Reply {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.slot.answer.poll(context)
    }
}
