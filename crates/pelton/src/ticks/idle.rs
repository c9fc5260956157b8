//! Idle work, which runs when there is nothing else to do.

use std::collections::VecDeque;
use std::panic::Location;
use std::time::Duration;

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::slots::{Key, Slots};
use crate::timers::Timer;
use crate::{Reactor, TimerKey};

/// Identifies idle work, to [cancel](Reactor::end) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IdleId(Key);
type Repeating = Box<dyn FnMut(&mut Reactor)>;

enum Work {
    Once(Box<dyn FnOnce(&mut Reactor)>),
    Repeating(Repeating, Duration),
    /// Repeating work that is running now.
    Running,
}

struct Idle {
    place: &'static Location<'static>,
    work: Work,
    /// The timer for the next run, while it waits for its interval.
    rests: Option<TimerKey>,
}

/// Idle work, in the order in which it runs.
#[derive(Default)]
pub(crate) struct Idles {
    work: Slots<Idle>,
    /// Cancelled work leaves its key here until its turn.
    order: VecDeque<Key>,
    /// How many wait for their interval to pass.
    resting: usize,
}

impl Idles {
    /// Returns whether some work can run now, so that the loop must poll instead of sleeping.
    pub(crate) fn has_work(&self) -> bool {
        self.work.len() > self.resting
    }

    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }
}

impl Reactor {
    /// Runs `f` once, in the first turn in which no timer, tick or event has run. Until then the loop polls instead of
    /// sleeping.
    #[track_caller]
    pub fn when_idle(&mut self, f: impl FnOnce(&mut Reactor) + 'static) -> IdleId {
        self.add_idle(Location::caller(), Work::Once(Box::new(f)))
    }

    /// Runs `f` in every turn in which no timer, tick or event has run, until it is [cancelled](Reactor::end).
    ///
    /// **The loop never sleeps while there is such work.** It polls, runs the work, and polls again, more than 100,000
    /// times per second, and keeps a core busy. Use it to compute something in small steps between events, and cancel
    /// it when it is done. For housekeeping, such as flushing caches or writing statistics, use
    /// [`idle_every`](Reactor::idle_every).
    #[track_caller]
    pub fn whenever_idle(&mut self, f: impl FnMut(&mut Reactor) + 'static) -> IdleId {
        self.add_idle(Location::caller(), Work::Repeating(Box::new(f), Duration::ZERO))
    }

    /// Runs `f` when the loop is idle, at most once per `interval`, until it is [cancelled](Reactor::end). It
    /// first runs in the first turn in which no timer, tick or event has run, and then in the first such turn after
    /// each `interval`.
    ///
    /// The loop sleeps in between. A loop that is always busy never runs it. [`every`](Reactor::every) does not wait
    /// for an idle turn.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let mut runs = 0;
    /// let flush = reactor.idle_every(Duration::from_millis(1), move |reactor| {
    ///     runs += 1;
    ///     if runs == 3 {
    ///         reactor.stop();
    ///     }
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn idle_every(&mut self, interval: Duration, f: impl FnMut(&mut Reactor) + 'static) -> IdleId {
        self.add_idle(Location::caller(), Work::Repeating(Box::new(f), interval))
    }

    fn add_idle(&mut self, place: &'static Location<'static>, work: Work) -> IdleId {
        let key = self.idles.work.insert(Idle { place, work, rests: None });
        if self.is_over() {
            self.idles.work.remove(key);
        } else {
            self.idles.order.push_back(key);
        }
        IdleId(key)
    }

    pub(crate) fn cancel_idle(&mut self, id: IdleId) -> bool {
        self.callbacks.ended(id);
        let Some(idle) = self.idles.work.remove(id.0) else { return false };
        if let Some(timer) = idle.rests {
            self.idles.resting -= 1;
            self.timers.cancel(timer);
        }
        true
    }

    /// Lets idle work run again after its interval.
    pub(crate) fn idle_has_rested(&mut self, key: Key) {
        if let Some(idle) = self.idles.work.get_mut(key)
            && idle.rests.take().is_some()
        {
            self.idles.resting -= 1;
            self.idles.order.push_back(key);
        }
    }

    /// Runs all idle work that is ready, each piece once.
    pub(crate) fn run_idle_work(&mut self) {
        for _ in 0..self.idles.order.len() {
            let Some(key) = self.idles.order.pop_front() else { break };
            let Some(idle) = self.idles.work.get_mut(key) else { continue };
            let site = Site { kind: CallbackKind::Idle, place: idle.place, source: Some(IdleId(key).into()) };
            match std::mem::replace(&mut idle.work, Work::Running) {
                Work::Once(f) => {
                    self.idles.work.remove(key);
                    self.call_last(site, f);
                }
                Work::Repeating(f, interval) => self.call_source(
                    site,
                    f,
                    |f, reactor| f(reactor),
                    |reactor, f, outcome| match outcome {
                        Outcome::Returned => reactor.put_idle_back(key, f, interval),
                        Outcome::Panicked => {
                            reactor.end(IdleId(key));
                        }
                    },
                ),
                Work::Running => {}
            }
        }
    }

    /// Schedules repeating idle work again, at once or after its interval, unless it has cancelled itself.
    fn put_idle_back(&mut self, key: Key, f: Repeating, interval: Duration) {
        let Some(idle) = self.idles.work.get_mut(key) else { return };
        idle.work = Work::Repeating(f, interval);
        if interval.is_zero() {
            self.idles.order.push_back(key);
        } else {
            idle.rests = Some(self.timers.insert(self.now + interval, Timer::of_idle(idle.place, key)));
            self.idles.resting += 1;
        }
    }
}
