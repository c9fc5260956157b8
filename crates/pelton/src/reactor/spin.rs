//! Polls for a while before blocking.
//!
//! Falling asleep and waking up takes several times as long as polling. If the next event is only microseconds away, a
//! loop that spins sees it sooner than one that sleeps, at the cost of processor time. The best prediction is that the
//! next wait will be like the last one. So one bit is stored: whether the last wait, spinning included, was shorter
//! than the time to spin. A loop that becomes idle spins in vain once, and then sleeps until events come close together
//! again.

use std::io;
use std::time::Duration;

use pelton_os::{Event, Time};

use crate::Reactor;

#[derive(Default)]
pub(crate) struct Spin {
    /// The maximum time to spin. Zero disables spinning.
    most: Duration,
    /// Whether the last wait ended within that time.
    worthwhile: bool,
    /// When the current wait began.
    begun: Option<Time>,
    /// The first event found by spinning. An engine reports whether it has events only by returning one.
    found: Option<Event>,
}

impl Spin {
    pub(crate) fn new(most: Duration) -> Spin {
        Spin { most, ..Spin::default() }
    }

    pub(crate) fn wait_ends(&mut self, now: Time) {
        if let Some(begun) = self.begun.take() {
            self.worthwhile = now - begun < self.most;
        }
    }

    pub(crate) fn take_found(&mut self) -> Option<Event> {
        self.found.take()
    }
}

impl Reactor {
    /// Begins a wait until `until`. If spinning is likely to pay off, polls until there is an event, `until` is
    /// reached, a post arrives or the maximum time to spin has passed. Returns whether the wait is over.
    ///
    /// Threads that post meanwhile find the loop awake, so they do not wake it. The loop must check for posts
    /// afterwards.
    pub(crate) fn spin(&mut self, until: Option<Time>) -> io::Result<bool> {
        // A deadline of zero means that there is nothing to wait for.
        if self.spin.most.is_zero() || until == Some(Time::ZERO) {
            return Ok(false);
        }
        let begun = self.engine.now();
        self.spin.begun = Some(begun);
        if !self.spin.worthwhile {
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
