//! One turn of the loop, phase by phase. The contract is docs/turn.md.

use std::io;
use std::time::Duration;

use pelton_os::Time;

use super::Reactor;
use super::sleep::Sleep;
use crate::threads::lane::Lane;
use crate::{Error, Wheel};

/// If dispatching takes longer than this, listeners are polled in between: under overload, a server can then refuse new
/// connections quickly instead of letting them wait. Accepting a batch takes a small part of this time.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// The turn.
impl Reactor {
    pub(crate) fn turn(
        &mut self,
        timeout: Option<Duration>,
        done: &mut dyn FnMut(&mut Reactor) -> bool,
    ) -> Result<(), Error> {
        self.check_not_forked()?;
        if self.lifecycle.has_stopped() {
            self.drop_posts();
            return Err(Error::Stopped);
        }
        // A turn inside another one has its own end.
        let outer_ends = std::mem::take(&mut self.cut.requested) && self.callbacks.depth() > 0;
        let calls_before = self.meter.counters.calls();

        self.gather_deferred();
        self.run_what_is_due(timeout);
        if !self.cut.requested {
            self.wait(timeout, done)?;
            self.dispatch();
        }
        if !self.cut.requested {
            self.run_guest();
        }
        if !self.cut.requested && self.meter.counters.calls() == calls_before {
            self.run_idle_work();
        }
        self.flush_and_reap();
        self.wake_lanes();
        if self.lifecycle.is_stopping() {
            self.drop_posts();
        }
        self.cut.requested = outer_ends;
        Ok(())
    }

    /// Runs the phases before the wait. The clock is read only for timers, ticks and the timeout.
    #[inline]
    fn run_what_is_due(&mut self, timeout: Option<Duration>) {
        let (has_timers, has_ticks) = (!self.timers.is_empty(), self.has_ticks());
        if has_timers || has_ticks || timeout.is_some_and(|timeout| !timeout.is_zero()) {
            self.read_clock();
        }
        if has_timers {
            self.run_timers();
        }
        // Timers may have queued ticks.
        if !self.cut.requested && (has_ticks || has_timers && self.has_ticks()) {
            self.run_ticks();
        }
        self.flush_and_reap();
    }

    fn read_clock(&mut self) {
        self.now = self.engine.now();
        self.meter.set_mark(self.now);
    }

    fn run_timers(&mut self) {
        if self.timers.is_due(self.now) {
            self.timers.expire(self.now);
            while !self.cut.requested && self.fire_next_timer() {}
        }
    }

    #[inline]
    pub(crate) fn flush_and_reap(&mut self) {
        if self.has_chores() || self.sources.has_work() || self.sources.any_ended() || self.has_flow_to_balance() {
            self.flush_and_reap_some();
        }
    }

    fn flush_and_reap_some(&mut self) {
        loop {
            // Handlers called here may send and close again.
            while self.has_chores() || self.sources.has_work() {
                self.do_chores();
                self.flush_sources();
                self.reap_sources();
            }
            self.balance_flow();
            // Resumed connections have held-back input. Deliver it now because the loop may be about to sleep.
            if !self.sources.has_work() {
                break;
            }
        }
        self.sources.recycle();
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut dyn FnMut(&mut Reactor) -> bool) -> Result<(), Error> {
        self.ticks.queue_continuations();
        self.finish_draining();
        // Called first: the condition may queue work.
        let done = done(self);
        let poll_only = done || self.must_not_sleep() || timeout == Some(Duration::ZERO);
        self.wake_lanes();
        self.meter.work_ends();
        if self.cut.leaves_events || self.may_skip_poll() {
            self.meter.wait_ends(self.now);
            self.gather_deferred();
            return Ok(());
        }
        let outcome = if poll_only {
            self.sleep(Some(Time::ZERO)).block()
        } else if self.has_guest() {
            self.sleep_with_guest(timeout)
        } else {
            let until = self.sleep_ends(timeout);
            self.sleep(until).block()
        };
        self.posts.loop_is_awake();
        self.polled_at(self.engine.now());
        self.spin.wait_ends(self.now);
        self.meter.wait_ends(self.now);
        outcome.map_err(|error| Error::system(format!("wait for events with {}", self.engine.name()), error))?;
        self.gather_deferred();
        Ok(())
    }

