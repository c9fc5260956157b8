//! The part of a turn that may sleep.
//!
//! Falling asleep and waking up takes several times as long as polling. If the next event is only microseconds away, a
//! loop that spins, that is polls repeatedly, sees it sooner than one that sleeps, at the cost of processor time. The
//! best prediction is that the next wait will be like the last one. So one bit is stored: whether the last wait,
//! spinning included, was shorter than the time to spin. A loop that becomes idle spins in vain once, and then sleeps
//! until events come close together again.

use std::io;
use std::time::Duration;

use pelton_os::{Engine, Event, Park, Time};

use crate::observe::stats::Counters;
use crate::threads::handle::Posts;

/// What is known about spinning, and the event that polling has found.
#[derive(Default)]
pub(crate) struct Spin {
    /// The maximum time to spin. Zero disables spinning.
    most: Duration,
    /// Whether the last wait ended within that time.
    worthwhile: bool,
    /// When the current wait began.
    begun: Option<Time>,
    /// The first event found by polling. An engine reports whether it has events only by returning one.
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

/// Whether a turn ends early.
#[derive(Default)]
pub(crate) struct Cut {
    /// The current turn [ends](crate::Reactor::end_turn) after the callback that is running.
    pub(crate) requested: bool,
    /// The turn before ended while it dispatched. The engine may have events of that turn, which come before others.
    pub(crate) leaves_events: bool,
}

/// The part of a turn that may sleep. A [guest](crate::Guest) gets it and does something around it, such as releasing a
/// lock. It runs no callbacks.
pub struct Sleep<'a> {
    pub(super) engine: &'a mut dyn Engine,
    pub(super) posts: &'a mut Posts,
    pub(super) spin: &'a mut Spin,
    pub(super) counters: &'a mut Counters,
    pub(super) cut: &'a mut Cut,
    pub(super) until: Option<Time>,
}

impl Sleep<'_> {
    /// Returns when the sleep ends at the latest. `None`: only an event, a post or a signal ends it.
    pub fn until(&self) -> Option<Time> {
        self.until
    }

    /// Reads the clock.
    pub fn clock(&self) -> Time {
        self.engine.now()
    }

    /// Sleeps until there is an event, a post, a signal or a call to [`Handle::wake`](crate::Handle::wake), or until the
    /// time to [end](Sleep::until). With [`Builder::spin`](crate::Builder::spin) it may spin first. It may return early.
    pub fn block(&mut self) -> io::Result<()> {
        if self.spin()? { Ok(()) } else { self.park().block() }
    }

    /// Ends the turn after the sleep, like [`Reactor::end_turn`](crate::Reactor::end_turn). What the sleep has found is dispatched
    /// in the next turn.
    pub fn end_turn(&mut self) {
        self.cut.requested = true;
    }

    /// Looks for events without sleeping. If it returns `true`, there is something for the reactor to do, and the guest
    /// should not sleep. A guest that spins calls this now and then.
    pub fn poll(&mut self) -> io::Result<bool> {
        if self.has_work() { Ok(true) } else { self.poll_engine() }
    }

    /// Does the same as [`poll`](Sleep::poll) if all events that were found have been taken out of the engine.
    pub(super) fn poll_engine(&mut self) -> io::Result<bool> {
        self.counters.polls += 1;
        self.engine.park(Some(Time::ZERO)).block()?;
        Ok(self.has_work())
    }

    /// Returns whether there is a post, or the last [`block`](Sleep::block) or [`poll`](Sleep::poll) has found an event.
    /// If there is neither, a guest that was woken in vain can sleep again.
    pub fn has_work(&mut self) -> bool {
        !self.posts.is_empty() || self.has_event()
    }

    fn has_event(&mut self) -> bool {
        if self.spin.found.is_none() {
            self.spin.found = self.engine.next();
        }
        self.spin.found.is_some()
    }

    /// Returns the part of the engine that sleeps, without spinning. Unlike the whole, it is [`Send`]: some bindings, such
    /// as PyO3, let go of their lock only around code that can be sent. Call [`Park::block`] on it once.
    pub fn park(&mut self) -> &mut (dyn Park + Send) {
        // For a guest that sleeps again.
        self.posts.loop_is_awake();
        // An event that is waiting to be dispatched must not be slept over.
        let poll_only = self.spin.found.is_some() || self.until == Some(Time::ZERO) || !self.posts.wake_on_post();
        if !poll_only {
            self.counters.sleeps += 1;
        }
        self.counters.polls += 1;
        self.engine.park(if poll_only { Some(Time::ZERO) } else { self.until })
    }

    /// Polls until there is an event, the time to end is reached, a post arrives or the maximum time to spin has passed,
    /// if that is likely to pay off. Returns whether the sleep is over.
    ///
    /// Threads that post meanwhile find the loop awake, so they do not wake it. The loop must check for posts
    /// afterwards.
    fn spin(&mut self) -> io::Result<bool> {
        // A deadline of zero means that there is nothing to wait for.
        if self.spin.most.is_zero() || self.until == Some(Time::ZERO) {
            return Ok(false);
        }
        let begun = self.engine.now();
        self.spin.begun.get_or_insert(begun);
        if !self.spin.worthwhile {
            return Ok(false);
        }
        loop {
            self.poll_engine()?;
            let found = self.has_event();
            let now = self.engine.now();
            if found || self.until.is_some_and(|until| until <= now) {
                return Ok(true);
            }
            if now - begun >= self.spin.most || !self.posts.is_empty() {
                return Ok(false);
            }
        }
    }
}
