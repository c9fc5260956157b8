//! The reactor and its turn.
//!
//! This file is the loop: what a [`Reactor`] consists of, and what one turn of it does, phase by phase, in
//! [`EventLoop::turn_with`]. How callbacks get in is in the files named after them: `timers.rs`, `ticks.rs`, `watch.rs`,
//! `signals.rs`, `idle.rs`, and `handle.rs` for other threads.

pub(crate) mod builder;
pub(crate) mod callback;
mod current;
pub(crate) mod lifecycle;
pub(crate) mod slots;
mod spin;
mod state;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pelton_os::{Engine, Event, Outbox, Park, Time, Token, fork};
use pelton_sync::Receiver;

use crate::composers::channel::Subscribers;
use crate::names::reconnect::Keeping;
use crate::names::resolver::{NameSettings, Names};
use crate::observe::fault::Hook;
use crate::observe::stats::Meter;
use crate::observe::watchdog::Watchdog;
use crate::promises::{Continuations, Promises};
use crate::reactor::callback::{Callbacks, PanicPolicy};
use crate::reactor::lifecycle::{Exit, Hooks, Life};
use crate::reactor::slots::{Key, Slots};
use crate::reactor::spin::Spin;
use crate::reactor::state::States;
use crate::sources::connection::{Flow, FlowSettings, Limits, Reason, Stream};
use crate::sources::datagram::DatagramSocket;
use crate::sources::listener::Listener;
use crate::sources::signals::Signals;
use crate::sources::watch::Watch;
use crate::tasks::task::Local;
use crate::threads::defer::Deferred;
use crate::threads::handle::{Handle, Post, Shared};
use crate::threads::lane::{Lane, LaneSettings};
use crate::ticks::Tick;
use crate::ticks::idle::Idles;
use crate::timers::Timer;
use crate::{Builder, Error, Fault, Wheel};

/// When dispatching takes longer than this, listeners are looked at in between: connections that are going to be refused, for
/// there is too much to do, should not have to wait until it is done. Accepting so many takes a small part of this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// What a builder settles.
pub(crate) struct Settings {
    pub(crate) measure: bool,
    pub(crate) panic_policy: PanicPolicy,
    pub(crate) fault_hook: Option<Hook>,
    pub(crate) nested: bool,
    pub(crate) ticks_per_turn: usize,
    pub(crate) post_bound: usize,
    pub(crate) limits: Limits,
    pub(crate) flow: FlowSettings,
    pub(crate) names: NameSettings,
    pub(crate) lanes: [LaneSettings; Lane::ALL.len()],
    pub(crate) spin: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            measure: true,
            panic_policy: PanicPolicy::Close,
            fault_hook: None,
            nested: false,
            // At a microsecond each, events wait a millisecond; and the poll between is a thousandth of the cost.
            ticks_per_turn: 1024,
            // 3 MiB of small closures: far more than a healthy loop is ever behind, far less than a machine has.
            post_bound: 65_536,
            limits: Limits::default(),
            flow: FlowSettings::default(),
            names: NameSettings::default(),
            lanes: Lane::ALL.map(LaneSettings::of),
            spin: Duration::ZERO,
        }
    }
}

/// What events come from: everything that has a [`Token`].
pub(crate) enum Source {
    Watch(Watch),
    Connection(Stream),
    /// One of several ways to connect a connection, whose token this is.
    Attempt(Token),
    Listener(Box<Listener>),
    Datagrams(Box<DatagramSocket>),
    /// The socket that signals come in by.
    Signals,
    /// Ended, but the engine has not let go of it yet.
    Leaving,
}

impl Key {
    pub(crate) fn token(self) -> Token {
        Token::new(self.index, self.generation)
    }
}

impl From<Token> for Key {
    fn from(token: Token) -> Key {
        Key { index: token.index(), generation: token.generation() }
    }
}

