//! Staying connected: a connection that is made again whenever it is over.

use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::time::Duration;

use pelton_os::{ConnectOptions, Time, Token};
use pelton_sync::Closure;

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::slots::Key;
use crate::sources::connection::{Connection, ConnectionId, Reason};
use crate::{Endpoint, Reactor, TimerId};

/// How long to wait before trying again: a little at first, twice as long each time, up to a most; and each time a bit less
/// than that, at random, so that many clients of a server that was down do not all come back at the same moment.
///
/// ```
/// use pelton::Backoff;
/// use std::time::Duration;
///
/// let mut backoff = Backoff::default().jitter(0.0).most(Duration::from_millis(300));
/// let waits: Vec<_> = (0..4).map(|_| backoff.next_wait().as_millis()).collect();
/// assert_eq!(waits, [100, 200, 300, 300]);
/// backoff.reset();
/// assert_eq!(backoff.next_wait().as_millis(), 100);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Backoff {
    start: Duration,
    most: Duration,
    jitter: f64,
    steady_after: Duration,
    random: fastrand::Rng,
    /// The next wait, before it is shortened.
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        let start = Duration::from_millis(100);
        Backoff {
            start,
            most: Duration::from_secs(30),
            jitter: 0.5,
            steady_after: Duration::from_secs(10),
            random: fastrand::Rng::new(),
            next: start,
        }
    }
}

impl Backoff {
    /// How long to wait at first, and again after a [reset](Backoff::reset). By default 100 milliseconds.
    pub fn start(mut self, wait: Duration) -> Self {
        self.start = wait;
        self.next = wait;
        self
    }

    /// How long to wait at most. By default 30 seconds.
    pub fn most(mut self, wait: Duration) -> Self {
        self.most = wait;
        self
    }

    /// Which part of each wait is left to chance: with 0 none, and with 1 all of it. By default 0.5, so a wait is half as
    /// long as it could be, or longer.
    pub fn jitter(mut self, part: f64) -> Self {
        self.jitter = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    /// How long a connection has to be up for the next wait to be the shortest again. One that is over sooner counts as
    /// another failure: a server that accepts connections only to close them is not to be flooded either. By default 10
    /// seconds.
    pub fn steady_after(mut self, up: Duration) -> Self {
        self.steady_after = up;
        self
    }

    /// Makes chance repeatable.
    pub fn seed(mut self, seed: u64) -> Self {
        self.random.seed(seed);
        self
    }

    /// How long to wait this time.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next.min(self.most);
        self.next = wait.saturating_mul(2).min(self.most);
        wait.saturating_sub(wait.mul_f64(self.jitter * self.random.f64()))
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.next = self.start;
    }
}

/// Names what keeps a connection up, to [stop](Reactor::stop_reconnecting) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReconnectId(Key);

/// A connection that is over, or could not be made, and is made again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outage {
    /// Whose connection it was.
    pub id: ReconnectId,
    /// What it was connected to.
    pub target: Endpoint,
    /// Which attempt to connect it was, from 1.
    pub attempt: u64,
    /// How long it was up. `None` if it could not be made.
    pub up: Option<Duration>,
    /// Why it is over, in words. Its handler was given the [`Reason`] itself.
    pub reason: String,
    /// How long it is until the next attempt.
    pub again_in: Duration,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outage { target, reason, again_in, .. } = self;
        match self.up {
            Some(up) => write!(f, "{target} was connected for {up:.1?}: {reason}; again in {again_in:.1?}"),
            None => write!(f, "{target} is not connected: {reason}; again in {again_in:.1?}"),
        }
    }
}

/// Connects, and connects again whenever the connection is over or cannot be made, until it is
/// [stopped](Reactor::stop_reconnecting) or the reactor is [stopping](Reactor::stopping).
///
/// ```
/// use pelton::{Backoff, Chunk, Connection, Endpoint, Io, Reactor, Reconnect};
/// use std::time::Duration;
///
/// struct Feed;
///
/// impl Connection for Feed {
///     fn opened(&mut self, io: &mut Io<'_>) {
///         io.send(b"subscribe\n").ok();
///     }
///
///     fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
///         println!("{}", String::from_utf8_lossy(&chunk));
///     }
/// }
///
/// let mut reactor = Reactor::new()?;
/// let feed = Reconnect::to("localhost:1".parse::<Endpoint>()?)
///     .backoff(Backoff::default().start(Duration::from_millis(1)))
///     .on_outage(|reactor, outage| {
///         println!("{outage}");
///         if outage.attempt == 3 {
///             reactor.stop();
///         }
///     })
///     .run(&mut reactor, |_, _| Feed);
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is connected until `run`"]
pub struct Reconnect {
    target: Endpoint,
    options: ConnectOptions,
    backoff: Backoff,
    on_outage: Option<OnOutage>,
}

