//! Stops a reactor: immediately, or after work in progress has finished.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pelton_os::fork;
use pelton_sync::Closure;

use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::panics::catch;
use crate::threads::handle::{Handle, Post};
use crate::ticks::Tick;
use crate::{Error, Fault, Pool, Reactor};

/// The state of a reactor's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// Neither draining nor stopped.
    Running,
    /// Finishing work in progress.
    Draining,
    /// Stopped; the current turn is the last.
    Stopping(Exit),
    /// Shut down. It cannot run again.
    Stopped,
}

/// Why [`run`](crate::EventLoop::run) returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Exit {
    /// [`stop`](Reactor::stop) was called.
    Stopped,
    /// All work in progress finished after [`drain`](Reactor::drain) was called.
    Drained,
    /// The deadline of [`drain`](Reactor::drain) passed while work was still in progress.
    DrainTimedOut {
        /// The number of remaining [`Hold`]s and unfinished [deferred](Reactor::defer) jobs.
        holds: usize,
        /// The number of remaining connections and datagram sockets.
        connections: usize,
    },
}

/// The state of a reactor's life, and the hooks that run when it ends.
pub(crate) struct Lifecycle {
    life: Life,
    drain: VecDeque<Tick>,
    shutdown: Vec<Tick>,
    pools: Vec<(Pool, Duration)>,
    /// Draining has reached the connections. One that opens later is asked to end as well.
    drains_connections: bool,
    /// The loop may run inside a callback of another loop.
    nested: bool,
    /// Identifies the process that the reactor belongs to, as a number of forks.
    forks: u64,
}

impl Lifecycle {
    pub(super) fn new(nested: bool) -> Lifecycle {
        Lifecycle {
            life: Life::Running,
            drain: VecDeque::new(),
            shutdown: Vec::new(),
            pools: Vec::new(),
            drains_connections: false,
            nested,
            forks: fork::count(),
        }
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    pub(super) fn set_life(&mut self, life: Life) {
        self.life = life;
    }

    /// Returns whether the reactor is stopping or has stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        matches!(self.life, Life::Stopping(_) | Life::Stopped)
    }

    /// Returns whether the current turn is the last.
    pub(super) fn is_stopping(&self) -> bool {
        matches!(self.life, Life::Stopping(_))
    }

    pub(crate) fn drains_connections(&self) -> bool {
        self.drains_connections
    }

    pub(super) fn may_nest(&self) -> bool {
        self.nested
    }

    /// Records that the reactor belongs to this process now.
    pub(super) fn forked(&mut self) {
        self.forks = fork::count();
    }

    /// Drops the hooks that did not run.
    pub(super) fn drop_hooks(&mut self) {
        drop(std::mem::take(&mut self.drain));
        drop(std::mem::take(&mut self.shutdown));
        drop(std::mem::take(&mut self.pools));
    }
}

