//! Periodic ticks.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use super::{Sleep, current, sleep, sleep_until};
use crate::Time;
use crate::timers::{times, whole_periods};

/// Ticks periodically: first one `period` from now, then after each whole period, like
/// [`Reactor::every`](crate::Reactor::every). It neither drifts nor catches up: after a delay of several periods it
/// ticks once and reports how many ticks it [missed](Tick::missed).
///
/// ```
/// use pelton::{Reactor, task};
/// use std::time::Duration;
///
/// let mut reactor = Reactor::new()?;
/// reactor.block_on(async {
///     let mut interval = task::interval(Duration::from_millis(1));
///     let first = interval.tick().await;
///     let second = interval.tick().await;
///     assert_eq!(second.deadline - first.deadline, Duration::from_millis(1) * (1 + first.missed as u32));
/// })?;
/// # Ok::<(), pelton::Error>(())
/// ```
pub fn interval(period: Duration) -> Interval {
    let period = period.max(Duration::from_nanos(1));
    Interval { period, sleep: sleep(period) }
}

/// One tick of an [`Interval`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tick {
    /// When the tick was due. Deadlines are whole periods apart.
    pub deadline: Time,
    /// How many later ticks are also due by now and are skipped.
    pub missed: u64,
}

/// A periodic timer made by [`interval`]. It is also an endless stream of its ticks.
#[derive(Debug)]
pub struct Interval {
    period: Duration,
    sleep: Sleep,
}

impl Interval {
    /// Waits for the next tick. Dropping this future loses no tick.
    pub async fn tick(&mut self) -> Tick {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for the next tick.
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Tick> {
        if Future::poll(Pin::new(&mut self.sleep), context).is_pending() {
            return Poll::Pending;
        }
        let now = current(|reactor| reactor.now());
        let deadline = self.sleep.deadline().unwrap_or(now);
        let missed = whole_periods(now - deadline, self.period);
        self.sleep = sleep_until(deadline + times(self.period, missed.saturating_add(1)));
        Poll::Ready(Tick { deadline, missed })
    }

    /// Returns the time between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }
}

impl Stream for Interval {
    type Item = Tick;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Tick>> {
        self.poll_tick(context).map(Some)
    }
}
