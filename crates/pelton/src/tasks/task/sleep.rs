//! Sleeping.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Chore, Local, current};
use crate::{Reactor, Time, TimerId};

/// Waits for `duration`, never less, counted from now. If it is created outside of tasks, it counts from the first
/// poll.
///
/// It uses one timer of the reactor. Dropping it cancels the timer.
pub fn sleep(duration: Duration) -> Sleep {
    let until = match Reactor::with_current(|reactor| reactor.clock() + duration) {
        Some(deadline) => Until::Deadline(deadline),
        None => Until::After(duration),
    };
    Sleep { until, timer: None }
}

/// Waits until `deadline`, according to the reactor's [clock](Reactor::clock).
pub fn sleep_until(deadline: Time) -> Sleep {
    Sleep { until: Until::Deadline(deadline), timer: None }
}

/// The future of [`sleep`] and [`sleep_until`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Sleep {
    until: Until,
    timer: Option<Timer>,
}

#[derive(Clone, Copy, Debug)]
enum Until {
    Deadline(Time),
    /// Counted from the first poll.
    After(Duration),
}

struct Timer {
    id: TimerId,
    waker: Waker,
    local: Rc<Local>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.local.leave(Chore::CancelTimer(self.id));
    }
}

impl Sleep {
    /// Returns the deadline, or `None` if it is not known before the first poll.
    pub fn deadline(&self) -> Option<Time> {
        match self.until {
            Until::Deadline(deadline) => Some(deadline),
            Until::After(_) => None,
        }
    }

    fn poll_with(&mut self, reactor: &mut Reactor, waker: &Waker) -> Poll<()> {
        let deadline = match self.until {
            Until::Deadline(deadline) => deadline,
            Until::After(duration) => reactor.clock() + duration,
        };
        self.until = Until::Deadline(deadline);
        if deadline <= reactor.now() {
            self.timer = None;
            return Poll::Ready(());
        }
        let armed = self
            .timer
            .as_ref()
            .is_some_and(|timer| timer.waker.will_wake(waker) && Rc::ptr_eq(&timer.local, &reactor.local));
        if !armed {
            let (waker, wakes) = (waker.clone(), waker.clone());
            let id = reactor.at(deadline, move |_| wakes.wake());
            self.timer = Some(Timer { id, waker, local: Rc::clone(&reactor.local) });
        }
        Poll::Pending
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        current(|reactor| self.poll_with(reactor, context.waker()))
    }
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("until", &self.until).finish_non_exhaustive()
    }
}
