//! Replies: the outcome of a task, delivered exactly once.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pelton::{Promise, Reactor};

use super::TaskError;
use super::completion::Request;
use super::lock_order::{Rank, Ranked, RankedGuard};
use super::loops::HostedLoop;
use super::waiters::{Awaited, Entry};
use crate::value::Value;

/// The outcome of a task.
pub type Outcome = Result<Value, TaskError>;

/// A task with a place for its outcome.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) answer: OutcomeCell,
    pub(crate) request: Request,
}

/// A place for one outcome, and its waiters.
#[derive(Debug)]
pub(crate) struct OutcomeCell {
    state: Ranked<State>,
    settled: Condvar,
}

#[derive(Debug)]
struct State {
    outcome: Option<Outcome>,
    /// Whether a thread waits. If not, notifying would be a useless system call.
    waiting: bool,
    waker: Option<Waker>,
    /// The waiter was told that the loop has ended. A later outcome is dropped.
    abandoned: bool,
}

impl Slot {
    pub(crate) fn new(request: Request) -> Slot {
        Slot { answer: OutcomeCell::new(), request }
    }
}

impl Awaited for Slot {
    fn abandon(&self) {
        self.answer.abandon();
    }
}

impl OutcomeCell {
    pub(crate) fn new() -> OutcomeCell {
        let state = State { outcome: None, waiting: false, waker: None, abandoned: false };
        OutcomeCell { state: Ranked::new(Rank::Reply, state), settled: Condvar::new() }
    }

    pub(crate) fn settle(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        if state.abandoned {
            drop(state);
            return drop(outcome);
        }
        debug_assert!(state.outcome.is_none(), "a task has one outcome");
        state.outcome = Some(outcome);
        self.tell(state);
    }