/// Represents work in progress: [draining](Reactor::drain) waits until it is dropped. It may be held and dropped on any
/// thread.
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
        // Release: work done under the hold is visible to the loop when it sees the hold gone.
        if shared.holds.fetch_sub(1, Ordering::Release) == 1 && shared.draining.load(Ordering::Acquire) {
            // The loop checks the holds once per turn, so wake it. If the loop is gone, nothing waits for the hold.
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
    /// Stops the loop. The current turn finishes without waiting, the [shutdown hooks](Reactor::on_shutdown) run, and
    /// [`run`](crate::EventLoop::run) returns.
    ///
    /// From now on the loop accepts no new work. It refuses posts of other threads, and every fallible method of the
    /// reactor fails with [`Error::Stopped`] or with its own error. Callbacks registered by other methods are dropped
    /// without running. A stopped loop cannot run again.
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
            // The current turn still runs the posts that it has taken. No other turn follows, so no thread may wait for
            // one.
            self.posts.close();
        }
    }

    /// Returns [`Error::Forked`] in a forked child that has not called `after_fork`.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        if self.lifecycle.forks == fork::count() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns whether the loop has shut down. Callbacks registered now never run.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.lifecycle.life == Life::Stopped
    }

    /// Returns an error if the loop will not turn again, and so cannot accept new work.
    pub(crate) fn check_takes_on(&self) -> Result<(), Error> {
        self.check_not_forked()?;
        if self.lifecycle.has_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Drops the posts of a loop that will not turn again. This wakes threads that wait for a reply.
    pub(crate) fn drop_posts(&mut self) {
        self.posts.close();
        // In a forked child, a thread that exists only in the parent never completes its push.
        let waits = self.check_not_forked().is_ok();
        while let Some(Post { place, closure }) = if waits { self.posts.pop_rest() } else { self.posts.pop() } {
            if let Err(panic) = catch(|| drop(closure)) {
                self.report(Fault::at(
                    place,
                    "post",
                    format_args!("it panicked while being dropped: {}", panic.message()),
                ));
            }
        }
    }

    /// Lets the loop finish work in progress, then stops it. It stops after `deadline` in any case.
    ///
    /// The loop stops listening. It runs the [drain hooks](Reactor::on_drain) first, so that they can refuse new work.
    /// Then it calls [`draining`](crate::Connection::draining) on the connections. By default these close when
    /// everything has been sent, or immediately if nothing was ever sent or received. [Datagram
    /// sockets](crate::Datagrams::draining) close when everything has been sent.
    ///
    /// The loop keeps running until there is no connection, datagram socket or [`Hold`] left, all
    /// [deferred](Reactor::defer) work is done, no tick is queued and the [guest](crate::Guest) has no work.
    /// [`run`](crate::EventLoop::run) then returns [`Exit::Drained`], or [`Exit::DrainTimedOut`] if the deadline passed
    /// first.
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
            reactor.lifecycle.drains_connections = true;
            reactor.drain_sources();
        });
    }

    /// Makes [draining](Reactor::drain) wait until the returned hold is dropped.
    pub fn hold(&self) -> Hold {
        self.handle().hold()
    }

    /// Returns the number of [`Hold`]s.
    pub fn holds(&self) -> usize {
        self.shared.holds.load(Ordering::Acquire)
    }

    /// Returns whether the loop is [draining](Reactor::drain) or was stopped, and should start nothing new.
    pub fn stopping(&self) -> bool {
        self.lifecycle.life != Life::Running
    }

    /// Runs `hook` when the loop begins to [drain](Reactor::drain), or in the next tick if it is draining already.
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

    /// Runs `hook` when the loop has stopped, before [`run`](crate::EventLoop::run) returns. The last hook added runs
    /// first.
    ///
    /// A hook can use the whole reactor, but no turn follows: ticks that it queues are dropped.
    #[track_caller]
    pub fn on_shutdown(&mut self, hook: impl FnOnce(&mut Reactor) + 'static) {
        if self.is_over() {
            return;
        }
        self.lifecycle.shutdown.push(Tick { place: Location::caller(), closure: Closure::new(hook), after_posts: 0 });
    }

    /// [Shuts down](Pool::shutdown) `pool`, within `deadline`, when the loop ends: after the hooks have run and the
    /// connections are closed. An error is reported as a fault. Pools end in the order in which they were added. Add a
    /// pool that several services [run on](crate::Service::on) only once.
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

    /// Stops a draining loop that has nothing left to wait for.
    #[inline]
    pub(crate) fn finish_draining(&mut self) {
        if self.lifecycle.life == Life::Draining {
            self.stop_if_drained();
        }
    }

    fn stop_if_drained(&mut self) {
        // Hooks and ticks may still take holds, so they must have run first.
        let idle = self.connection_count() + self.datagram_socket_count() == 0
            && self.ticks.is_empty()
            && self.posts.is_empty();
        if idle && self.deferred.holding == 0 && self.holds() == 0 && !self.guest_has_work() {
            self.stop_with(Exit::Drained);
        }
    }

    pub(crate) fn run_shutdown_hooks(&mut self) {
        // One at a time: a hook may add another hook, which is then the most recently added and runs next.
        while let Some(hook) = self.lifecycle.shutdown.pop() {
            let site = Site { kind: CallbackKind::Hook, place: hook.place, source: None };
            self.call_once(site, |reactor| hook.closure.call(reactor));
        }
    }
}
