//! The owner of a reactor: it turns the loop and shuts it down.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use pelton_os::{Engine, Time};

use super::callback::Callbacks;
use super::lifecycle::{Exit, Life, Lifecycle};
use super::sleep::{Cut, Spin};
use super::source::Sources;
use super::state::States;
use super::{Reactor, Settings};
use crate::composers::channel::Subscribers;
use crate::guests::Hosting;
use crate::names::resolver::Names;
use crate::observe::stats::Meter;
use crate::promises::{Continuations, Promises};
use crate::sources::connection::{Connections, Flow};
use crate::sources::datagram::DatagramSockets;
use crate::sources::listener::Listeners;
use crate::sources::signals::Signals;
use crate::threads::defer::Deferrals;
use crate::threads::handle::Shared;
use crate::ticks::Ticks;
use crate::ticks::idle::Idles;
use crate::{Error, Wheel};

/// Owns a [`Reactor`] and turns it. It derefs to the reactor, so callbacks can be registered here too.
pub struct EventLoop {
    reactor: Reactor,
}

impl Deref for EventLoop {
    type Target = Reactor;
    fn deref(&self) -> &Reactor {
        &self.reactor
    }
}

/// Reads the clock: outside a turn, the latest reading may be old, and deadlines computed from it may have passed.
impl DerefMut for EventLoop {
    fn deref_mut(&mut self) -> &mut Reactor {
        self.reactor.now = self.reactor.engine.now();
        &mut self.reactor
    }
}

impl EventLoop {
    /// Reads the clock, since no turn is running. Within a turn, [`Reactor::now`] is the latest reading.
    pub fn now(&self) -> Time {
        self.reactor.clock()
    }

    pub(crate) fn on(engine: Box<dyn Engine>, settings: Settings) -> EventLoop {
        let now = engine.now();
        let (shared, posts) = Shared::new(settings.post_bound, engine.waker(), settings.lanes);
        let continuations = Continuations::new(shared.clone());
        let reactor = Reactor {
            engine,
            now,
            timers: Wheel::new(now),
            ticks: Ticks::new(settings.ticks_per_turn, continuations),
            idles: Idles::default(),
            hosting: Hosting::default(),
            posts,
            spin: Spin::new(settings.spin),
            cut: Cut::default(),
            shared,
            sources: Sources::default(),
            connections: Connections::new(settings.limits),
            datagram_sockets: DatagramSockets::default(),
            listeners: Listeners::default(),
            flow: Flow::new(settings.flow),
            names: Names::new(settings.names),
            local: Rc::default(),
            deferred: Deferrals::default(),
            promises: Promises::default(),
            subscribers: Subscribers::default(),
            signals: Signals::default(),
            path_watches: None,
            lifecycle: Lifecycle::new(settings.nested),
            callbacks: Callbacks::new(settings.panic_policy, settings.fault_hook),
            meter: Meter::new(settings.measure, now),
            watchdog: None,
            states: States::default(),
        };
        EventLoop { reactor }
    }

    /// Turns the loop until it is [stopped](Reactor::stop), then [shuts down](EventLoop::shutdown). A loop with nothing
    /// to do sleeps. It does not return.
    pub fn run(&mut self) -> Result<Exit, Error> {
        if self.is_over() {
            return Err(Error::Stopped);
        }
        let turning = self.begin_turning()?;
        while !self.stopped() {
            self.reactor.turn(None, &mut |_| false)?;
        }
        drop(turning);
        self.shutdown()
    }

    /// Turns the loop until `condition` returns `true`. The condition is checked before each turn and again before each
    /// wait, so the loop never sleeps while it holds. It is not called again once it has returned `true`; the turn in
    /// progress is completed without waiting. Fails with [`Error::Stopped`] if the loop is stopped first.
    pub fn run_until(&mut self, mut condition: impl FnMut(&mut Reactor) -> bool) -> Result<(), Error> {
        let _turning = self.begin_turning()?;
        let mut holds = condition(&mut self.reactor);
        while !holds {
            self.turn_until(|reactor| {
                holds = condition(reactor);
                holds
            })?;
            holds = holds || condition(&mut self.reactor);
        }
        Ok(())
    }

