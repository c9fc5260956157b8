//! The reactor and its parts.
//!
//! Read `turn.rs` first: it is the loop, phase by phase. `event_loop.rs` owns a reactor and turns it, `source.rs` is
//! the table of everything that reports events, and `callback.rs` is the only module that calls user code. The other
//! modules of this crate are what callbacks are registered with: timers, ticks, sources, promises, tasks.

pub(crate) mod builder;
pub(crate) mod callback;
mod current;
pub(crate) mod event_loop;
pub(crate) mod lifecycle;
pub(crate) mod panics;
pub(crate) mod sleep;
pub(crate) mod slots;
pub(crate) mod source;
mod state;
mod turn;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pelton_os::{Engine, Time, Token};

use crate::composers::channel::Subscribers;
use crate::guests::Hosting;
use crate::names::resolver::{NameSettings, Names};
use crate::observe::fault::Hook;
use crate::observe::stats::Meter;
use crate::observe::watchdog::Watchdog;
use crate::promises::Promises;
use crate::sources::connection::{Connections, Flow, FlowSettings, Limits};
use crate::sources::datagram::DatagramSockets;
use crate::sources::listener::Listeners;
use crate::sources::signals::Signals;
use crate::tasks::task::Local;
use crate::threads::defer::Deferrals;
use crate::threads::handle::{Handle, Posts, Shared};
use crate::threads::lane::{Lane, LaneSettings};
use crate::ticks::Ticks;
use crate::ticks::idle::Idles;
use crate::timers::Timer;
use crate::{Builder, Error, Wheel};
use callback::{Callbacks, PanicPolicy};
pub use event_loop::EventLoop;
use lifecycle::Lifecycle;
use sleep::{Cut, Spin};
use source::Sources;
use state::States;

/// The settings that a builder collects.
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
            // At a microsecond per tick, events wait one millisecond, and the poll between batches costs a thousandth
            // of that.
            ticks_per_turn: 1024,
            // 3 MiB of small closures: far more than the backlog of a healthy loop, far less than a machine's memory.
            post_bound: 65_536,
            limits: Limits::default(),
            flow: FlowSettings::default(),
            names: NameSettings::default(),
            lanes: Lane::ALL.map(LaneSettings::of),
            spin: Duration::ZERO,
        }
    }
}

/// A reactor, as callbacks see it: every callback receives a `&mut Reactor` and can register more callbacks with it.
///
/// It belongs to one thread. Other threads use a [`handle`](Reactor::handle). [`Reactor::new`] returns an
/// [`EventLoop`], which owns the reactor and runs it. So no callback can turn the loop from inside itself.
///
/// # What does not compile
///
/// A reactor cannot be moved to another thread because callbacks registered with it need not be [`Send`]:
///
/// ```compile_fail,E0277
/// use pelton::Reactor;
///
/// let mut reactor = Reactor::new().unwrap();
/// std::thread::spawn(move || reactor.run());
/// ```
///
/// [`Reactor::start_thread`] builds a reactor on a new thread, sets it up there and gives its [`Handle`] to the caller:
///
/// ```
/// use pelton::Reactor;
/// use std::time::Duration;
///
/// let reactor = Reactor::start_thread(|reactor| {
///     reactor.every(Duration::from_secs(1), |_, _| println!("tick"));
///     Ok(())
/// })?;
/// reactor.handle().post(|_| println!("on that thread"))?;
/// reactor.handle().stop();
/// reactor.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A callback cannot borrow local variables because it may run long after they are gone:
///
/// ```compile_fail,E0373
/// # use pelton::Reactor;
/// # use std::time::Duration;
/// # let mut reactor = Reactor::new().unwrap();
/// let mut count = 0;
/// reactor.every(Duration::from_secs(1), |_, _| count += 1);
/// ```
///
/// A callback owns its state (`move`). State shared by several callbacks goes into an [`Rc`](std::rc::Rc) that each of
/// them clones, or into [`Reactor::state`], which every callback can reach:
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
    /// The latest clock reading.
    pub(crate) now: Time,
    pub(crate) timers: Wheel<Timer>,
    pub(crate) ticks: Ticks,
    pub(crate) idles: Idles,
    pub(crate) hosting: Hosting,
    pub(crate) posts: Posts,
    pub(crate) spin: Spin,
    pub(crate) cut: Cut,
    pub(crate) shared: Arc<Shared>,
    pub(crate) sources: Sources,
    pub(crate) connections: Connections,
    pub(crate) datagram_sockets: DatagramSockets,
    pub(crate) listeners: Listeners,
    pub(crate) flow: Flow,
    pub(crate) names: Names,
    /// State shared with the reactor's tasks.
    pub(crate) local: Rc<Local>,
    /// Callbacks of work that runs on other threads.
    pub(crate) deferred: Deferrals,
    pub(crate) promises: Promises,
    pub(crate) subscribers: Subscribers,
    pub(crate) signals: Signals,
    /// The source of watched paths, if there are any.
    pub(crate) path_watches: Option<Token>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) callbacks: Callbacks,
    pub(crate) meter: Meter,
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) states: States,
}

impl Reactor {
    /// Builds a reactor with the best engine available on this system, or with the one that the environment variable
    /// `PELTON_ENGINE` names.
    #[allow(clippy::new_ret_no_self, reason = "the caller owns the loop; callbacks receive the reactor")]
    #[track_caller]
    pub fn new() -> Result<EventLoop, Error> {
        Reactor::builder().build()
    }

    /// Returns a builder for a reactor with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns a handle with which other threads reach the reactor.
    pub fn handle(&self) -> Handle {
        Handle { shared: self.shared.clone() }
    }

    /// Returns the latest clock reading: the clock is read after the wait of a turn, and at its start if there are timers or
    /// ticks, and whenever code outside a turn reaches the reactor through its
    /// [`EventLoop`].
    pub fn now(&self) -> Time {
        self.now
    }

    /// Reads the clock and returns the current time.
    pub fn clock(&self) -> Time {
        self.engine.now()
    }

    /// Returns the name of the engine.
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }
}
