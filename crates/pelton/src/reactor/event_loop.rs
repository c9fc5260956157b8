//! The owner of a reactor: it turns the loop, and shuts it down.

use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use pelton_os::{Engine, Park, Time};

use super::callback::Callbacks;
use super::lifecycle::{Exit, Life, Lifecycle};
use super::source::Sources;
use super::spin::Spin;
use super::state::States;
use super::{Reactor, Settings};
use crate::composers::channel::Subscribers;
use crate::names::resolver::Names;
use crate::observe::stats::Meter;
use crate::promises::{Continuations, Promises};
use crate::sources::connection::{Connections, Flow};
use crate::sources::datagram::DatagramSockets;
use crate::sources::listener::Listeners;
use crate::sources::signals::Signals;
use crate::threads::defer::Deferred;
use crate::threads::handle::Shared;
use crate::ticks::Ticks;
use crate::ticks::idle::Idles;
use crate::{Error, Wheel};
/// Owns a [`Reactor`] and turns it. Derefs to it, so everything can be registered here too.
pub struct EventLoop {
    reactor: Reactor,
}

impl Deref for EventLoop {
    type Target = Reactor;
    fn deref(&self) -> &Reactor {
        &self.reactor
    }
}

impl DerefMut for EventLoop {
    fn deref_mut(&mut self) -> &mut Reactor {
        &mut self.reactor
    }
}

