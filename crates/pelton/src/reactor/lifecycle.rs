//! Stopping: at once, or when what is in progress has finished.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use pelton_os::fork;
use pelton_sync::Closure;

use crate::reactor::callback::{CallbackKind, Site, message};
use crate::threads::handle::{Handle, Post};
use crate::ticks::Tick;
use crate::{Error, Fault, Pool, Reactor};

/// How far along its life a reactor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// Not told to stop.
    Running,
    /// Told to finish what is in progress.
    Draining,
    /// Told to stop; the turn under way is the last.
    Stopping(Exit),
    /// Shut down; it does not run again.
    Stopped,
}

/// Why [`run`](crate::EventLoop::run) returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Exit {
    /// [`stop`](Reactor::stop) was called.
    Stopped,
    /// Everything in progress was finished after [`drain`](Reactor::drain) was called.
    Drained,
    /// So many things were still in progress at the end of the time that [`drain`](Reactor::drain) gave them.
    DrainTimedOut {
        /// How many [`Hold`]s were left, and how much [deferred](Reactor::defer) work.
        holds: usize,
        /// How many connections and datagram sockets were left.
        connections: usize,
    },
}

/// How far along its life a reactor is, and what is called when that ends.
pub(crate) struct Lifecycle {
    life: Life,
    drain: VecDeque<Tick>,
    shutdown: Vec<Tick>,
    pools: Vec<(Pool, Duration)>,
    /// While draining: connections were asked to end, and so is one that comes later.
    asks_to_end: bool,
    /// It may be run inside a callback of another loop.
    nested: bool,
    /// The process it belongs to, as a number of forks.
    forks: u64,
}

impl Lifecycle {
    pub(super) fn new(nested: bool) -> Lifecycle {
        Lifecycle {
            life: Life::Running,
            drain: VecDeque::new(),
            shutdown: Vec::new(),
            pools: Vec::new(),
            asks_to_end: false,
            nested,
            forks: fork::count(),
        }
    }

    pub(super) fn life(&self) -> Life {
        self.life
    }

    pub(super) fn set_life(&mut self, life: Life) {
        self.life = life;
    }

    /// Whether it was told to stop, or has.
    pub(crate) fn has_stopped(&self) -> bool {
        matches!(self.life, Life::Stopping(_) | Life::Stopped)
    }

    /// Whether a turn that goes on is its last.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.life, Life::Stopping(_))
    }

    pub(crate) fn asks_to_end(&self) -> bool {
        self.asks_to_end
    }

    pub(super) fn may_nest(&self) -> bool {
        self.nested
    }

    /// It belongs to this process now.
    pub(super) fn forked(&mut self) {
        self.forks = fork::count();
    }

    /// Drops the hooks that were not called.
    pub(super) fn drop_hooks(&mut self) {
        drop(std::mem::take(&mut self.drain));
        drop(std::mem::take(&mut self.shutdown));
        drop(std::mem::take(&mut self.pools));
    }
}

/// Says that something is in progress, for as long as it lives: [draining](Reactor::drain) waits for it. It may be held and
/// dropped on any thread.
#[must_use = "draining waits only as long as this is held"]
pub struct Hold {
    handle: Handle,
}