    /// Settles with `LoopGone` if there is no outcome yet.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        if state.outcome.is_none() {
            state.abandoned = true;
            state.outcome = Some(Err(TaskError::LoopGone));
            self.tell(state);
        }
    }

    #[inline]
    fn tell(&self, mut state: RankedGuard<'_, State>) {
        let (waiting, waker) = (state.waiting, state.waker.take());
        drop(state);
        if waiting {
            self.settled.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn take(&self) -> Option<Outcome> {
        self.state.lock().outcome.take()
    }

    fn wait(&self, deadline: Option<Instant>) -> Option<Outcome> {
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

    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
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

/// Blocks this thread until the answer is available.
pub(crate) fn wait<A: Awaited>(
    home: &HostedLoop,
    awaited: &Arc<A>,
    answer: &OutcomeCell,
    deadline: Option<Instant>,
) -> Option<Outcome> {
    if let Some(outcome) = answer.take() {
        return Some(outcome);
    }
    let entry = home.waiters.enter(awaited.clone());
    let outcome = answer.wait(deadline);
    if let Some(entry) = entry {
        home.waiters.leave(entry);
    }
    outcome
}

/// Registers the current task to be woken when the answer is available.
pub(crate) fn poll<A: Awaited>(
    home: &HostedLoop,
    awaited: &Arc<A>,
    answer: &OutcomeCell,
    entry: &mut Option<Entry>,
    context: &mut Context<'_>,
) -> Poll<Outcome> {
    let mut polled = answer.poll(context);
    if polled.is_pending() && entry.is_none() {
        *entry = home.waiters.enter(awaited.clone());
        if entry.is_none() {
            polled = answer.poll(context);
        }
    }
    if polled.is_ready()
        && let Some(entry) = entry.take()
    {
        home.waiters.leave(entry);
    }
    polled
}

/// The future outcome of a task. It can be awaited, or waited for.
///
/// Dropping it does not affect the task, whose outcome is then dropped, unless
/// [`cancel_on_drop`](Reply::cancel_on_drop) was called.
#[derive(Debug)]
#[must_use = "the outcome is dropped with the reply; use `spawn` if it is not needed"]
pub struct Reply {
    slot: Arc<Slot>,
    home: Arc<HostedLoop>,
    entry: Option<Entry>,
    cancels: bool,
}

impl Reply {
    pub(crate) fn new(slot: Arc<Slot>, home: Arc<HostedLoop>) -> Reply {
        Reply { slot, home, entry: None, cancels: false }
    }

    /// Cancels the task, as [`cancel`](Reply::cancel) does, if the reply is dropped before the outcome is
    /// available.
    ///
    /// ```no_run
    /// # use pelton_python::host::{Config, Host};
    /// # async fn handler(host: Host) -> Result<(), Box<dyn std::error::Error>> {
    /// let answer = host.create_task("pages", "make", ("front",), ())?.cancel_on_drop().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_on_drop(mut self) -> Reply {
        self.cancels = true;
        self
    }

    /// Waits for the outcome without a timeout.
    ///
    /// # Panics
    ///
    /// Panics on the thread of the loop that has the task, where waiting would deadlock.
    pub fn wait(self) -> Outcome {
        self.home.refuse_to_wait();
        let outcome = wait(&self.home, &self.slot, &self.slot.answer, None);
        self.told(outcome).unwrap_or(Err(TaskError::LoopGone))
    }

    /// Waits for the outcome, for at most `timeout`. Returns the reply if there is none by then; the task continues.
    ///
    /// # Panics
    ///
    /// Panics on the thread of the loop that has the task.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Outcome, Reply> {
        if timeout.is_zero() {
            return self.try_take();
        }
        self.home.refuse_to_wait();
        let outcome = wait(&self.home, &self.slot, &self.slot.answer, Instant::now().checked_add(timeout));
        self.told(outcome)
    }

    /// Returns the outcome, if it is available.
    pub fn try_take(self) -> Result<Outcome, Reply> {
        let outcome = self.slot.answer.take();
        let outcome = outcome.or_else(|| self.home.waiters.is_gone().then_some(Err(TaskError::LoopGone)));
        self.told(outcome)
    }

    /// Returns the outcome, or the reply if there is none. With an outcome, nothing is left to cancel.
    fn told(mut self, outcome: Option<Outcome>) -> Result<Outcome, Reply> {
        self.cancels &= outcome.is_none();
        outcome.ok_or(self)
    }

    /// Converts to a promise on the loop of `reactor`, for chains in callbacks and handlers. A [`TaskError`]
    /// rejects it. If the promise is dropped, the task continues.
    ///
    /// The promise is [abandoned](pelton::Rejected::Abandoned) if that loop stops first or has already stopped.
    ///
    /// ```no_run
    /// # use pelton_python::host::{Config, Host};
    /// let host = Host::start(Config::new())?;
    /// let mut reactor = pelton::Reactor::new()?;
    /// let root = host.create_task("math", "sqrt", (2.0,), ())?.into_promise(&mut reactor);
    /// root.map(|root| root.as_float()).done(|reactor, root| {
    ///     println!("{root:?}");
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn into_promise(self, reactor: &mut Reactor) -> Promise<Value, TaskError> {
        Promise::of_future(reactor, self)
    }

    /// Cancels the task. A queued task never starts. A task that awaits something gets `asyncio.CancelledError`
    /// there and may clean up. The outcome follows after that: [`Cancelled`](TaskError::Cancelled), unless the task
    /// had finished before or suppresses the cancellation. A running function runs to its end; see
    /// [`interrupt`](Reply::interrupt).
    pub fn cancel(&self) {
        self.home.cancel(&self.slot.request.tag);
    }

    /// Interrupts a task that is running right now: raises `pelton.Interrupted`, a `BaseException`, in its Python
    /// code. Use it for stuck tasks. It waits for the interpreter lock, and a call into C code is only interrupted
    /// after it returns. Returns whether the task was running.
    pub fn interrupt(&self) -> bool {
        self.home.interrupt(&self.slot.request.tag)
    }
}

impl Future for Reply {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Reply { slot, home, entry, cancels } = self.get_mut();
        let polled = poll(home, slot, &slot.answer, entry, context);
        *cancels &= polled.is_pending();
        polled
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.home.waiters.leave(entry);
        }
        if self.cancels {
            self.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_after_abandoning_is_dropped() {
        let answer = OutcomeCell::new();
        answer.abandon();
        answer.settle(Ok(Value::Int(1)));
        assert!(matches!(answer.take(), Some(Err(TaskError::LoopGone))));
        answer.settle(Ok(Value::Int(2)));
        assert!(answer.take().is_none(), "a task has one outcome");

        let settled = OutcomeCell::new();
        settled.settle(Ok(Value::Int(3)));
        settled.abandon();
        assert_eq!(settled.take().unwrap().unwrap(), Value::Int(3), "the first outcome counts");
    }
}
