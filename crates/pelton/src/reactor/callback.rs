//! Calling user code: what is known about a callback, and what happens when it panics.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::Reactor;
use crate::observe::fault::{Fault, FaultKind, Hook};
use crate::sources::connection::ConnectionId;
use crate::sources::datagram::DatagramsId;
use crate::sources::listener::ListenerId;
use crate::sources::signals::SignalId;
use crate::sources::watch::WatchId;
use crate::ticks::idle::IdleId;
use crate::timers::TimerId;

/// The kinds of callbacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CallbackKind {
    /// A timer: [`Reactor::after`], [`Reactor::at`], [`Reactor::every`].
    Timer,
    /// A tick: [`Reactor::next_tick`], what other threads [post](crate::Handle::post), [`Reactor::defer`],
    /// [`Reactor::resolve`], [`Reactor::on_drain`], the continuations of [promises](crate::Promise), and tasks:
    /// [`Reactor::spawn`].
    Tick,
    /// A descriptor that is ready: [`Reactor::watch`].
    Watch,
    /// A signal: [`Reactor::on_signal`].
    Signal,
    /// A connection: [`Connection`](crate::Connection), [`Reactor::listen`], [`Reconnect`](crate::Reconnect).
    Connection,
    /// A datagram socket: [`Datagrams`](crate::Datagrams).
    Datagrams,
    /// Idle work: [`Reactor::when_idle`], [`Reactor::whenever_idle`].
    Idle,
    /// A hook: [`Reactor::on_shutdown`].
    Hook,
}

impl CallbackKind {
    /// Every kind.
    pub const ALL: [CallbackKind; 8] = [
        CallbackKind::Timer,
        CallbackKind::Tick,
        CallbackKind::Watch,
        CallbackKind::Signal,
        CallbackKind::Connection,
        CallbackKind::Datagrams,
        CallbackKind::Idle,
        CallbackKind::Hook,
    ];

    /// Its name, as it stands in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CallbackKind::Timer => "timer",
            CallbackKind::Tick => "tick",
            CallbackKind::Watch => "watch",
            CallbackKind::Signal => "signal",
            CallbackKind::Connection => "connection",
            CallbackKind::Datagrams => "datagrams",
            CallbackKind::Idle => "idle",
            CallbackKind::Hook => "hook",
        }
    }
}

impl fmt::Display for CallbackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names anything that calls back again and again, whatever kind it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SourceId {
    /// A timer.
    Timer(TimerId),
    /// A watched descriptor.
    Watch(WatchId),
    /// A signal's callback.
    Signal(SignalId),
    /// Idle work.
    Idle(IdleId),
    /// A connection.
    Connection(ConnectionId),
    /// A listener.
    Listener(ListenerId),
    /// A datagram socket.
    Datagrams(DatagramsId),
}

impl From<TimerId> for SourceId {
    fn from(id: TimerId) -> Self {
        SourceId::Timer(id)
    }
}

impl From<WatchId> for SourceId {
    fn from(id: WatchId) -> Self {
        SourceId::Watch(id)
    }
}

impl From<SignalId> for SourceId {
    fn from(id: SignalId) -> Self {
        SourceId::Signal(id)
    }
}

impl From<IdleId> for SourceId {
    fn from(id: IdleId) -> Self {
        SourceId::Idle(id)
    }
}

impl From<ConnectionId> for SourceId {
    fn from(id: ConnectionId) -> Self {
        SourceId::Connection(id)
    }
}

impl From<ListenerId> for SourceId {
    fn from(id: ListenerId) -> Self {
        SourceId::Listener(id)
    }
}

impl From<DatagramsId> for SourceId {
    fn from(id: DatagramsId) -> Self {
        SourceId::Datagrams(id)
    }
}

/// Which callback it is: enough to name it in a report.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) kind: CallbackKind,
    /// Where it was registered.
    pub(crate) place: &'static Location<'static>,
    pub(crate) source: Option<SourceId>,
}

/// What to do when a callback panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PanicPolicy {
    /// End the source whose callback it was, report it to the [error hook](Reactor::on_fault), and turn on.
    #[default]
    Close,
    /// Likewise, then let the panic go on out of [`run`](crate::EventLoop::run) or [`turn`](crate::EventLoop::turn). The
    /// reactor can be run again.
    Propagate,
    /// Likewise, then abort the process.
    Abort,
}

/// Writes a callback's name: `timer "heartbeat" (src/main.rs:10:5)`.
pub(crate) struct Named<'a> {
    pub(crate) kind: &'static str,
    pub(crate) label: &'a Option<Arc<str>>,
    pub(crate) place: &'static Location<'static>,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(label) = self.label {
            write!(f, " {label:?}")?;
        }
        write!(f, " ({})", self.place)
    }
}

/// How a callback came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Returned,
    Panicked,
}

