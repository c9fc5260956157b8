//! Replies from another thread.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::reactor::slots::Key;
use crate::{Handle, Promise, Reactor};

/// The reply will never arrive, because its sender was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply was lost: its sender was dropped")]
pub struct Lost;

/// A value that another thread will provide. It is a future, and can also be waited for.
///
/// ```
/// # use pelton::Reactor;
/// let mut reactor = Reactor::new()?;
/// let handle = reactor.handle();
/// let other = std::thread::spawn(move || {
///     let engine = handle.post_with_reply(|reactor| reactor.engine_name());
///     let name = engine.wait();
///     handle.stop();
///     name
/// });
/// reactor.run()?;
/// assert!(other.join().unwrap().is_ok());
/// # Ok::<(), pelton::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a reply drops its value"]
pub struct Reply<T> {
    shared: Arc<Shared<T>>,
}

/// Gives the value of a [`Reply`], from any thread. Dropping it instead makes the reply [`Lost`].
#[derive(Debug)]
#[must_use = "dropping a replier without a value makes the reply `Lost`"]
pub struct Replier<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    settled: Condvar,
}

#[derive(Debug)]
struct State<T> {
    answer: Answer<T>,
    waker: Option<Waker>,
    /// A thread is waiting. Notifying nobody would still be a system call.
    waited_for: bool,
}

#[derive(Debug)]
enum Answer<T> {
    Awaited,
    Given(T),
    Lost,
}

pub(crate) fn reply<T>() -> (Replier<T>, Reply<T>) {
    let state = Mutex::new(State { answer: Answer::Awaited, waker: None, waited_for: false });
    let shared = Arc::new(Shared { state, settled: Condvar::new() });
    (Replier { shared: shared.clone() }, Reply { shared })
}

impl<T> Shared<T> {
    /// Locks the state. No user code runs under the lock, so a panic leaves it consistent.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, answer: Answer<T>) {
        let mut state = self.lock();
        if !matches!(state.answer, Answer::Awaited) {
            return;
        }
        state.answer = answer;
        let (waker, waited_for) = (state.waker.take(), state.waited_for);
        drop(state);
        if waited_for {
            self.settled.notify_one();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> State<T> {
    /// Takes the value, if it has arrived. It can be taken once.
    fn take(&mut self) -> Option<Result<T, Lost>> {
        match std::mem::replace(&mut self.answer, Answer::Lost) {
            Answer::Given(value) => Some(Ok(value)),
            Answer::Lost => Some(Err(Lost)),
            Answer::Awaited => {
                self.answer = Answer::Awaited;
                None
            }
        }
    }
}

impl<T> Replier<T> {
    /// Gives the value and wakes whoever waits for it.
    pub fn give(self, value: T) {
        self.shared.settle(Answer::Given(value));
    }
}

impl<T> Drop for Replier<T> {
    fn drop(&mut self) {
        self.shared.settle(Answer::Lost);
    }
}

impl<T> Reply<T> {
    /// Makes a reply and the [`Replier`] that gives its value, for work that answers other threads later.
    ///
    /// ```
    /// # use pelton::Reply;
    /// let (replier, reply) = Reply::pair();
    /// std::thread::spawn(move || replier.give(42));
    /// assert_eq!(reply.wait(), Ok(42));
    /// ```
    pub fn pair() -> (Replier<T>, Reply<T>) {
        reply()
    }

    /// Waits for the value without a time limit. On the loop's own thread this would block forever.
    pub fn wait(self) -> Result<T, Lost> {
        let mut state = self.shared.lock();
        loop {
            if let Some(answer) = state.take() {
                return answer;
            }
            state.waited_for = true;
            state = self.shared.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the value for at most `timeout`. Returns the reply if it has not arrived by then.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, Lost>, Reply<T>> {
        let start = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(answer) = state.take() {
                return Ok(answer);
            }
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                drop(state);
                return Err(self);
            };
            state.waited_for = true;
            state = self.shared.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the value, if it has arrived.
    pub fn try_take(self) -> Result<Result<T, Lost>, Reply<T>> {
        self.wait_timeout(Duration::ZERO)
    }
}

impl<T: 'static> Reply<T> {
    /// Converts the reply to a promise on this loop. The replying thread posts a wake-up, so the promise settles in the
    /// loop's next tick phase. On a loop that has stopped, it is [abandoned](crate::Rejected::Abandoned).
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// handle.post_with_reply(|reactor| reactor.engine_name()).into_promise(&mut reactor).done(|reactor, name| {
    ///     assert_eq!(name, Ok(reactor.engine_name()));
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn into_promise(mut self, reactor: &mut Reactor) -> Promise<T, Lost> {
        let (deferred, promise) = reactor.promise();
        if reactor.is_over() {
            return promise;
        }
        let replies = &mut reactor.promises.replies;
        let key = replies.insert(Box::new(|_| {}));
        let arrival = Arrival { handle: Handle { shared: reactor.shared.clone() }, key, place: Location::caller() };
        let waker = Waker::from(Arc::new(arrival));
        // Neither can fail, because nothing else settles it.
        if let Poll::Ready(answer) = Pin::new(&mut self).poll(&mut Context::from_waker(&waker)) {
            replies.remove(key);
            let _ = deferred.settle(answer);
        } else if let Some(take) = replies.get_mut(key) {
            *take = Box::new(move |_| {
                if let Ok(answer) = self.try_take() {
                    let _ = deferred.settle(answer);
                }
            });
        }
        promise
    }
}

/// Notifies a loop that a value has arrived for one of its promises.
pub(crate) struct Arrival {
    pub(crate) handle: Handle,
    pub(crate) key: Key,
    pub(crate) place: &'static Location<'static>,
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

impl Arrival {
    pub(crate) fn notify(&self) {
        let key = self.key;
        let take = move |reactor: &mut Reactor| {
            if let Some(take) = reactor.promises.replies.remove(key) {
                take(reactor);
            }
        };
        // A loop that has ended needs no value.
        let _ = self.handle.post_from(self.place, take, None);
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Lost>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match state.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn reply_is_given_once_and_wakes_the_waiter() {
        let (replier, answer) = reply();
        let other = std::thread::spawn(move || answer.wait());
        replier.give(7);
        assert_eq!(other.join().unwrap(), Ok(7));
    }

    #[test]
    fn reply_of_a_dropped_replier_is_lost() {
        let (replier, answer) = reply::<u32>();
        drop(replier);
        assert_eq!(answer.wait(), Err(Lost));
    }

    #[test]
    fn late_reply_is_returned() {
        let (replier, answer) = reply();
        let answer = answer.wait_timeout(Duration::from_millis(1)).unwrap_err();
        let answer = answer.try_take().unwrap_err();
        replier.give("late");
        assert_eq!(answer.try_take().unwrap(), Ok("late"));
    }

    #[test]
    fn future_wakes_its_task() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let (replier, mut answer) = reply();
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Pending);
        replier.give(1);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(Ok(1)));
    }
}
