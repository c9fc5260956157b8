//! Builds a reactor with settings other than the defaults.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use pelton_os::engine::{self, EngineKind};

use crate::names::resolver::SHORTEST_ATTEMPT_DELAY;
use crate::reactor::Settings;
use crate::reactor::callback::PanicPolicy;
use crate::sources::connection::{Limit, WaterMarks};
use crate::{Engine, Error, EventLoop, Fault, FaultKind, Lane, LaneSettings, Reactor, Resolver};

/// Builds a reactor with settings other than the defaults.
///
/// ```
/// use pelton::{EngineKind, PanicPolicy, Reactor};
///
/// let reactor = Reactor::builder().engine(EngineKind::Poll).panic_policy(PanicPolicy::Abort).build()?;
/// assert_eq!(reactor.engine_name(), "poll");
/// # Ok::<(), pelton::Error>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Default)]
pub struct Builder {
    engine: Option<EngineKind>,
    custom: Option<Box<dyn Engine>>,
    settings: Settings,
}

impl Builder {
    /// Selects the engine. If this system does not support it, the reactor uses the best available engine and reports
    /// the reason as a [fault](Builder::on_fault). Without this call, the environment variable `PELTON_ENGINE` selects
    /// the engine. If that is not set either, the best available engine is used.
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Uses an engine that the caller supplies.
    pub fn custom_engine(mut self, engine: Box<dyn Engine>) -> Self {
        self.custom = Some(engine);
        self
    }

    /// Enables or disables timing of callbacks and turns for [`Reactor::stats`](crate::Reactor::stats). Enabled by
    /// default. It costs about one clock reading per callback.
    pub fn stats(mut self, measure: bool) -> Self {
        self.settings.measure = measure;
        self
    }

    /// Sets what happens when a callback panics. By default the reactor closes the callback's source and keeps running.
    pub fn panic_policy(mut self, policy: PanicPolicy) -> Self {
        self.settings.panic_policy = policy;
        self
    }

    /// Calls `hook` for every fault, as [`Reactor::on_fault`] does, including faults while the reactor is built.
    /// Without a hook, faults go to `tracing` if the program has a subscriber. Otherwise they go to standard error,
    /// once per kind and source location.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::builder()
    ///     .on_fault(|reactor, fault| {
    ///         eprintln!("{fault}");
    ///         reactor.stop();
    ///     })
    ///     .build()?;
    /// // A promise that is rejected and that nobody handles.
    /// let (deferred, _) = reactor.promise::<(), &str>();
    /// deferred.reject("out of water").ok();
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn on_fault(mut self, hook: impl FnMut(&mut Reactor, &Fault) + 'static) -> Self {
        self.settings.fault_hook = Some(Box::new(hook));
        self
    }

    /// Limits how many ticks run per turn before the loop polls for events. At least 1. By default 1,024.
    pub fn ticks_per_turn(mut self, ticks: usize) -> Self {
        self.settings.ticks_per_turn = ticks.max(1);
        self
    }

    /// Limits how many posts can be queued before [`Handle::try_post`](crate::Handle::try_post) refuses more. By
    /// default 65,536.
    pub fn post_bound(mut self, posts: usize) -> Self {
        self.settings.post_bound = posts;
        self
    }

    /// Sets a time limit for connections. `None` disables it. A connection can [change its own
    /// limit](crate::Io::set_limit).
    pub fn limit(mut self, limit: Limit, after: Option<Duration>) -> Self {
        self.settings.limits.set(limit, after);
        self
    }

    /// Sets the water marks of the send queues of connections and datagram sockets. A connection can [change its
    /// own](crate::Io::set_water_marks).
    pub fn water_marks(mut self, marks: WaterMarks) -> Self {
        self.settings.flow.marks = WaterMarks { low: marks.low.min(marks.high), ..marks };
        self
    }

    /// Sets the budget for bytes in memory that are queued to be sent on all connections and datagram sockets. By
    /// default 256 MiB. While the budget is exceeded, the reactor stops reading from each connection after its next
    /// read, and stops accepting connections. Both resume when a quarter of the budget is free.
    pub fn byte_budget(mut self, bytes: usize) -> Self {
        self.settings.flow.budget = bytes;
        self
    }