/// What a panic carries.
pub(crate) type Panic = Box<dyn Any + Send>;

/// A panic that has been reported, on its way out through a callback that has called another.
struct Reported(Panic);

/// What concerns all callbacks alike.
pub(crate) struct Callbacks {
    policy: PanicPolicy,
    /// What faults are reported to.
    pub(crate) hook: Option<Hook>,
    /// Few sources have one, so they do not each carry room for it.
    labels: HashMap<SourceId, Arc<str>>,
    /// How many callbacks are running, one inside the other.
    depth: usize,
}

impl Callbacks {
    pub(crate) fn new(policy: PanicPolicy, hook: Option<Hook>) -> Callbacks {
        Callbacks { policy, hook, labels: HashMap::new(), depth: 0 }
    }

    pub(crate) fn label(&self, source: Option<SourceId>) -> Option<Arc<str>> {
        if self.labels.is_empty() {
            return None;
        }
        self.labels.get(&source?).cloned()
    }

    /// How many callbacks are under way, one inside the other.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// To be called for every source that ends.
    pub(crate) fn ended(&mut self, source: impl Into<SourceId>) {
        if !self.labels.is_empty() {
            self.labels.remove(&source.into());
        }
    }
}

/// What a panic says.
pub(crate) fn message(panic: &Panic) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(not a text)").to_owned()
}

impl Reactor {
    /// Gives a source a name of your own, to be read in reports of slow and panicking callbacks.
    pub fn label(&mut self, source: impl Into<SourceId>, label: impl Into<Arc<str>>) {
        self.callbacks.labels.insert(source.into(), label.into());
    }

    /// Calls user code: every callback goes through here.
    pub(crate) fn call(&mut self, site: Site, callback: impl FnOnce(&mut Reactor)) -> Result<(), Panic> {
        if self.meter.needs_mark(site.kind, self.watchdog.is_some()) {
            self.meter.set_mark(self.engine.now());
        }
        if let Some(watchdog) = &self.watchdog {
            watchdog.begin(site, self.callbacks.label(site.source), self.meter.mark());
        }
        self.callbacks.depth += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| callback(self)));
        self.callbacks.depth -= 1;
        self.finished(site);
        outcome
    }

    /// Reports a panic and does what the policy says. The caller has put everything in order: this may not return.
    fn fault(&mut self, site: Site, label: Option<Arc<str>>, panic: Panic) {
        let panic = match panic.downcast::<Reported>() {
            Ok(reported) => return self.propagate(reported.0),
            Err(panic) => panic,
        };
        self.meter.counters.panics += 1;
        let kind = FaultKind::Panicked(site.kind);
        self.report(Fault { kind, label, place: site.place, message: message(&panic) });
        match self.callbacks.policy {
            PanicPolicy::Close => {}
            PanicPolicy::Propagate => self.propagate(panic),
            PanicPolicy::Abort => std::process::abort(),
        }
    }

    /// Lets a panic go on that has been reported.
    fn propagate(&mut self, panic: Panic) {
        // The turn is over.
        self.wake_lanes();
        resume_unwind(if self.callbacks.depth > 0 { Box::new(Reported(panic)) } else { panic });
    }

    /// Calls a callback that was taken out of its source, which may have a label. `settle` is handed the callback and how the
    /// call came out: it puts the callback back, or ends the source. A panic is reported after that, under the label that the
    /// source had.
    #[inline(always)]
    pub(crate) fn call_source<C>(
        &mut self,
        site: Site,
        mut callback: C,
        call: impl FnOnce(&mut C, &mut Reactor),
        settle: impl FnOnce(&mut Reactor, C, Outcome),
    ) {
        let (outcome, panic) = match self.call(site, |reactor| call(&mut callback, reactor)) {
            Ok(()) => (Outcome::Returned, None),
            Err(panic) => (Outcome::Panicked, Some((panic, self.callbacks.label(site.source)))),
        };
        // In one place, so that it becomes part of the caller: on the hot path this is a tenth of a message's cost.
        settle(self, callback, outcome);
        if let Some((panic, label)) = panic {
            self.fault(site, label, panic);
        }
    }

    /// Calls the last callback of a source. Its label outlives it, for the reports.
    pub(crate) fn call_last(&mut self, site: Site, callback: impl FnOnce(&mut Reactor)) {
        let outcome = self.call(site, callback);
        let label = self.callbacks.label(site.source);
        if let Some(source) = site.source {
            self.callbacks.ended(source);
        }
        if let Err(panic) = outcome {
            self.fault(site, label, panic);
        }
    }

    /// Calls user code that ends with the call, whether it panics or not.
    pub(crate) fn call_once(&mut self, site: Site, callback: impl FnOnce(&mut Reactor)) {
        if let Err(panic) = self.call(site, callback) {
            self.fault(site, None, panic);
        }
    }
}
