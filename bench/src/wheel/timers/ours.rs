//! Pelton's timers: the wheel by itself, and through a whole reactor.

use std::time::Duration;

use anyhow::{Context, Result};
use pelton::{EventLoop, Reactor, Time, TimerId, TimerKey, Wheel};

use super::{Callback, Fire, Timers, Work};

/// The wheel as an embedder would use it, with virtual time.
pub struct WheelTimers(Wheel<Callback>);

impl WheelTimers {
    pub fn new() -> Self {
        Self(Wheel::new(Time::from_nanos(0)))
    }
}

impl Timers for WheelTimers {
    type Key = TimerKey;

    fn insert(&mut self, deadline: u64, work: Work) -> TimerKey {
        self.0.insert(Time::from_nanos(deadline), Box::new(move || work.run()))
    }

    fn cancel(&mut self, key: TimerKey) -> Option<bool> {
        Some(self.0.cancel(key).is_some())
    }
}

impl Fire for WheelTimers {
    fn fire(&mut self, readings: &[u64]) {
        for &now in readings {
            self.0.expire(Time::from_nanos(now));
            while let Some(due) = self.0.next_due() {
                if let Some(callback) = self.0.cancel(due.key) {
                    callback();
                }
            }
        }
    }
}

/// The same timers on a reactor. It boxes the callback itself, so it gets the bare closure.
pub struct ReactorTimers {
    reactor: EventLoop,
    start: Time,
}

impl ReactorTimers {
    pub fn new() -> Result<Self> {
        let reactor = Reactor::new().context("make a reactor")?;
        let start = reactor.now();
        Ok(Self { reactor, start })
    }
}

impl Timers for ReactorTimers {
    type Key = TimerId;

    fn insert(&mut self, deadline: u64, work: Work) -> TimerId {
        self.reactor.at(self.start + Duration::from_nanos(deadline), move |_| work.run())
    }

    fn cancel(&mut self, timer: TimerId) -> Option<bool> {
        Some(self.reactor.cancel(timer))
    }
}