    /// Runs one turn of the loop, without waiting if `condition` holds before the wait. The caller must have called
    /// [`begin_turning`](Reactor::begin_turning).
    pub(crate) fn turn_until(&mut self, mut condition: impl FnMut(&mut Reactor) -> bool) -> Result<(), Error> {
        self.reactor.turn(None, &mut condition)
    }

    /// Runs one turn of the loop and waits for at most `timeout`, or without a limit if it is `None`.
    ///
    /// The order of the phases is a contract:
    ///
    /// 1. **timers**: runs due timers in deadline order. Timers with equal deadlines run in the order in which they
    ///    were set. A timer set during this phase runs in the next turn at the earliest.
    /// 2. **ticks**: runs ticks, posts and woken tasks, first in, first out, as the queue stood when the phase began;
    ///    at most [`ticks_per_turn`](crate::Builder::ticks_per_turn). Ticks queued during this phase wait for the next
    ///    turn. Continuations of [promises](crate::Promise) and tasks woken by other tasks still run in this phase if
    ///    nothing else was queued before them.
    /// 3. **flush and reap**: writes data that callbacks queued on other connections, and queued datagrams; calls
    ///    `closed` on connections that are over; frees the slots of ended sources.
    /// 4. **wait**: does not wait if ticks, idle work or work of the guest are pending or the loop was stopped.
    ///    Otherwise waits until the next deadline, the timeout, an event, a post or a signal.
    /// 5. **clock**: reads the clock once. [`now`](Reactor::now) returns this reading until the next turn.
    /// 6. **dispatch**: calls back for input on connections and datagram sockets, for ready descriptors and for
    ///    signals.
    /// 7. **guest**: runs a batch of the [guest](crate::Guest), if there is one and it has work.
    /// 8. **idle**: runs idle work, only if no other callback has run in this turn.
    ///
    /// Work to do around the wait, such as releasing a lock, is a guest's: [`Guest::park`](crate::Guest::park).
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let _turning = if timeout == Some(Duration::ZERO) { self.reactor.turns_here() } else { self.begin_turning()? };
        self.reactor.turn(timeout, &mut |_| false)
    }

    /// Turns the loop until `goes_on` returns `false` after a turn. This is [`turn`](EventLoop::turn) without a timeout in a
    /// loop, and cheaper. The owner of a [guest](crate::Guest) runs the loop with it until its runtime stops.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # use std::{cell::Cell, rc::Rc, time::Duration};
    /// let mut reactor = Reactor::new()?;
    /// let beats = Rc::new(Cell::new(0));
    /// let beat = beats.clone();
    /// reactor.every(Duration::from_millis(1), move |_, _| beat.set(beat.get() + 1));
    /// reactor.turn_while(|_| beats.get() < 3)?;
    /// assert!(beats.get() >= 3);
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn turn_while(&mut self, mut goes_on: impl FnMut(&mut Reactor) -> bool) -> Result<(), Error> {
        let _turning = self.begin_turning()?;
        loop {
            self.reactor.turn(None, &mut |_| false)?;
            if !goes_on(&mut self.reactor) {
                return Ok(());
            }
        }
    }

    /// Returns whether the loop was stopped or has finished draining. The next step is
    /// [`shutdown`](EventLoop::shutdown).
    pub fn stopped(&self) -> bool {
        self.lifecycle.has_stopped()
    }

    /// Runs the [shutdown hooks](Reactor::on_shutdown), last added first. Then it closes all connections and datagram
    /// sockets, shuts down [pools](Reactor::shut_down_at_end) and drops everything registered. [`run`](EventLoop::run)
    /// calls this itself. Callers that [turn](EventLoop::turn) the loop themselves call it at the end.
    pub fn shutdown(&mut self) -> Result<Exit, Error> {
        let exit = match self.lifecycle.life() {
            Life::Stopping(exit) => exit,
            Life::Stopped => return Err(Error::Stopped),
            Life::Running | Life::Draining => Exit::Stopped,
        };
        self.lifecycle.set_life(Life::Stopping(exit));
        // Before the hooks: a hook may join a thread that waits for a reply.
        self.drop_posts();
        self.run_shutdown_hooks();
        self.shut_down_sources();
        self.shut_down_pools();
        self.lifecycle.set_life(Life::Stopped);
        self.end_sources();
        self.drop_callbacks();
        Ok(exit)
    }

    /// Returns a descriptor that becomes readable when a [`turn`](EventLoop::turn) would find events, for use in
    /// another event loop. Returns `None` if the engine has none: `poll` and `select` keep their state outside the
    /// kernel.
    ///
    /// Wait for the descriptor until [`next_deadline`](EventLoop::next_deadline), then turn with a zero timeout.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.engine.as_fd()
    }

    /// Returns when the loop must be turned next even if its [descriptor](EventLoop::as_fd) is not readable. This is a
    /// time in the past if there is work to do now, and `None` if only an event can bring work.
    ///
    /// Call it right before waiting: it also arranges that threads that post wake the loop.
    pub fn next_deadline(&mut self) -> Option<Time> {
        let reactor = &mut self.reactor;
        reactor.ticks.queue_continuations();
        // A stopped loop needs a turn to report that it has stopped.
        let has_work = reactor.has_work() || reactor.guest_has_work() || reactor.engine.has_events();
        if reactor.is_over() || has_work || !reactor.posts.wake_on_post() {
            return Some(Time::ZERO);
        }
        [reactor.timers.next_deadline(), reactor.guest_deadline()].into_iter().flatten().min()
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.reactor.lifecycle.set_life(Life::Stopped);
        self.reactor.drop_callbacks();
        self.reactor.shared.loop_is_gone();
    }
}

