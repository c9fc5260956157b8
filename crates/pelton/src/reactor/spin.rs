//! Polling for a while before blocking.
//!
//! Falling asleep and being woken up again takes several times as long as finding out that something has happened. So if the
//! next event is only microseconds away, a loop that keeps looking has it sooner than one that sleeps, and pays with
//! processor time. Whether it is that near, nobody knows beforehand; the best guess is that it will be as it was last time. So
//! there is one bit to remember: whether the last wait, spinning included, was shorter than the time to spin. A loop that
//! has become idle thus spins in vain once, and then sleeps until events come close together again.

use std::io;
use std::time::Duration;

use pelton_os::{Event, Time};

use crate::Reactor;

#[derive(Default)]
pub(crate) struct Spin {
    /// For how long; zero if never.
    most: Duration,
    /// Whether the last wait would have ended within that time.
    pays: bool,
    /// When the wait under way has begun.
    begun: Option<Time>,
    /// The first event that spinning has found: an engine says what it has by handing it out.
    found: Option<Event>,
}

impl Spin {
    pub(crate) fn new(most: Duration) -> Spin {
        Spin { most, ..Spin::default() }
    }

    pub(crate) fn wait_ends(&mut self, now: Time) {
        if let Some(begun) = self.begun.take() {
            self.pays = now - begun < self.most;
        }
    }

    pub(crate) fn take_found(&mut self) -> Option<Event> {
        self.found.take()
    }
}

impl Reactor {
    /// Begins a wait until `until`. If it is likely to pay, polls again and again until there is an event, the time has come,
    /// somebody has posted, or it has been long enough. Says whether the wait is over.
    ///
    /// Those who post meanwhile find the loop awake, so they need not wake it; but it has yet to look for their posts.
    pub(crate) fn spin(&mut self, until: Option<Time>) -> io::Result<bool> {
        // A time that has come leaves nothing to wait for.
        if self.spin.most.is_zero() || until == Some(Time::ZERO) {
            return Ok(false);
        }
        let begun = self.engine.now();
        self.spin.begun = Some(begun);
        if !self.spin.pays {
            return Ok(false);
        }
        loop {
            self.engine.park(Some(Time::ZERO)).block()?;
            self.spin.found = self.engine.next();
            let now = self.engine.now();
            if self.spin.found.is_some() || until.is_some_and(|until| until <= now) {
                return Ok(true);
            }
            if now - begun >= self.spin.most || !self.posts.is_empty() {
                return Ok(false);
            }
        }
    }
}
