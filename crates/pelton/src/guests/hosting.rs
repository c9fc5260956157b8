//! Hosts a guest: asks it before waiting, and runs its batches.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use super::{Batch, Guest};
use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::lifecycle::Life;
use crate::reactor::panics::catch;
use crate::{Error, Reactor, Time};

/// While a guest has work and the reactor has no sources, the loop polls this often. A poll costs about a thousandth of
/// it, and something that only a poll can find waits no longer.
const POLL_EVERY: Duration = Duration::from_micros(100);

/// Batches are often as short as a clock reading. While each takes less than this, several run without one in between.
const SHORT_BATCH: Duration = Duration::from_micros(1);
const SHORT_BATCHES_PER_READING: u32 = 8;

/// The guest of a reactor.
pub(crate) struct Hosting {
    room: Room,
    /// Where the guest was registered.
    place: &'static Location<'static>,
    /// When the loop last polled.
    polled: Time,
    /// How many callbacks were running, the guest's batch included, when that began. 0: it is not running.
    depth: usize,
    /// Whether a batch has run since the clock was last read.
    reading_is_old: bool,
}

/// When to read the clock.
struct Pace {
    /// How many batches run from one reading to the next.
    batches: u32,
    /// How many of these are left.
    left: u32,
}

enum Room {
    Empty,
    Here(Box<dyn Guest>),
    /// The guest is running or sleeping.
    Out,
}

impl Default for Hosting {
    #[track_caller]
    fn default() -> Hosting {
        Hosting { room: Room::Empty, place: Location::caller(), polled: Time::ZERO, depth: 0, reading_is_old: false }
    }
}

impl Hosting {
    fn take(&mut self) -> Option<Box<dyn Guest>> {
        match std::mem::replace(&mut self.room, Room::Out) {
            Room::Here(guest) => Some(guest),
            other => {
                self.room = other;
                None
            }
        }
    }

    /// Puts the guest back, unless it has left or was replaced meanwhile. Returns it in that case.
    fn put_back(&mut self, guest: Box<dyn Guest>) -> Option<Box<dyn Guest>> {
        if matches!(self.room, Room::Out) {
            self.room = Room::Here(guest);
            return None;
        }
        Some(guest)
    }

    /// Forgets a guest that panicked while it was out.
    fn leave_empty(&mut self) {
        if matches!(self.room, Room::Out) {
            self.room = Room::Empty;
        }
    }

    fn site(&self) -> Site {
        Site { kind: CallbackKind::Guest, place: self.place, source: None }
    }
}

impl Reactor {
    /// Makes `guest` take part in the turn. Fails if the reactor has a guest already.
    ///
    /// A guest may call this from inside its batch: the new guest takes its place, also in a [turn
    /// inside](Reactor::turn_inside) that batch.
    #[track_caller]
    pub fn host(&mut self, guest: impl Guest + 'static) -> Result<(), Error> {
        self.check_takes_on()?;
        if matches!(self.hosting.room, Room::Here(_)) {
            return Err(Error::HasGuest { place: self.hosting.place });
        }
        self.hosting.room = Room::Here(Box::new(guest));
        self.hosting.place = Location::caller();
        Ok(())
    }

    /// Ends the guest's part in the turn, and returns the guest. A guest that is running is dropped after its batch; then
    /// this returns `None`, as it does if there is no guest.
    pub fn evict(&mut self) -> Option<Box<dyn Guest>> {
        match std::mem::replace(&mut self.hosting.room, Room::Empty) {
            Room::Here(guest) => Some(guest),
            Room::Empty | Room::Out => None,
        }
    }

    /// Returns whether the reactor has a guest.
    pub fn has_guest(&self) -> bool {
        !matches!(self.hosting.room, Room::Empty)
    }

    /// Returns the number of sources that events could come from: watches, connections, listeners, datagram sockets, and
    /// one if signals are caught.
    pub fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// Runs a turn inside the batch of a guest. The guest's batch does not run in it, unless the guest has
    /// [hosted](Reactor::host) another one to stand in for it.
    ///
    /// This is for runtimes whose programs run their loop inside its own callbacks. Everywhere else it fails with
    /// [`Error::Nested`].
    pub fn turn_inside(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.hosting.depth == 0 || self.hosting.depth != self.callbacks.depth() {
            return Err(Error::Nested);
        }
        self.turn(timeout, &mut |_| false)
    }

    /// Names the callback that a guest is about to run, for the [watchdog](Reactor::on_slow_callback). It reports the time
    /// from here to [`end_callback`](Reactor::end_callback), the next call of this, or the end of the batch, under this name.
    /// `name` is called only if there is a watchdog.
    pub fn name_callback(&mut self, name: impl FnOnce() -> Arc<str>) {
        if self.watchdog.is_some() {
            self.begin_part(Some(name()));
        }
    }

    /// Ends the callback that was [named](Reactor::name_callback) last. Returns how long it took if that was too long for the
    /// watchdog, which has reported it then.
    pub fn end_callback(&mut self) -> Option<Duration> {
        if self.watchdog.is_some() { self.begin_part(None) } else { None }
    }

    /// Ends a part of a batch and begins the next. Returns how long it took if that was too long.
    fn begin_part(&mut self, name: Option<Arc<str>>) -> Option<Duration> {
        let watchdog = self.watchdog.as_ref()?;
        let now = self.engine.now();
        let slow = watchdog.end(now);
        if slow.is_some() {
            self.meter.counters.slow += 1;
        }
        watchdog.begin(self.hosting.site(), name, now);
        slow
    }