thread_local! {
    /// Whether a loop is being turned on this thread.
    static TURNING: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as turning a loop, and remembers whether it already was.
pub(crate) struct Turning(bool);

impl Turning {
    fn begin() -> Turning {
        Turning(TURNING.replace(true))
    }
}

impl Drop for Turning {
    fn drop(&mut self) {
        TURNING.set(self.0);
    }
}

impl Reactor {
    /// Makes the reactor usable in a forked child. Until then, every operation that would touch state shared with the
    /// parent fails with [`Error::Forked`].
    ///
    /// Timers, ticks, watches and the guest are kept, so both processes have them. [Handles](crate::Handle) copied by the fork
    /// refer to the child's reactor. Holds of threads that exist only in the parent are never released. Callbacks of
    /// [deferred](Reactor::defer) work get [`DeferFailure::Forked`](crate::DeferFailure::Forked) because that work
    /// continues only in the parent. Replies from the parent's threads do not arrive.
    pub fn after_fork(&mut self) -> Result<(), Error> {
        if self.check_not_forked().is_ok() {
            return Ok(());
        }
        self.engine.after_fork().map_err(|error| Error::system("set up the engine after a fork", error))?;
        // A thread that exists only in the parent may have left a gap in the queue that is never filled.
        let (shared, posts) = self.shared.succeed();
        let waiting = self.posts.replace_by(posts);
        self.ticks.posts_begin_anew(waiting);
        self.shared = shared;
        if self.lifecycle.has_stopped() {
            self.posts.close();
        }
        self.lifecycle.forked();
        self.renew_signals()?;
        self.renew_path_watches()?;
        self.renew_deferred();
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.after_fork()?;
        }
        Ok(())
    }

    /// Begins to turn the loop. Fails with [`Error::Nested`] if that would block another loop on this thread.
    pub(crate) fn begin_turning(&self) -> Result<Turning, Error> {
        if !self.lifecycle.may_nest() && (TURNING.get() || Reactor::is_lent()) {
            return Err(Error::Nested);
        }
        Ok(self.turns_here())
    }

    /// Begins to turn the loop on this thread, even inside another.
    fn turns_here(&self) -> Turning {
        self.shared.runs_here();
        Turning::begin()
    }
}