    /// Keeps serving connections while the [byte budget](Builder::byte_budget) is exceeded: the reactor accepts new
    /// connections and reads from connections that have nothing queued. Disabled by default.
    ///
    /// This suits servers that refuse new clients when they are busy and that send each response on the connection of
    /// its request. Clients that read their responses are then not slowed down by clients that do not read theirs. Do not
    /// enable it for a proxy that forwards data between connections: it would read from one connection and queue the
    /// data on another.
    pub fn serve_over_budget(mut self, serve: bool) -> Self {
        self.settings.flow.serves_over_budget = serve;
        self
    }

    /// Sets the resolver for [`connect_to`](crate::Reactor::connect_to) and [`resolve`](crate::Reactor::resolve). By
    /// default it is the [system's](crate::SystemResolver).
    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.settings.names.resolver = Arc::new(resolver);
        self
    }

    /// Sets how many names are looked up at a time and how many lookups can be queued. By default
    /// [`LaneSettings::LOOKUPS`].
    pub fn lookups(self, settings: LaneSettings) -> Self {
        self.lane(Lane::Names, settings)
    }

    /// Sets how many [blocking jobs](crate::Reactor::defer) of one kind run at a time and how many can be queued. See
    /// [`LaneSettings::of`] for the defaults.
    pub fn lane(mut self, lane: Lane, settings: LaneSettings) -> Self {
        self.settings.lanes[lane as usize] = settings;
        self
    }

    /// Sets how long a connection attempt runs before the next address of the name is tried in parallel. At least 10
    /// milliseconds. By default 250.
    pub fn attempt_delay(mut self, delay: Duration) -> Self {
        self.settings.names.attempt_delay = delay.max(SHORTEST_ATTEMPT_DELAY);
        self
    }

    /// Lets the loop spin, that is poll repeatedly, for up to `most` before it sleeps. By default it does not spin.
    /// Spinning trades processor time for latency: it saves the microseconds that falling asleep and waking up take. It
    /// suits loops whose events arrive in quick succession and that have a processor to themselves. 50 µs is a good
    /// start.
    ///
    /// The loop spins only if the last wait was shorter than `most`, so an idle loop sleeps as usual. With a
    /// [guest](crate::Guest), it spins inside [`Guest::park`](crate::Guest::park), so without the guest's lock.
    pub fn spin(mut self, most: Duration) -> Self {
        self.settings.spin = most;
        self
    }

    /// Allows the loop to run inside a callback of another loop on the same thread. The outer loop is blocked
    /// meanwhile: it serves none of its timers, connections and ticks. Without this, running the loop there fails with
    /// [`Error::Nested`], except for a [turn](EventLoop::turn) with a zero timeout.
    ///
    /// ```
    /// # use pelton::{Error, Reactor};
    /// let mut outer = Reactor::new()?;
    /// outer.next_tick(|outer| {
    ///     let mut inner = Reactor::new().unwrap();
    ///     assert!(matches!(inner.run(), Err(Error::Nested)));
    ///     let mut inner = Reactor::builder().nested(true).build().unwrap();
    ///     inner.next_tick(|inner| inner.stop());
    ///     assert!(inner.run().is_ok());
    ///     outer.stop();
    /// });
    /// outer.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn nested(mut self, nested: bool) -> Self {
        self.settings.nested = nested;
        self
    }

    /// Builds the reactor.
    #[track_caller]
    pub fn build(self) -> Result<EventLoop, Error> {
        if let Some(engine) = self.custom {
            return Ok(EventLoop::on(engine, self.settings));
        }
        let wanted = match self.engine {
            Some(wanted) => Some(wanted),
            None => EngineKind::from_environment()?,
        };
        let opened = engine::open_quietly(wanted).map_err(|error| Error::system("build a reactor", error))?;
        let hooked = self.settings.fault_hook.is_some();
        // Without a hook, report the fallback once per process: a program with many reactors would report it for each.
        let fallback = opened.fallback().filter(|_| hooked || opened.is_news());
        let mut reactor = EventLoop::on(opened.engine, self.settings);
        if let Some(message) = fallback {
            let (kind, location) = (FaultKind::Engine, Location::caller());
            reactor.report(Fault { kind, label: None, place: location, message });
        }
        Ok(reactor)
    }
}
