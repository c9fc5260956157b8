//! Idle work: what runs when there is nothing else to do.

use std::collections::VecDeque;
use std::panic::Location;
use std::time::Duration;

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::slots::{Key, Slots};
use crate::timers::Timer;
use crate::{Reactor, TimerKey};

/// Names idle work, to [cancel](Reactor::cancel_idle) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IdleId(Key);
type Repeating = Box<dyn FnMut(&mut Reactor)>;

enum Work {
    Once(Box<dyn FnOnce(&mut Reactor)>),
    Repeating(Repeating, Duration),
    /// Repeating work, while it runs.
    Running,
}

struct Idle {
    place: &'static Location<'static>,
    work: Work,
    /// When it has run: the timer that says when it may again.
    rests: Option<TimerKey>,
}

/// Idle work, in the order in which it is to run.
#[derive(Default)]
pub(crate) struct Idles {
    work: Slots<Idle>,
    /// Cancelled work leaves its key here until its turn.
    order: VecDeque<Key>,
    /// How many rest until their interval is over.
    resting: usize,
}

impl Idles {
    /// Whether any of it may run now, so that the loop has to poll instead of sleeping.
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

    /// Runs `f` in every turn in which no timer, tick or event has run, until it is [cancelled](Reactor::cancel_idle).
    ///
    /// **As long as there is such work the loop never sleeps**: it polls, runs the work, and polls again, 100,000 times a
    /// second and more, and so keeps a core busy. It is for computing something in small steps between events. Cancel it when it
    /// is done. For housekeeping, such as flushing caches or writing statistics, say [`idle_every`](Reactor::idle_every).
    #[track_caller]
    pub fn whenever_idle(&mut self, f: impl FnMut(&mut Reactor) + 'static) -> IdleId {
        self.add_idle(Location::caller(), Work::Repeating(Box::new(f), Duration::ZERO))
    }

    /// Runs `f` when the loop is idle, at most once per `interval`, until it is [cancelled](Reactor::cancel_idle): in the first
    /// turn in which no timer, tick or event has run, and then in the first such turn after `interval` has passed.
    ///
    /// The loop sleeps in between. A loop that is busy all the time never gets to it; [`every`](Reactor::every) does not wait
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

    /// Cancels idle work, also from inside it. `false` if it has run or was cancelled already.
    pub fn cancel_idle(&mut self, id: IdleId) -> bool {
        self.callbacks.ended(id);
        let Some(idle) = self.idles.work.remove(id.0) else { return false };
        if let Some(timer) = idle.rests {
            self.idles.resting -= 1;
            self.timers.cancel(timer);
        }
        true
    }

    /// The interval of idle work is over: it may run again.
    pub(crate) fn idle_has_rested(&mut self, key: Key) {
        if let Some(idle) = self.idles.work.get_mut(key)
            && idle.rests.take().is_some()
        {
            self.idles.resting -= 1;
            self.idles.order.push_back(key);
        }
    }

    /// Runs the idle work there is now, each piece once.
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
                            reactor.cancel_idle(IdleId(key));
                        }
                    },
                ),
                Work::Running => {}
            }
        }
    }

    /// Lets repeating idle work run again, at once or after its interval, unless it has cancelled itself.
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