/// The reactor, as callbacks see it: every callback is handed a `&mut Reactor` to register more with.
///
/// It belongs to one thread; [`handle`](Reactor::handle) is the way in for others. Running it is the business of its owner,
/// the [`EventLoop`] that [`Reactor::new`] gives, so that no callback can turn the loop inside itself.
///
/// # What does not compile
///
/// A reactor cannot be moved to a thread, because what is registered with it need not be [`Send`]:
///
/// ```compile_fail,E0277
/// use pelton::Reactor;
///
/// let mut reactor = Reactor::new().unwrap();
/// std::thread::spawn(move || reactor.run());
/// ```
///
/// Make it on that thread, and take its [`Handle`] to the others:
///
/// ```
/// use pelton::Reactor;
/// use std::sync::mpsc;
///
/// let (sender, receiver) = mpsc::channel();
/// let thread = std::thread::spawn(move || {
///     let mut reactor = Reactor::new()?;
///     let _ = sender.send(reactor.handle());
///     reactor.run()
/// });
/// let handle = receiver.recv()?;
/// handle.stop();
/// thread.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A callback cannot borrow what is around it, because it may run long after that is gone:
///
/// ```compile_fail,E0373
/// # use pelton::Reactor;
/// # use std::time::Duration;
/// # let mut reactor = Reactor::new().unwrap();
/// let mut count = 0;
/// reactor.every(Duration::from_secs(1), |_, _| count += 1);
/// ```
///
/// It owns its state (`move`); what several callbacks share is in an [`Rc`](std::rc::Rc) that each has a clone of, or in
/// [`Reactor::state`], which every callback reaches:
///
/// ```
/// # use pelton::Reactor;
/// # use std::time::Duration;
/// # let mut reactor = Reactor::new().unwrap();
/// #[derive(Default)]
/// struct Count(u32);
///
/// reactor.every(Duration::from_secs(1), |reactor, _| reactor.state::<Count>().0 += 1);
/// reactor.after(Duration::from_secs(60), |reactor| println!("{}", reactor.state::<Count>().0));
/// ```
pub struct Reactor {
    pub(crate) engine: Box<dyn Engine>,
    /// The latest reading of the clock.
    pub(crate) now: Time,
    pub(crate) timers: Wheel<Timer>,
    pub(crate) ticks: VecDeque<Tick>,
    /// What promises have queued behind them.
    pub(crate) continuations: Rc<Continuations>,
    pub(crate) ticks_per_turn: usize,
    /// How many of them may still run.
    pub(crate) ticks_left: usize,
    pub(crate) posts: Receiver<Post>,
    /// Whether other threads have been told to wake us when they post.
    posts_awaited: bool,
    pub(crate) spin: Spin,
    pub(crate) shared: Arc<Shared>,
    pub(crate) sources: Slots<Source>,
    pub(crate) connections: usize,
    pub(crate) listeners: Vec<Token>,
    pub(crate) datagram_sockets: usize,
    /// The datagram socket that was last received from: what it answers goes out together.
    pub(crate) answering: Option<Token>,
    /// Connections that were just accepted, and whose handlers have yet to be told.
    pub(crate) newcomers: Vec<Token>,
    /// Connections that something is to be done for, which a callback other than their own has left; and datagram sockets.
    pub(crate) dirty: Vec<Token>,
    /// Connections and datagram sockets that are over, and whose handlers have yet to be told.
    pub(crate) over: Vec<(Token, Reason)>,
    /// An empty outbox, for the connection that sends next.
    pub(crate) spare_outbox: Option<Box<Outbox>>,
    pub(crate) flow: Flow,
    /// What connections begin with.
    pub(crate) limits: Limits,
    pub(crate) names: Names,
    /// What it shares with its tasks.
    pub(crate) local: Rc<Local>,
    /// Callbacks of work that is being done on other threads.
    pub(crate) deferred: Deferred,
    pub(crate) promises: Promises,
    pub(crate) subscribers: Subscribers,
    pub(crate) reconnects: Slots<Keeping>,
    pub(crate) signals: Signals,
    pub(crate) idles: Idles,
    pub(crate) hooks: Hooks,
    pub(crate) life: Life,
    pub(crate) callbacks: Callbacks,
    pub(crate) meter: Meter,
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) states: States,
    /// It may be run inside a callback of another loop.
    nested: bool,
    /// The process it belongs to, as a number of forks.
    forks: u64,
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
    /// Builds a reactor on the best engine that this system has, or the one that the environment variable `PELTON_ENGINE`
    /// names.
    #[allow(clippy::new_ret_no_self, reason = "what one owns is the loop; what callbacks are handed is the reactor")]
    #[track_caller]
    pub fn new() -> Result<EventLoop, Error> {
        Reactor::builder().build()
    }

    /// Builds a reactor to order.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The way in from other threads.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// The time as of the latest reading of the clock: at the start of the turn, or after its wait.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The time now, from a fresh reading of the clock.
    pub fn clock(&self) -> Time {
        self.engine.now()
    }

    /// The name of the engine it runs on.
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        if self.forks == fork::count() { Ok(()) } else { Err(Error::Forked) }
    }
}

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
        let reactor = Reactor {
            engine,
            now,
            timers: Wheel::new(now),
            ticks: VecDeque::new(),
            continuations: Continuations::new(shared.clone()),
            ticks_per_turn: settings.ticks_per_turn,
            ticks_left: 0,
            posts,
            posts_awaited: false,
            spin: Spin::new(settings.spin),
            shared,
            sources: Slots::default(),
            connections: 0,
            listeners: Vec::new(),
            datagram_sockets: 0,
            answering: None,
            newcomers: Vec::new(),
            dirty: Vec::new(),
            over: Vec::new(),
            spare_outbox: None,
            flow: Flow::new(settings.flow),
            limits: settings.limits,
            names: Names::new(settings.names),
            local: Rc::default(),
            deferred: Deferred::default(),
            promises: Promises::default(),
            subscribers: Subscribers::default(),
            reconnects: Slots::default(),
            signals: Signals::default(),
            idles: Idles::default(),
            hooks: Hooks::default(),
            life: Life::Running,
            callbacks: Callbacks::new(settings.panic_policy, settings.fault_hook),
            meter: Meter::new(settings.measure, now),
            watchdog: None,
            states: States::default(),
            nested: settings.nested,
            forks: fork::count(),
        };
        EventLoop { reactor }
    }

    /// Turns the loop until it is told to [stop](Reactor::stop), then [shuts down](EventLoop::shutdown). A loop with
    /// nothing to do sleeps; it does not end.
    pub fn run(&mut self) -> Result<Exit, Error> {
        if self.life == Life::Stopped {
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
        matches!(self.life, Life::Stopping(_) | Life::Stopped)
    }

    /// Runs the [shutdown hooks](Reactor::on_shutdown), the last one added first, closes all connections and datagram
    /// sockets, ends [pools](Reactor::shut_down_at_end), then drops everything registered.
    /// [`run`](EventLoop::run) does this by itself; those who [turn](EventLoop::turn) the loop by hand call it at the end.
    pub fn shutdown(&mut self) -> Result<Exit, Error> {
        let exit = match self.life {
            Life::Stopping(exit) => exit,
            Life::Stopped => return Err(Error::Stopped),
            Life::Running | Life::Draining => Exit::Stopped,
        };
        self.life = Life::Stopping(exit);
        // Before the hooks: one may wait for a thread that waits for an answer.
        self.drop_posts();
        self.run_shutdown_hooks();
        self.unlisten_all();
        self.close_all_datagrams();
        self.close_connections();
        self.shut_down_pools();
        self.life = Life::Stopped;
        // Those that are leaving have been forgotten already.
        let left = self.sources.iter().filter(|(_, source)| !matches!(source, Source::Leaving));
        for token in left.map(|(key, _)| key.token()).collect::<Vec<Token>>() {
            self.end_source(token);
        }
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
        reactor.queue_continuations();
        // A turn is what tells that it has stopped.
        if reactor.is_over() || reactor.has_work() || !reactor.await_posts() {
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
        let waiting = std::mem::replace(&mut reactor.posts, posts).abandon();
        // The new queue counts from 0.
        reactor.queue_continuations();
        reactor.ticks.iter_mut().for_each(|tick| tick.after_posts = 0);
        reactor.ticks.extend(waiting.into_iter().map(Tick::from));
        reactor.shared = shared;
        if matches!(reactor.life, Life::Stopping(_) | Life::Stopped) {
            reactor.posts.close();
        }
        reactor.posts_awaited = false;
        reactor.forks = fork::count();
        reactor.renew_signals()?;
        reactor.renew_deferred();
        if let Some(watchdog) = &mut reactor.watchdog {
            watchdog.after_fork()?;
        }
        Ok(())
    }
}

/// The turn.
impl Reactor {
    fn turn(
        &mut self,
        timeout: Option<Duration>,
        done: &mut dyn FnMut(&mut Reactor) -> bool,
        block: impl FnOnce(&mut (dyn Park + Send)) -> io::Result<()>,
    ) -> Result<(), Error> {
        self.check_not_forked()?;
        if matches!(self.life, Life::Stopping(_) | Life::Stopped) {
            self.drop_posts();
            return Err(Error::Stopped);
        }
        self.shared.runs_here();
        let calls_before = self.meter.counters.calls();

        self.gather_deferred();
        self.read_clock();
        self.run_timers();
        self.run_ticks();
        self.flush_and_reap();
        self.wait(timeout, done, block)?;
        self.dispatch();
        if self.meter.counters.calls() == calls_before {
            self.run_idle_work();
        }
        self.flush_and_reap();
        self.wake_lanes();
        if matches!(self.life, Life::Stopping(_)) {
            self.drop_posts();
        }
        Ok(())
    }

    /// Begins to turn the loop. Refuses to make another loop of this thread wait for this one.
    pub(crate) fn begin_turning(&self) -> Result<Turning, Error> {
        let inside = TURNING.get() || Reactor::is_lent();
        if inside && !self.nested { Err(Error::Nested) } else { Ok(Turning::begin()) }
    }

    fn read_clock(&mut self) {
        self.now = self.engine.now();
        self.meter.set_mark(self.now);
    }

    fn run_timers(&mut self) {
        self.timers.expire(self.now);
        while self.fire_next_timer() {}
    }

    fn run_ticks(&mut self) {
        // Ticks wait in `ticks` and posts in `posts`, but they are one queue: each tick knows how many posts it is behind.
        let posted = self.shared.posted();
        self.ticks_left = self.ticks_per_turn;
        self.queue_continuations();
        for _ in 0..self.ticks.len() {
            let after_posts = self.ticks.front().map_or(0, |tick| tick.after_posts);
            self.run_posts(after_posts.min(posted));
            if self.ticks_left == 0 {
                break;
            }
            self.run_tick();
        }
        self.run_posts(posted);
        // A chain of promises goes on until something else is before it: a turn per link would be a system call per link.
        while self.run_continuation() {}
        self.ticks_finished();
        self.shrink_ticks();
    }

    pub(crate) fn flush_and_reap(&mut self) {
        loop {
            // What connections are told here may send and close again.
            while self.has_chores() || !self.dirty.is_empty() || !self.over.is_empty() {
                self.do_chores();
                self.attend_connections();
                self.reap_connections();
            }
            self.balance_flow();
            // With room again, what was held back is delivered now: the loop may be about to sleep.
            if self.dirty.is_empty() && self.over.is_empty() {
                break;
            }
        }
        self.sources.recycle();
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        done: &mut dyn FnMut(&mut Reactor) -> bool,
        block: impl FnOnce(&mut (dyn Park + Send)) -> io::Result<()>,
    ) -> Result<(), Error> {
        self.queue_continuations();
        self.finish_draining();
        // Asked first: it may leave something to do.
        let done = done(self);
        let has_work = self.has_work() || !self.posts.is_empty();
        let deadline = if done || has_work || timeout == Some(Duration::ZERO) {
            Some(Time::ZERO)
        } else {
            let timeout = timeout.map(|timeout| self.now + timeout);
            [timeout, self.timers.next_deadline()].into_iter().flatten().min()
        };
        self.wake_lanes();
        self.meter.work_ends();
        let outcome = self.spin(deadline).and_then(|over| if over { Ok(()) } else { self.block(deadline, block) });
        if std::mem::take(&mut self.posts_awaited) {
            self.posts.awake();
        }
        self.now = self.engine.now();
        self.spin.wait_ends(self.now);
        self.meter.wait_ends(self.now);
        outcome.map_err(|error| Error::system(format!("wait for events with {}", self.engine.name()), error))?;
        self.gather_deferred();
        Ok(())
    }

    /// Sleeps until `deadline`, unless somebody has posted.
    fn block(
        &mut self,
        deadline: Option<Time>,
        block: impl FnOnce(&mut (dyn Park + Send)) -> io::Result<()>,
    ) -> io::Result<()> {
        let poll_only = deadline == Some(Time::ZERO) || !self.await_posts();
        if !poll_only {
            self.meter.counters.sleeps += 1;
        }
        block(self.engine.park(if poll_only { Some(Time::ZERO) } else { deadline }))
    }

    fn dispatch(&mut self) {
        let mut accept_again = self.now + ACCEPT_AGAIN;
        while let Some(event) = self.spin.take_found().or_else(|| self.engine.next()) {
            match event {
                Event::Ready(token, readiness) => match self.sources.get(token.into()) {
                    Some(Source::Watch(_)) => self.watched_is_ready(token, readiness),
                    Some(Source::Signals) => self.deliver_signals(),
                    // Ended by a callback that was called before it.
                    _ => {}
                },
                Event::Accepted(token, socket) => self.connection_came_in(token, socket),
                Event::AcceptFailed(token, error) => self.accepting_failed(token, &error),
                Event::Connected(token) if self.is_attempt(token) => self.attempt_succeeded(token),
                Event::Ended(token, outcome) if self.is_attempt(token) => self.attempt_ended(token, outcome),
                Event::Detached(token, socket) if self.is_attempt(token) => self.attempt_is_detached(token, socket),
                Event::Connected(token) => self.connection_is_open(token),
                Event::Received(token, chunk) => self.connection_received(token, chunk),
                Event::Datagram(token, datagram) => self.datagram_received(token, datagram),
                Event::SendFailed(token, to, error) => self.sending_failed(token, to, error),
                Event::Ended(token, outcome) => match self.sources.get(token.into()) {
                    Some(Source::Datagrams(_)) => self.datagrams_ended(token, outcome),
                    _ => self.connection_ended(token, outcome),
                },
                Event::Sendable(token) => match self.sources.get(token.into()) {
                    Some(Source::Datagrams(_)) => self.datagrams_are_sendable(token),
                    _ => self.connection_is_sendable(token),
                },
                Event::Detached(token, socket) => self.connection_is_detached(token, socket),
                Event::Gone(token) => {
                    self.sources.retire(token.into());
                }
                other => self
                    .report(Fault::new("engine", format_args!("an event that this reactor does not know: {other:?}"))),
            }
            // The latest reading, whatever it was taken for: to look at it costs nothing.
            let latest = self.meter.mark();
            if latest >= accept_again {
                accept_again = latest + ACCEPT_AGAIN;
                self.engine.accept_again();
            }
        }
    }

    /// Whether there is something to do without waiting for it.
    fn has_work(&self) -> bool {
        let flushing = !self.dirty.is_empty() || !self.over.is_empty();
        flushing || !self.ticks.is_empty() || self.idles.has_work() || matches!(self.life, Life::Stopping(_))
    }

    /// Has other threads wake us when they post. `false` if one has posted already.
    fn await_posts(&mut self) -> bool {
        self.posts_awaited = self.posts.sleep();
        self.posts_awaited
    }

    /// Drops all callbacks while the rest of the reactor still stands: what they own may post from its `Drop`.
    fn drop_callbacks(&mut self) {
        self.drop_posts();
        Lane::ALL.iter().for_each(|lane| self.shared.lane(*lane).close());
        self.drop_tasks();
        drop(std::mem::take(&mut self.sources));
        drop(std::mem::take(&mut self.deferred));
        drop(std::mem::take(&mut self.promises));
        drop(std::mem::take(&mut self.subscribers));
        drop(std::mem::take(&mut self.reconnects));
        drop(std::mem::take(&mut self.signals));
        drop(std::mem::replace(&mut self.timers, Wheel::new(self.now)));
        drop(std::mem::take(&mut self.ticks));
        self.continuations.close();
        drop(std::mem::take(&mut self.idles));
        drop(std::mem::take(&mut self.hooks));
        self.watchdog = None;
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.reactor.life = Life::Stopped;
        self.reactor.drop_callbacks();
        self.reactor.shared.loop_is_gone();
    }
}