    fn must_not_sleep(&mut self) -> bool {
        self.has_work() || !self.posts.is_empty() || self.guest_has_work()
    }

    /// Returns when a sleep that begins now ends at the latest.
    fn sleep_ends(&mut self, timeout: Option<Duration>) -> Option<Time> {
        let timeout = timeout.map(|timeout| self.now + timeout);
        let timer = if self.timers.is_empty() { None } else { self.timers.next_deadline() };
        [timeout, timer, self.guest_deadline()].into_iter().flatten().min()
    }

    /// Returns the part of the turn that may sleep, until `until` at the latest.
    pub(crate) fn sleep(&mut self, until: Option<Time>) -> Sleep<'_> {
        Sleep {
            engine: &mut *self.engine,
            posts: &mut self.posts,
            spin: &mut self.spin,
            counters: &mut self.meter.counters,
            cut: &mut self.cut,
            until,
        }
    }

    /// Sleeps if there is a guest. A poll comes first: it often finds something, and then the guest need not release its
    /// lock.
    fn sleep_with_guest(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.sleep(None).poll_engine()? {
            return Ok(());
        }
        self.guest_before_sleep();
        self.ticks.queue_continuations();
        let until = self.sleep_ends(timeout);
        if self.must_not_sleep() || until.is_some_and(|until| until <= self.engine.now()) {
            return Ok(());
        }
        self.guest_sleeps(until).unwrap_or_else(|| self.sleep(until).block())
    }

    fn dispatch(&mut self) {
        let mut accept_again = self.now + ACCEPT_AGAIN;
        while !self.cut.requested
            && let Some(event) = self.spin.take_found().or_else(|| self.engine.next())
        {
            self.handle_event(event);
            // The latest clock reading, taken for another purpose, so the check costs nothing.
            let latest = self.meter.mark();
            if latest >= accept_again {
                accept_again = latest + ACCEPT_AGAIN;
                self.engine.accept_again();
            }
        }
        self.cut.leaves_events = self.cut.requested;
    }

    /// Ends the current turn after the callback that calls this. Timers, ticks, events and idle work that are due run in the
    /// next turn, in the same order; it does not wait. Data is still sent, and ended connections are still told of their end.
    /// The loop is not stopped.
    ///
    /// A runtime calls this when an exception of its code must leave [`turn`](crate::EventLoop::turn) before anything else
    /// happens.
    pub fn end_turn(&mut self) {
        self.cut.requested = true;
        self.ticks.end_turn();
    }

    /// Returns whether there is work to do without waiting.
    pub(super) fn has_work(&self) -> bool {
        self.sources.has_work() || !self.ticks.is_empty() || self.idles.has_work() || self.lifecycle.is_stopping()
    }

    /// Drops all callbacks while the rest of the reactor still exists: their `Drop` may post.
    pub(super) fn drop_callbacks(&mut self) {
        self.drop_posts();
        Lane::ALL.iter().for_each(|lane| self.shared.lane(*lane).close());
        self.drop_tasks();
        drop(std::mem::take(&mut self.sources));
        drop(std::mem::take(&mut self.deferred));
        drop(std::mem::take(&mut self.promises));
        drop(std::mem::take(&mut self.subscribers));
        self.names.drop_reconnects();
        drop(std::mem::take(&mut self.signals));
        drop(std::mem::replace(&mut self.timers, Wheel::new(self.now)));
        self.ticks.close();
        drop(std::mem::take(&mut self.idles));
        self.lifecycle.drop_hooks();
        // Last, since other callbacks may refer to it.
        drop(std::mem::take(&mut self.hosting));
        self.watchdog = None;
    }
}
