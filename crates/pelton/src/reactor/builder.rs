//! Building a reactor.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use pelton_os::engine::{self, EngineKind};

use crate::names::resolver::SHORTEST_ATTEMPT_DELAY;
use crate::reactor::Settings;
use crate::reactor::callback::PanicPolicy;
use crate::sources::connection::{Limit, WaterMarks};
use crate::{Engine, Error, EventLoop, Fault, FaultKind, Lane, LaneSettings, Reactor, Resolver};

/// Builds a reactor other than the default one.
///
/// ```
/// use pelton::{EngineKind, PanicPolicy, Reactor};
///
/// let reactor = Reactor::builder().engine(EngineKind::Poll).panic_policy(PanicPolicy::Abort).build()?;
/// assert_eq!(reactor.engine_name(), "poll");
/// # Ok::<(), pelton::Error>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Default)]
pub struct Builder {
    engine: Option<EngineKind>,
    custom: Option<Box<dyn Engine>>,
    settings: Settings,
}

impl Builder {
    /// The engine to run on. If this system does not have it, the best it has is used instead, and the reason is reported as
    /// a [fault](Builder::on_fault).
    /// Without a choice here, the environment variable `PELTON_ENGINE` decides; without that, the system.
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = Some(engine);
        self
    }

    /// An engine of your own.
    pub fn custom_engine(mut self, engine: Box<dyn Engine>) -> Self {
        self.custom = Some(engine);
        self
    }

    /// Whether callbacks and turns are timed, for [`Reactor::stats`](crate::Reactor::stats). On by default; it costs about
    /// as much as reading the clock once per callback.
    pub fn stats(mut self, measure: bool) -> Self {
        self.settings.measure = measure;
        self
    }

    /// What happens when a callback panics; by default its source is closed and the loop goes on.
    pub fn panic_policy(mut self, policy: PanicPolicy) -> Self {
        self.settings.panic_policy = policy;
        self
    }

    /// Calls `hook` for every fault, as [`Reactor::on_fault`] does, those of building the reactor included. Without a hook,
    /// faults go to `tracing` if the program has a subscriber, and otherwise to standard error, once per kind and place.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::builder()
    ///     .on_fault(|reactor, fault| {
    ///         eprintln!("{fault}");
    ///         reactor.stop();
    ///     })
    ///     .build()?;
    /// // A promise that is rejected, and that nobody looks at.
    /// let (deferred, _) = reactor.promise::<(), &str>();
    /// deferred.reject("out of water").ok();
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn on_fault(mut self, hook: impl FnMut(&mut Reactor, &Fault) + 'static) -> Self {
        self.settings.fault_hook = Some(Box::new(hook));
        self
    }

    /// How many ticks run per turn at most, before events get their chance. At least 1; by default 1,024.
    pub fn ticks_per_turn(mut self, ticks: usize) -> Self {
        self.settings.ticks_per_turn = ticks.max(1);
        self
    }

    /// How many posts may wait to be picked up before [`Handle::try_post`](crate::Handle::try_post) is refused; by
    /// default 65,536.
    pub fn post_bound(mut self, posts: usize) -> Self {
        self.settings.post_bound = posts;
        self
    }

    /// How long something may take on a connection; `None` for as long as it likes. A connection can
    /// [change it](crate::Io::set_limit) for itself.
    pub fn limit(mut self, limit: Limit, after: Option<Duration>) -> Self {
        self.settings.limits.set(limit, after);
        self
    }

    /// How much may wait to be sent on a connection. A connection can [change it](crate::Io::set_water_marks) for itself.
    pub fn water_marks(mut self, marks: WaterMarks) -> Self {
        self.settings.flow.marks = WaterMarks { low: marks.low.min(marks.high), ..marks };
        self
    }

    /// How many bytes of memory may wait to be sent on all connections together; by default 256 MiB. Over it, connections are
    /// not read from any more once they have been, then no new ones are accepted, until a quarter of it is free.
    pub fn byte_budget(mut self, bytes: usize) -> Self {
        self.settings.flow.budget = bytes;
        self
    }

    /// Whether connections are served also while more waits to be sent than the [budget](Builder::byte_budget) allows: new ones are
    /// accepted, and those on which nothing waits are read from. By default they are not.
    ///
    /// It suits servers that tell newcomers when they are busy, and that answer on the connection that was asked on, so that those
    /// who take their answers do not suffer from those who do not. What passes data on from one connection to another must not use it:
    /// what it reads here would wait there.
    pub fn serve_over_budget(mut self, serve: bool) -> Self {
        self.settings.flow.serves_over_budget = serve;
        self
    }

    /// What looks up names, for [`connect_to`](crate::Reactor::connect_to) and [`resolve`](crate::Reactor::resolve); by
    /// default the [system](crate::SystemResolver).
    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.settings.names.resolver = Arc::new(resolver);
        self
    }

    /// How many names are looked up at a time, and how many may wait; by default [these](LaneSettings::LOOKUPS).
    pub fn lookups(self, settings: LaneSettings) -> Self {
        self.lane(Lane::Names, settings)
    }

    /// How much of a kind of work that blocks is [done](crate::Reactor::defer) at a time, and how much may wait; by default
    /// [this](LaneSettings::of).
    pub fn lane(mut self, lane: Lane, settings: LaneSettings) -> Self {
        self.settings.lanes[lane as usize] = settings;
        self
    }

    /// When a name has several addresses, how long an attempt to connect has for itself before the next one is begun beside
    /// it. At least 10 milliseconds; by default 250.
    pub fn attempt_delay(mut self, delay: Duration) -> Self {
        self.settings.names.attempt_delay = delay.max(SHORTEST_ATTEMPT_DELAY);
        self
    }

    /// Before the loop sleeps, it may poll again and again for so long; by default not at all. For loops whose events come in
    /// quick succession, and to whom a processor of their own is worth the microseconds that falling asleep and waking up
    /// take; 50 µs is a good start.
    ///
    /// It spins only if the last wait was shorter than this, so an idle loop sleeps as ever. What
    /// [`turn_with`](EventLoop::turn_with) is given to block is not called in a turn whose wait is over before it would
    /// block.
    pub fn spin(mut self, most: Duration) -> Self {
        self.settings.spin = most;
        self
    }

    /// Lets the loop be run inside a callback of another loop on the same thread, which stands still meanwhile: none of its
    /// timers, connections and ticks are served. Otherwise that is refused with [`Error::Nested`], except for a
    /// [turn](EventLoop::turn) that does not wait.
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

    /// Builds it.
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
        // Without a hook once per process: a program with many reactors asks for each.
        let fallback = opened.fallback().filter(|_| hooked || opened.is_news());
        let mut reactor = EventLoop::on(opened.engine, self.settings);
        if let Some(message) = fallback {
            let (kind, place) = (FaultKind::Engine, Location::caller());
            reactor.report(Fault { kind, label: None, place, message });
        }
        Ok(reactor)
    }
}