type OnOutage = Box<dyn FnMut(&mut Reactor, &Outage)>;
type Serve = Box<dyn FnMut(&mut Reactor, u64) -> Box<dyn Connection>>;

impl Reconnect {
    /// Connects to `target`, as [`Reactor::connect_to`] does: a name is looked up anew each time.
    pub fn to(target: impl Into<Endpoint>) -> Reconnect {
        let (options, backoff) = (ConnectOptions::default(), Backoff::default());
        Reconnect { target: target.into(), options, backoff, on_outage: None }
    }

    /// How to connect.
    pub fn options(mut self, options: ConnectOptions) -> Self {
        self.options = options;
        self
    }

    /// How long to wait before each attempt but the first.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Calls `hook` whenever the connection is over or could not be made, and will be made again; its handler was told before.
    pub fn on_outage(mut self, hook: impl FnMut(&mut Reactor, &Outage) + 'static) -> Self {
        self.on_outage = Some(Box::new(hook));
        self
    }

    /// Begins, at the next tick. Each connection has a handler of its own, which `serve` makes; it is told which attempt
    /// this is, from 1. What should outlive a connection belongs to what `serve` captures.
    #[track_caller]
    pub fn run<C: Connection>(
        self,
        reactor: &mut Reactor,
        mut serve: impl FnMut(&mut Reactor, u64) -> C + 'static,
    ) -> ReconnectId {
        let place = Location::caller();
        let keeping = Keeping {
            place,
            target: self.target,
            options: self.options,
            backoff: self.backoff,
            on_outage: self.on_outage,
            serve: Some(Box::new(move |reactor, attempt| Box::new(serve(reactor, attempt)))),
            attempts: 0,
            connection: None,
            up_since: None,
            timer: None,
        };
        let id = ReconnectId(reactor.names.reconnects.insert(keeping));
        if reactor.is_over() {
            reactor.names.reconnects.remove(id.0);
        }
        let closure = Closure::new(move |reactor: &mut Reactor| reactor.connect_again(id));
        reactor.tick_from(place, closure);
        id
    }
}

/// What keeps a connection up, as the reactor keeps it.
pub(crate) struct Keeping {
    place: &'static Location<'static>,
    target: Endpoint,
    options: ConnectOptions,
    backoff: Backoff,
    /// `None` while it runs.
    on_outage: Option<OnOutage>,
    /// `None` while it runs.
    serve: Option<Serve>,
    attempts: u64,
    connection: Option<ConnectionId>,
    up_since: Option<Time>,
    timer: Option<TimerId>,
}

impl Reactor {
    /// Connects no more. The connection of the moment stays as it is, if there is [one](Reactor::kept_connection). `false` if
    /// it has ended already.
    pub fn stop_reconnecting(&mut self, id: ReconnectId) -> bool {
        let Some(keeping) = self.names.reconnects.remove(id.0) else { return false };
        if let Some(timer) = keeping.timer {
            self.cancel(timer);
        }
        true
    }

    /// The connection of the moment, established or on its way. `None` between two attempts, and when it has ended.
    pub fn kept_connection(&self, id: ReconnectId) -> Option<ConnectionId> {
        self.names.reconnects.get(id.0)?.connection
    }

    /// The next attempt.
    fn connect_again(&mut self, id: ReconnectId) {
        let stopping = self.stopping();
        let Some(keeping) = self.names.reconnects.get_mut(id.0) else { return };
        keeping.timer = None;
        if stopping {
            self.stop_reconnecting(id);
            return;
        }
        let Some(mut serve) = keeping.serve.take() else { return };
        keeping.attempts += 1;
        let attempt = keeping.attempts;
        let handler = match catch_unwind(AssertUnwindSafe(|| serve(self, attempt))) {
            Ok(handler) => handler,
            Err(panic) => {
                self.stop_reconnecting(id);
                // To where every panic goes: this runs as a timer or a tick.
                resume_unwind(panic);
            }
        };
        // It may have been told to stop.
        let Some(keeping) = self.names.reconnects.get_mut(id.0) else { return };
        keeping.serve = Some(serve);
        let (place, target, options) = (keeping.place, keeping.target.clone(), keeping.options.clone());
        match self.dial(place, target, &options, handler) {
            Ok(connection) => {
                if let Some(stream) = self.stream_mut(connection.0) {
                    stream.keep(id);
                }
                if let Some(keeping) = self.names.reconnects.get_mut(id.0) {
                    keeping.connection = Some(connection);
                }
            }
            Err(error) => {
                if let Some(outage) = self.outage(id, error.to_string()) {
                    self.tell_outage(&outage);
                }
            }
        }
    }

