//! Timers: callbacks that run at a deadline.

pub(crate) mod lazy;
pub(crate) mod wheel;

use std::panic::Location;
use std::time::Duration;

use pelton_os::Token;
use pelton_sync::Closure;

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::slots::Key;
use crate::{Reactor, Time, TimerKey};

/// Identifies a timer, to [cancel](Reactor::cancel) or [reset](Reactor::reset) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerId(TimerKey);

/// One firing of a periodic timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    /// The timer, to cancel or reset it from inside.
    pub timer: TimerId,
    /// When it was due. Deadlines are whole periods apart, so delays do not add up.
    pub deadline: Time,
    /// How many later firings are also due by now and are skipped, so that a long delay does not cause a burst.
    pub missed: u64,
}

pub(crate) struct Timer {
    place: &'static Location<'static>,
    action: Action,
}

impl Timer {
    /// Creates a timer that lets idle work run again.
    pub(crate) fn of_idle(place: &'static Location<'static>, key: Key) -> Timer {
        Timer { place, action: Action::Idle(key) }
    }
}

type Periodic = Box<dyn FnMut(&mut Reactor, Beat)>;

enum Action {
    Once(Closure<Reactor>),
    Every(Duration, Periodic),
    /// A connection may have reached a time limit.
    CheckLimits(Token),
    /// Idle work may run again.
    Idle(Key),
    /// A periodic timer that is running now.
    Running,
}

impl Reactor {
    /// Runs `f` once, `delay` from now. The delay counts from a fresh clock reading, so the timer never fires early,
    /// even if the callback that sets it has been running for a long time. With a zero delay it runs in the next
    /// turn.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
    /// let late = reactor.after(Duration::from_secs(3600), |_| panic!("was cancelled"));
    /// assert!(reactor.cancel(late));
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn after(&mut self, delay: Duration, f: impl FnOnce(&mut Reactor) + 'static) -> TimerId {
        let deadline = self.engine.now() + delay;
        self.at(deadline, f)
    }

    /// Does the same as [`after`](Reactor::after), for a callback registered at `place`.
    pub(crate) fn after_from(
        &mut self,
        place: &'static Location<'static>,
        delay: Duration,
        f: impl FnOnce(&mut Reactor) + 'static,
    ) -> TimerId {
        let deadline = self.engine.now() + delay;
        self.set_timer(deadline, Timer { place, action: Action::Once(Closure::new(f)) })
    }

    /// Runs `f` once, at `deadline`, or in the next turn if that has passed.
    #[track_caller]
    pub fn at(&mut self, deadline: Time, f: impl FnOnce(&mut Reactor) + 'static) -> TimerId {
        let timer = Timer { place: Location::caller(), action: Action::Once(Closure::new(f)) };
        self.set_timer(deadline, timer)
    }

    /// Runs `f` periodically: first one `period` from now, then after each whole period.
    ///
    /// It does not drift: each deadline is computed from the previous one, not from when the callback ran. It does not
    /// catch up either: after a delay of several periods it fires once, reports how many firings it
    /// [missed](Beat::missed), and continues in step. A period of zero fires once per turn.
    #[track_caller]
    pub fn every(&mut self, period: Duration, f: impl FnMut(&mut Reactor, Beat) + 'static) -> TimerId {
        let period = period.max(Duration::from_nanos(1));
        let deadline = self.engine.now() + period;
        let timer = Timer { place: Location::caller(), action: Action::Every(period, Box::new(f)) };
        self.set_timer(deadline, timer)
    }

    fn set_timer(&mut self, deadline: Time, timer: Timer) -> TimerId {
        let key = self.timers.insert(deadline, timer);
        if self.is_over() {
            self.timers.cancel(key);
        }
        TimerId(key)
    }

    /// Cancels a timer, also from inside its own callback. Drops the captures of its callback at once. Returns `false`
    /// if it has already fired or was already cancelled.
    pub fn cancel(&mut self, timer: TimerId) -> bool {
        self.callbacks.ended(timer);
        self.timers.cancel(timer.0).is_some()
    }

    /// Resets a timer to fire `delay` from now. A periodic timer continues in whole periods from there. Returns `false`
    /// if it was cancelled, or has fired and is not periodic.
    pub fn reset(&mut self, timer: TimerId, delay: Duration) -> bool {
        let deadline = self.engine.now() + delay;
        self.reset_at(timer, deadline)
    }

    /// Resets a timer to fire at `deadline`.
    pub fn reset_at(&mut self, timer: TimerId, deadline: Time) -> bool {
        self.timers.reset(timer.0, deadline)
    }

    /// Returns when a timer will fire, or `None` if it has ended or is a periodic timer that is running now.
    pub fn deadline(&self, timer: TimerId) -> Option<Time> {
        self.timers.deadline(timer.0)
    }

    /// Returns the number of timers, including those of connections with [time limits](crate::Io::set_limit).
    pub fn timer_count(&self) -> usize {
        self.timers.len()
    }

    /// Checks the time limits of a connection at `deadline`.
    pub(crate) fn check_limits_at(&mut self, deadline: Time, connection: Token) -> TimerId {
        let timer = Timer { place: Location::caller(), action: Action::CheckLimits(connection) };
        TimerId(self.timers.insert(deadline, timer))
    }

    /// Runs one due timer. Returns `false` if none is left of those that were due when the phase began.
    pub(crate) fn fire_next_timer(&mut self) -> bool {
        let Some(due) = self.timers.next_due() else { return false };
        let id = TimerId(due.key);
        let Some(timer) = self.timers.get_mut(due.key) else { return true };
        let site = Site { kind: CallbackKind::Timer, place: timer.place, source: Some(id.into()) };
        let action = std::mem::replace(&mut timer.action, Action::Running);
        match action {
            Action::Once(closure) => {
                self.meter.lag(self.now - due.deadline);
                self.timers.cancel(due.key);
                self.call_last(site, |reactor| closure.call(reactor));
            }
            Action::Every(period, f) => {
                self.meter.lag(self.now - due.deadline);
                let missed = whole_periods(self.now - due.deadline, period);
                let beat = Beat { timer: id, deadline: due.deadline, missed };
                self.call_source(
                    site,
                    f,
                    |f, reactor| f(reactor, beat),
                    |reactor, f, outcome| {
                        if outcome == Outcome::Panicked {
                            reactor.cancel(id);
                        } else if let Some(timer) = reactor.timers.get_mut(due.key) {
                            timer.action = Action::Every(period, f);
                            if reactor.timers.deadline(due.key).is_none() {
                                let next = due.deadline + times(period, missed.saturating_add(1));
                                reactor.timers.reset(due.key, next);
                            }
                        }
                    },
                );
            }
            Action::CheckLimits(connection) => {
                self.timers.cancel(due.key);
                self.check_limits(connection);
            }
            Action::Idle(key) => {
                self.timers.cancel(due.key);
                self.idle_has_rested(key);
            }
            Action::Running => debug_assert!(false, "a running timer is not armed"),
        }
        true
    }
}

/// Returns how many whole periods `time` contains.
pub(crate) fn whole_periods(time: Duration, period: Duration) -> u64 {
    u64::try_from(time.as_nanos() / period.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn times(period: Duration, count: u64) -> Duration {
    let nanos = period.as_nanos().saturating_mul(count.into());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
