//! Re-establishes a connection whenever it ends.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use pelton_os::{ConnectOptions, Time, Token};
use pelton_sync::Closure;

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::panics::catch;
use crate::reactor::slots::Key;
use crate::sources::connection::{Connection, ConnectionId, Reason};
use crate::{Endpoint, Reactor, TimerId};

/// Exponential backoff with jitter. The wait starts small, doubles with each failure up to a maximum, and is shortened
/// at random, so that the clients of a server that was down do not all return at the same moment.
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
    /// The next wait, before jitter shortens it.
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
    /// Sets the first wait, also after a [reset](Backoff::reset). By default 100 milliseconds.
    pub fn start(mut self, wait: Duration) -> Self {
        self.start = wait;
        self.next = wait;
        self
    }

    /// Sets the longest wait. By default 30 seconds.
    pub fn most(mut self, wait: Duration) -> Self {
        self.most = wait;
        self
    }

    /// Sets which part of each wait is random: 0 for none, 1 for all of it. By default 0.5, so a wait has at least half
    /// of its full length.
    pub fn jitter(mut self, part: f64) -> Self {
        self.jitter = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        self
    }

    /// Sets how long a connection must stay up to reset the wait. A connection that ends sooner counts as another
    /// failure, so that a server that accepts connections only to close them is not flooded. By default 10 seconds.
    pub fn steady_after(mut self, up: Duration) -> Self {
        self.steady_after = up;
        self
    }

    /// Seeds the random numbers, which makes the waits repeatable.
    pub fn seed(mut self, seed: u64) -> Self {
        self.random.seed(seed);
        self
    }

    /// Returns the next wait.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next.min(self.most);
        self.next = wait.saturating_mul(2).min(self.most);
        wait.saturating_sub(wait.mul_f64(self.jitter * self.random.f64()))
    }

    /// Returns the wait after a connection that was up for this long, or `None` if it was not established. It starts from
    /// the beginning if the connection was [steady](Backoff::steady_after).
    pub fn wait_after(&mut self, up: Option<Duration>) -> Duration {
        if up.is_some_and(|up| up >= self.steady_after) {
            self.reset();
        }
        self.next_wait()
    }

    /// Resets the wait to its start.
    pub fn reset(&mut self) {
        self.next = self.start;
    }
}

/// Identifies a reconnecting connection, to [stop](Reactor::stop_reconnecting) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReconnectId(Key);

/// A connection that ended or could not be established, and will be retried.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outage {
    /// The reconnecting connection.
    pub id: ReconnectId,
    /// The target of the connection.
    pub target: Endpoint,
    /// The number of the attempt, from 1.
    pub attempt: u64,
    /// How long it was up, or `None` if it could not be established.
    pub up: Option<Duration>,
    /// Why it ended, as text. Its handler received the [`Reason`] itself.
    pub reason: String,
    /// The time until the next attempt.
    pub again_in: Duration,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outage { target, reason, again_in, .. } = self;
        match self.up {
            Some(up) => write!(f, "{target} was connected for {up:.1?}: {reason}; reconnecting in {again_in:.1?}"),
            None => write!(f, "{target} is not connected: {reason}; reconnecting in {again_in:.1?}"),
        }
    }
}

/// Keeps a connection open: connects, and connects again whenever the connection ends or cannot be established, until
/// it is [stopped](Reactor::stop_reconnecting) or the reactor is [stopping](Reactor::stopping).
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
    /// Connects to `target`, like [`Reactor::connect_to`]. A name is looked up again for each attempt.
    pub fn to(target: impl Into<Endpoint>) -> Reconnect {
        let (options, backoff) = (ConnectOptions::default(), Backoff::default());
        Reconnect { target: target.into(), options, backoff, on_outage: None }
    }

    /// Sets the options for connecting.
    pub fn options(mut self, options: ConnectOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the waits before all attempts except the first.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Calls `hook` whenever the connection has ended or could not be established and will be retried. Its handler has
    /// been notified before.
    pub fn on_outage(mut self, hook: impl FnMut(&mut Reactor, &Outage) + 'static) -> Self {
        self.on_outage = Some(Box::new(hook));
        self
    }

    /// Starts at the next tick. `serve` creates a handler for each connection and receives the number of the attempt,
    /// from 1. State that should outlive a connection belongs in the captures of `serve`.
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

/// The state of a reconnecting connection.
pub(crate) struct Keeping {
    place: &'static Location<'static>,
    target: Endpoint,
    options: ConnectOptions,
    backoff: Backoff,
    /// `None` while it is being called.
    on_outage: Option<OnOutage>,
    /// `None` while it is being called.
    serve: Option<Serve>,
    attempts: u64,
    connection: Option<ConnectionId>,
    up_since: Option<Time>,
    timer: Option<TimerId>,
}

impl Reactor {
    /// Stops reconnecting. The [current connection](Reactor::kept_connection) is not affected. Returns `false` if it
    /// has already ended.
    pub fn stop_reconnecting(&mut self, id: ReconnectId) -> bool {
        let Some(keeping) = self.names.reconnects.remove(id.0) else { return false };
        if let Some(timer) = keeping.timer {
            self.cancel(timer);
        }
        true
    }

    /// Returns the current connection, established or being established. `None` between two attempts, and after it has
    /// ended.
    pub fn kept_connection(&self, id: ReconnectId) -> Option<ConnectionId> {
        self.names.reconnects.get(id.0)?.connection
    }

    /// Starts the next attempt.
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
        let handler = match catch(|| serve(self, attempt)) {
            Ok(handler) => handler,
            Err(panic) => {
                self.stop_reconnecting(id);
                // This runs as a timer or a tick, so the panic is caught and reported there.
                panic.resume();
            }
        };
        // `serve` may have stopped it.
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

    /// Records that a connection is established, if it is a reconnecting one.
    pub(crate) fn kept_connection_is_open(&mut self, connection: Token) {
        let now = self.now;
        if let Some(keeping) = self.keeper_of(connection).and_then(|id| self.names.reconnects.get_mut(id.0)) {
            keeping.up_since = Some(now);
        }
    }

    /// Schedules the next attempt for a connection that has ended, if it is a reconnecting one.
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
        let again_in = keeping.backoff.wait_after(up);
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
    fn delays_grow_to_the_maximum_and_jitter_only_shortens_them() {
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
    fn same_seed_gives_the_same_delays() {
        let waits = |seed| {
            let mut backoff = Backoff::default().seed(seed);
            (0..8).map(|_| backoff.next_wait()).collect::<Vec<_>>()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }

    #[test]
    fn only_a_steady_connection_resets_the_delay() {
        let mut backoff = Backoff::default().jitter(0.0).steady_after(Duration::from_secs(1));
        let ups = [None, Some(Duration::from_millis(999)), None, Some(Duration::from_secs(1)), None];
        assert_eq!(ups.map(|up| backoff.wait_after(up).as_millis()), [100, 200, 400, 100, 200]);
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