    /// Takes note that a connection is established, if it is one that is kept up.
    pub(crate) fn kept_connection_is_open(&mut self, connection: Token) {
        let now = self.now;
        if let Some(keeping) = self.keeper_of(connection).and_then(|id| self.names.reconnects.get_mut(id.0)) {
            keeping.up_since = Some(now);
        }
    }

    /// Sees to it that a connection is made again, if it is one that is kept up.
    pub(crate) fn kept_connection_is_over(&mut self, connection: Token, reason: &Reason) -> Option<Outage> {
        let id = self.keeper_of(connection)?;
        self.outage(id, reason.to_string())
    }

    fn keeper_of(&mut self, connection: Token) -> Option<ReconnectId> {
        self.stream_mut(connection)?.keeper()
    }

    fn outage(&mut self, id: ReconnectId, reason: String) -> Option<Outage> {
        if self.stopping() {
            self.stop_reconnecting(id);
            return None;
        }
        let now = self.now;
        let keeping = self.names.reconnects.get_mut(id.0)?;
        keeping.connection = None;
        let up = keeping.up_since.take().map(|since| now - since);
        if up.is_some_and(|up| up >= keeping.backoff.steady_after) {
            keeping.backoff.reset();
        }
        let again_in = keeping.backoff.next_wait();
        let (place, target, attempt) = (keeping.place, keeping.target.clone(), keeping.attempts);
        let timer = self.after_from(place, again_in, move |reactor| reactor.connect_again(id));
        if let Some(keeping) = self.names.reconnects.get_mut(id.0) {
            keeping.timer = Some(timer);
        }
        Some(Outage { id, target, attempt, up, reason, again_in })
    }

    pub(crate) fn tell_outage(&mut self, outage: &Outage) {
        let Some(keeping) = self.names.reconnects.get_mut(outage.id.0) else { return };
        let Some(hook) = keeping.on_outage.take() else { return };
        let site = Site { kind: CallbackKind::Connection, place: keeping.place, source: None };
        self.call_source(
            site,
            hook,
            |hook, reactor| hook(reactor, outage),
            |reactor, hook, outcome| {
                if outcome == Outcome::Panicked {
                    reactor.stop_reconnecting(outage.id);
                } else if let Some(keeping) = reactor.names.reconnects.get_mut(outage.id.0) {
                    keeping.on_outage = Some(hook);
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_most_and_chance_only_shortens_them() {
        let mut exact = Backoff::default().jitter(0.0);
        let mut random = Backoff::default().seed(7);
        let waits: Vec<_> = (0..12).map(|_| (exact.next_wait(), random.next_wait())).collect();
        assert_eq!(waits[0].0, Duration::from_millis(100));
        assert_eq!(waits[8].0, Duration::from_millis(25_600));
        assert!(waits[9..].iter().all(|(exact, _)| *exact == Duration::from_secs(30)));
        assert!(waits.iter().all(|(exact, random)| *exact / 2 <= *random && *random <= *exact), "{waits:?}");
        assert!(waits.iter().any(|(exact, random)| exact != random), "{waits:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_waits() {
        let waits = |seed| {
            let mut backoff = Backoff::default().seed(seed);
            (0..8).map(|_| backoff.next_wait()).collect::<Vec<_>>()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }

    #[test]
    fn odd_settings_are_harmless() {
        let mut backoff = Backoff::default().start(Duration::MAX).most(Duration::MAX).jitter(f64::NAN);
        assert_eq!((backoff.next_wait(), backoff.next_wait()), (Duration::MAX, Duration::MAX));
        let mut backoff = Backoff::default().start(Duration::ZERO).jitter(9.0);
        assert_eq!((backoff.next_wait(), backoff.next_wait()), (Duration::ZERO, Duration::ZERO));
        let mut backoff = Backoff::default().start(Duration::from_secs(60));
        assert!(backoff.next_wait() <= Duration::from_secs(30));
    }
}