    /// Adds to the number of callbacks that the guest has run in its batches: [`Stats::guest_callbacks`].
    ///
    /// [`Stats::guest_callbacks`]: crate::Stats::guest_callbacks
    #[inline]
    pub fn count_guest_callbacks(&mut self, callbacks: u64) {
        self.meter.counters.guest_callbacks += callbacks;
    }

    /// Asks the guest something. A guest that panics is dropped.
    #[inline]
    fn ask_guest<T>(&mut self, ask: impl FnOnce(&mut dyn Guest) -> T) -> Option<T> {
        let Room::Here(guest) = &mut self.hosting.room else { return None };
        match catch(|| ask(&mut **guest)) {
            Ok(answer) => Some(answer),
            Err(panic) => {
                let site = self.hosting.site();
                let guest = self.evict();
                self.fault(site, None, panic);
                drop(guest);
                None
            }
        }
    }

    /// Lets the guest do something with the reactor, outside of its batch. A guest that panics is dropped.
    fn with_guest<T>(&mut self, act: impl FnOnce(&mut dyn Guest, &mut Reactor) -> T) -> Option<T> {
        let site = self.hosting.site();
        let mut guest = self.hosting.take()?;
        match catch(|| act(&mut *guest, self)) {
            Ok(answer) => {
                drop(self.hosting.put_back(guest));
                Some(answer)
            }
            Err(panic) => {
                self.hosting.leave_empty();
                self.fault(site, None, panic);
                drop(guest);
                None
            }
        }
    }

    /// Returns whether the guest has work, so that the loop must poll instead of sleeping.
    pub(crate) fn guest_has_work(&mut self) -> bool {
        self.ask_guest(|guest| guest.has_work()) == Some(true)
    }

    pub(crate) fn guest_deadline(&mut self) -> Option<Time> {
        self.ask_guest(|guest| guest.next_deadline()).flatten()
    }

    pub(crate) fn guest_before_sleep(&mut self) {
        self.with_guest(|guest, reactor| guest.before_sleep(reactor));
    }

    /// Lets the guest sleep. Returns `None` if there is no guest.
    pub(crate) fn guest_sleeps(&mut self, until: Option<Time>) -> Option<std::io::Result<()>> {
        self.with_guest(|guest, reactor| guest.park(&mut reactor.sleep(until)))
    }

    /// The guest phase: runs a batch of the guest if it has work or is due. Further batches follow while the reactor has
    /// nothing to do.
    pub(crate) fn run_guest(&mut self) {
        if !matches!(self.hosting.room, Room::Here(_)) || !self.guest_is_due() {
            return;
        }
        let site = self.hosting.site();
        let Some(mut guest) = self.hosting.take() else { return };
        let outer = std::mem::replace(&mut self.hosting.depth, self.callbacks.depth() + 1);
        let outcome = self.call(site, |reactor| {
            let mut pace = Pace { batches: 1, left: 1 };
            loop {
                let batch = guest.run(reactor);
                reactor.hosting.reading_is_old = true;
                if batch == Batch::EndsTurn || !reactor.may_run_another_batch(&mut *guest, &mut pace) {
                    break;
                }
                reactor.begin_next(site);
            }
        });
        self.hosting.depth = outer;
        match outcome {
            Ok(()) => drop(self.hosting.put_back(guest)),
            Err(panic) => {
                self.hosting.leave_empty();
                drop(guest);
                self.fault(site, None, panic);
            }
        }
    }

    fn guest_is_due(&mut self) -> bool {
        self.guest_has_work() || self.guest_deadline().is_some_and(|deadline| deadline <= self.now)
    }

    /// Returns whether the guest has more to do and the reactor has nothing.
    #[inline]
    fn may_run_another_batch(&mut self, guest: &mut dyn Guest, pace: &mut Pace) -> bool {
        let idle = self.sources.len() <= guest.quiet_sources()
            && !self.has_ticks()
            && !self.sources.has_work()
            && !self.has_chores()
            && !self.has_deferred()
            && self.lifecycle.life() == Life::Running
            // It may have left, or been replaced.
            && matches!(self.hosting.room, Room::Out);
        if !idle {
            return false;
        }
        pace.left -= 1;
        if pace.left > 0 && guest.has_work() {
            return true;
        }
        let now = self.engine.now();
        let short = now - self.now < SHORT_BATCH * (pace.batches - pace.left);
        pace.batches = if short { SHORT_BATCHES_PER_READING } else { 1 };
        pace.left = pace.batches;
        self.set_now(now);
        !self.polled_long_ago()
            && !self.timers.is_due(now)
            && (guest.has_work() || guest.next_deadline().is_some_and(|deadline| deadline <= now))
    }

    /// Returns whether a turn that does not sleep may do without a poll, because the guest has work and nothing else is
    /// expected.
    pub(crate) fn may_skip_poll(&mut self) -> bool {
        let Room::Here(guest) = &self.hosting.room else { return false };
        if self.sources.len() > guest.quiet_sources() {
            return false;
        }
        self.set_now(self.engine.now());
        !self.polled_long_ago() && self.guest_is_due()
    }

    fn polled_long_ago(&self) -> bool {
        self.now >= self.hosting.polled + POLL_EVERY
    }

    /// Takes over the clock reading after a poll.
    pub(crate) fn polled_at(&mut self, now: Time) {
        self.set_now(now);
        self.hosting.polled = now;
    }

    fn set_now(&mut self, now: Time) {
        self.now = now;
        self.hosting.reading_is_old = false;
    }

    /// Returns the time for a batch that begins: the latest clock reading, or a new one if a batch has run since. A guest with
    /// timers compares their deadlines with this.
    pub fn batch_clock(&mut self) -> Time {
        if self.hosting.reading_is_old {
            self.set_now(self.engine.now());
        }
        self.now
    }
}