impl Hold {
    pub(crate) fn new(handle: Handle) -> Hold {
        handle.shared.latest().holds.fetch_add(1, Ordering::Relaxed);
        Hold { handle }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let shared = self.handle.shared.latest();
        // Release: what was done under the hold is done when the loop sees it gone.
        if shared.holds.fetch_sub(1, Ordering::Release) == 1 && shared.draining.load(Ordering::Acquire) {
            // A turn is what notices; a loop that is gone needs none.
            let _ = self.handle.post(|_| {});
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

impl Reactor {
    /// Stops the loop: the turn under way is finished without waiting, the [shutdown hooks](Reactor::on_shutdown) are run,
    /// and [`run`](crate::EventLoop::run) returns.
    ///
    /// From now on the loop takes on nothing new. What other threads post is refused, and so is everything here that can
    /// fail: [`Error::Stopped`], or the error of that method. Callbacks that are registered all the same are dropped without
    /// having run. A stopped loop does not run again.
    ///
    /// ```
    /// # use pelton::{Error, PostError, Reactor};
    /// let mut reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// let answer = handle.post_with_reply(|_| "never given");
    /// reactor.stop();
    /// reactor.run()?;
    /// assert!(answer.wait().is_err());
    /// assert!(matches!(handle.post(|_| {}), Err(PostError::Gone(_))));
    /// assert!(matches!(reactor.run(), Err(Error::Stopped)));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn stop(&mut self) {
        self.stop_with(Exit::Stopped);
    }

    fn stop_with(&mut self, exit: Exit) {
        if matches!(self.lifecycle.life, Life::Running | Life::Draining) {
            self.lifecycle.life = Life::Stopping(exit);
            // The turn under way runs those that are its own. There is no other turn, so nobody is to wait for one.
            self.posts.close();
        }
    }

    /// Whether the loop has shut down: nothing that is registered now will ever be called.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        if self.lifecycle.forks == fork::count() { Ok(()) } else { Err(Error::Forked) }
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.lifecycle.life == Life::Stopped
    }

    /// Refuses to begin what only further turns could go on with.
    pub(crate) fn check_takes_on(&self) -> Result<(), Error> {
        self.check_not_forked()?;
        if self.lifecycle.has_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Drops the posts of a loop that does not turn any more. Replies that threads wait for are lost, which wakes them.
    pub(crate) fn drop_posts(&mut self) {
        self.posts.close();
        // A thread that stayed in the parent of a forked child never writes what it was about to.
        let waits = self.check_not_forked().is_ok();
        while let Some(Post { place, closure }) = if waits { self.posts.pop_rest() } else { self.posts.pop() } {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
                self.report(Fault::at(
                    place,
                    "post",
                    format_args!("it panicked when it was dropped: {}", message(&panic)),
                ));
            }
        }
    }

    /// Lets the loop finish what is in progress, then stops it, after `deadline` in any case.
    ///
    /// No connection is accepted any more. The [drain hooks](Reactor::on_drain) are told first, so that they take on nothing
    /// new; then [the connections](crate::Connection::draining), which by default close when everything has been sent, and
    /// at once if nothing was ever sent or received; and [datagram sockets](crate::Datagrams::draining), likewise. Everything
    /// goes on as usual until there is no connection or datagram socket left, nobody has a [`Hold`] any more, what was
    /// [deferred](Reactor::defer) is done and no tick is waiting. [`run`](crate::EventLoop::run) then returns [`Exit::Drained`], or [`Exit::DrainTimedOut`] if it took too long.
    ///
    /// ```
    /// # use pelton::{Exit, Reactor};
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let hold = reactor.hold();
    /// reactor.after(Duration::from_millis(5), move |_| drop(hold));
    /// reactor.drain(Duration::from_secs(10));
    /// assert_eq!(reactor.run()?, Exit::Drained);
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn drain(&mut self, deadline: Duration) {
        if self.lifecycle.life != Life::Running {
            return;
        }
        self.lifecycle.life = Life::Draining;
        self.shared.draining.store(true, Ordering::Release);
        self.after(deadline, |reactor| {
            let holds = reactor.holds() + reactor.deferred.holding;
            let connections = reactor.connection_count() + reactor.datagram_socket_count();
            reactor.stop_with(Exit::DrainTimedOut { holds, connections });
        });
        self.ticks.append(&mut self.lifecycle.drain);
        self.unlisten_all();
        self.next_tick(|reactor| {
            reactor.lifecycle.asks_to_end = true;
            reactor.drain_sources();
        });
    }

    /// Says that something is in progress that [draining](Reactor::drain) should wait for, until the hold is dropped.
    pub fn hold(&self) -> Hold {
        self.handle().hold()
    }

    /// How many [`Hold`]s there are.
    pub fn holds(&self) -> usize {
        self.shared.holds.load(Ordering::Acquire)
    }

    /// Whether the loop was told to stop or to [drain](Reactor::drain): time to take on nothing new.
    pub fn stopping(&self) -> bool {
        self.lifecycle.life != Life::Running
    }

    /// Runs `hook` when the loop begins to [drain](Reactor::drain); at the next tick if it is draining already.
    #[track_caller]
    pub fn on_drain(&mut self, hook: impl FnOnce(&mut Reactor) + 'static) {
        match self.lifecycle.life {
            Life::Running => {
                self.lifecycle.drain.push_back(Tick {
                    place: Location::caller(),
                    closure: Closure::new(hook),
                    after_posts: 0,
                });
            }
            _ => self.next_tick(hook),
        }
    }

    /// Runs `hook` when the loop has stopped, before [`run`](crate::EventLoop::run) returns: the last one added first.
    ///
    /// A hook has the whole reactor, but no turn will follow: what it queues is dropped.
    #[track_caller]
    pub fn on_shutdown(&mut self, hook: impl FnOnce(&mut Reactor) + 'static) {
        if self.is_over() {
            return;
        }
        self.lifecycle.shutdown.push(Tick { place: Location::caller(), closure: Closure::new(hook), after_posts: 0 });
    }

    /// Has `pool` end with the loop: when the hooks have run and the connections are closed, it is
    /// [shut down](Pool::shutdown), within `deadline`; what it did not get done is logged. The first one given is the first to
    /// end. Once is enough for a pool that several services run [on](crate::Service::on).
    pub fn shut_down_at_end(&mut self, pool: &Pool, deadline: Duration) {
        if !self.is_over() {
            self.lifecycle.pools.push((pool.clone(), deadline));
        }
    }

    pub(crate) fn shut_down_pools(&mut self) {
        for (pool, deadline) in std::mem::take(&mut self.lifecycle.pools) {
            if let Err(error) = pool.shutdown(deadline) {
                self.report(Fault::new("pool", error));
            }
        }
    }

    /// Ends a drain that has nothing left to wait for.
    pub(crate) fn finish_draining(&mut self) {
        // Hooks and ticks may still take holds, so they go first.
        let idle = self.connection_count() + self.datagram_socket_count() == 0
            && self.ticks.is_empty()
            && self.posts.is_empty();
        if self.lifecycle.life == Life::Draining && idle && self.deferred.holding == 0 && self.holds() == 0 {
            self.stop_with(Exit::Drained);
        }
    }

    pub(crate) fn run_shutdown_hooks(&mut self) {
        // One at a time: a hook may add another, which then is the last one added.
        while let Some(hook) = self.lifecycle.shutdown.pop() {
            let site = Site { kind: CallbackKind::Hook, place: hook.place, source: None };
            self.call_once(site, |reactor| hook.closure.call(reactor));
        }
    }
}