impl EventLoop {
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
            posts,
            spin: Spin::new(settings.spin),
            shared,
            sources: Sources::default(),
            connections: Connections::new(settings.limits),
            datagram_sockets: DatagramSockets::default(),
            listeners: Listeners::default(),
            flow: Flow::new(settings.flow),
            names: Names::new(settings.names),
            local: Rc::default(),
            deferred: Deferred::default(),
            promises: Promises::default(),
            subscribers: Subscribers::default(),
            signals: Signals::default(),
            lifecycle: Lifecycle::new(settings.nested),
            callbacks: Callbacks::new(settings.panic_policy, settings.fault_hook),
            meter: Meter::new(settings.measure, now),
            watchdog: None,
            states: States::default(),
        };
        EventLoop { reactor }
    }

    /// Turns the loop until it is told to [stop](Reactor::stop), then [shuts down](EventLoop::shutdown). A loop with
    /// nothing to do sleeps; it does not end.
    pub fn run(&mut self) -> Result<Exit, Error> {
        if self.is_over() {
            return Err(Error::Stopped);
        }
        let turning = self.begin_turning()?;
        while !self.stopped() {
            self.reactor.turn(None, &mut |_| false, |park| park.block())?;
        }
        drop(turning);
        self.shutdown()
    }

    /// Turns the loop until `condition` holds. It is asked before each turn and again before each wait, so that the loop
    /// never sleeps on a condition that is met. [`Error::Stopped`] if the loop is told to stop first.
    pub fn run_until(&mut self, mut condition: impl FnMut(&mut Reactor) -> bool) -> Result<(), Error> {
        let _turning = self.begin_turning()?;
        loop {
            if condition(&mut self.reactor) {
                return Ok(());
            }
            self.turn_until(&mut condition)?;
        }
    }

    /// One turn of the loop, which does not wait if `condition` holds by then. The caller [has begun](Reactor::begin_turning).
    pub(crate) fn turn_until(&mut self, mut condition: impl FnMut(&mut Reactor) -> bool) -> Result<(), Error> {
        self.reactor.turn(None, &mut condition, |park| park.block())
    }

    /// One turn of the loop, waiting for at most `timeout` (`None`: until something happens).
    ///
    /// The order is a contract:
    ///
    /// 1. **timers** that are due, in the order of their deadlines, ties in the order they were set. One that is set
    ///    now runs next turn at the earliest.
    /// 2. **ticks**, posts and tasks that were woken, first in, first out, as they stood when the phase began; at most
    ///    [so many](Builder::ticks_per_turn). What they queue waits for the next turn, but for continuations of
    ///    [promises](crate::Promise) and tasks that others woke, if nothing else was queued before.
    /// 3. **flush and reap**: what callbacks left for other connections goes out, and datagrams do; connections that are over
    ///    are told so; the places of what ended are made free.
    /// 4. **wait**: not at all if ticks or idle work are pending or the loop was told to stop; else until the next
    ///    deadline, the timeout, an event, a post or a signal.
    /// 5. **clock**: read once. [`now`](Reactor::now) is this until the next turn.
    /// 6. **dispatch**: what came in on connections and datagram sockets, watched descriptors that are ready, signals.
    /// 7. **idle** work, only if nothing else has run in this turn.
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.turn_with(timeout, |park| park.block())
    }

    /// [`turn`](EventLoop::turn) for embedders that have something of their own to do around the wait: `block` is handed
    /// the part that may sleep, which is `Send`, and has to call [`Park::block`] once.
    pub fn turn_with(
        &mut self,
        timeout: Option<Duration>,
        block: impl FnOnce(&mut (dyn Park + Send)) -> io::Result<()>,
    ) -> Result<(), Error> {
        let _turning = if timeout == Some(Duration::ZERO) { Turning::begin() } else { self.begin_turning()? };
        self.reactor.turn(timeout, &mut |_| false, block)
    }

    /// Whether the loop was told to stop, or has finished draining: turning it is over, [`shutdown`](EventLoop::shutdown)
    /// is next.
    pub fn stopped(&self) -> bool {
        self.lifecycle.has_stopped()
    }

    /// Runs the [shutdown hooks](Reactor::on_shutdown), the last one added first, closes all connections and datagram
    /// sockets, ends [pools](Reactor::shut_down_at_end), then drops everything registered.
    /// [`run`](EventLoop::run) does this by itself; those who [turn](EventLoop::turn) the loop by hand call it at the end.
    pub fn shutdown(&mut self) -> Result<Exit, Error> {
        let exit = match self.lifecycle.life() {
            Life::Stopping(exit) => exit,
            Life::Stopped => return Err(Error::Stopped),
            Life::Running | Life::Draining => Exit::Stopped,
        };
        self.lifecycle.set_life(Life::Stopping(exit));
        // Before the hooks: one may wait for a thread that waits for an answer.
        self.drop_posts();
        self.run_shutdown_hooks();
        self.shut_down_sources();
        self.shut_down_pools();
        self.lifecycle.set_life(Life::Stopped);
        self.end_sources();
        self.drop_callbacks();
        Ok(exit)
    }

    /// A descriptor that becomes readable when a [`turn`](EventLoop::turn) would find events, to wait for in another
    /// loop. `None` if the engine has none: `poll` and `select` keep their books outside the kernel.
    ///
    /// Wait for it until [`next_deadline`](EventLoop::next_deadline), then turn with a zero timeout.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.engine.as_fd()
    }

    /// When the loop has to be turned next, even if its [descriptor](EventLoop::as_fd) says nothing: the past if there is
    /// work to do now, `None` if only an event can bring some.
    ///
    /// Call it right before you wait: it also has other threads wake you when they post.
    pub fn next_deadline(&mut self) -> Option<Time> {
        let reactor = &mut self.reactor;
        reactor.ticks.queue_continuations();
        // A turn is what tells that it has stopped.
        if reactor.is_over() || reactor.has_work() || !reactor.posts.wake_on_post() {
            return Some(Time::ZERO);
        }
        reactor.timers.next_deadline()
    }

    /// Makes the reactor this process's own, in a forked child that wants to go on using it: until then, everything that
    /// would touch what it shares with the parent is refused with [`Error::Forked`].
    ///
    /// Timers, ticks and watches are carried over; so both processes have them. [Handles](Handle) that were copied along
    /// lead to this one. Holds of threads that stayed behind are not released by anybody; callbacks of what was
    /// [deferred](Reactor::defer) are told that it stayed there too, and replies do not come.
    pub fn after_fork(&mut self) -> Result<(), Error> {
        let reactor = &mut self.reactor;
        if reactor.check_not_forked().is_ok() {
            return Ok(());
        }
        reactor.engine.after_fork().map_err(|error| Error::system("renew the engine after a fork", error))?;
        // A thread that is not here any more may have left the queue with a gap that is never filled.
        let (shared, posts) = reactor.shared.succeed();
        let waiting = reactor.posts.replace_by(posts);
        reactor.ticks.posts_begin_anew(waiting);
        reactor.shared = shared;
        if reactor.lifecycle.has_stopped() {
            reactor.posts.close();
        }
        reactor.lifecycle.forked();
        reactor.renew_signals()?;
        reactor.renew_deferred();
        if let Some(watchdog) = &mut reactor.watchdog {
            watchdog.after_fork()?;
        }
        Ok(())
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
    /// Whether a loop is being turned on this thread, so that whatever runs is called by it.
    static TURNING: Cell<bool> = const { Cell::new(false) };
}

/// A loop that is being turned, and whether one was further up the stack.
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
    /// Begins to turn the loop. Refuses to make another loop of this thread wait for this one.
    pub(crate) fn begin_turning(&self) -> Result<Turning, Error> {
        let inside = TURNING.get() || Reactor::is_lent();
        if inside && !self.lifecycle.may_nest() { Err(Error::Nested) } else { Ok(Turning::begin()) }
    }
}
