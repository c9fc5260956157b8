//! Calls user code: identifies callbacks and handles their panics.

use std::collections::HashMap;
use std::fmt;
use std::panic::{Location, resume_unwind};
use std::sync::Arc;

use super::panics::{Panic, catch};
use crate::Reactor;
use crate::observe::fault::{Fault, FaultKind, Hook};
use crate::sources::connection::ConnectionId;
use crate::sources::datagram::DatagramsId;
use crate::sources::listener::ListenerId;
use crate::sources::path_watch::PathWatchId;
use crate::sources::process::{ChildId, ProcessWatchId};
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
    /// A tick: [`Reactor::next_tick`], [posts](crate::Handle::post) of other threads, [`Reactor::defer`],
    /// [`Reactor::resolve`], [`Reactor::on_drain`], the continuations of [promises](crate::Promise), and tasks:
    /// [`Reactor::spawn`].
    Tick,
    /// A watched descriptor, path or process: [`Reactor::watch`], [`Reactor::watch_path`], [`Reactor::watch_process`],
    /// [`process`](crate::process).
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
    /// A batch of the guest: [`Reactor::host`].
    Guest,
}

impl CallbackKind {
    /// Every kind.
    pub const ALL: [CallbackKind; 9] = [
        CallbackKind::Timer,
        CallbackKind::Tick,
        CallbackKind::Watch,
        CallbackKind::Signal,
        CallbackKind::Connection,
        CallbackKind::Datagrams,
        CallbackKind::Idle,
        CallbackKind::Hook,
        CallbackKind::Guest,
    ];

    /// Returns the name of the kind, as reports print it.
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
            CallbackKind::Guest => "guest",
        }
    }
}

impl fmt::Display for CallbackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Identifies a source of callbacks, of any kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SourceId {
    /// A timer.
    Timer(TimerId),
    /// A watched descriptor.
    Watch(WatchId),
    /// A watched path.
    Path(PathWatchId),
    /// A watched process.
    Process(ProcessWatchId),
    /// A child process.
    Child(ChildId),
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

impl From<PathWatchId> for SourceId {
    fn from(id: PathWatchId) -> Self {
        SourceId::Path(id)
    }
}

impl From<ProcessWatchId> for SourceId {
    fn from(id: ProcessWatchId) -> Self {
        SourceId::Process(id)
    }
}

impl From<ChildId> for SourceId {
    fn from(id: ChildId) -> Self {
        SourceId::Child(id)
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

/// Identifies a callback in reports.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) kind: CallbackKind,
    /// Where the callback was registered.
    pub(crate) place: &'static Location<'static>,
    pub(crate) source: Option<SourceId>,
}

/// What the reactor does when a callback panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PanicPolicy {
    /// Ends the callback's source, reports the panic to the [fault hook](Reactor::on_fault) and keeps running.
    #[default]
    Close,
    /// Ends the source and reports the panic, then propagates it out of [`run`](crate::EventLoop::run) or
    /// [`turn`](crate::EventLoop::turn). The reactor can be run again.
    Propagate,
    /// Ends the source and reports the panic, then aborts the process.
    Abort,
}

/// Formats a callback's name: `timer "heartbeat" (src/main.rs:10:5)`.
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

/// How a callback ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Returned,
    Panicked,
}

/// A panic that was reported and now unwinds through an outer callback.
struct Reported(Panic);

/// State shared by all callbacks.
pub(crate) struct Callbacks {
    policy: PanicPolicy,
    /// Receives faults.
    pub(crate) hook: Option<Hook>,
    /// Labels are kept here and not in the sources because few sources have one.
    labels: HashMap<SourceId, Arc<str>>,
    /// How many callbacks are running, nested inside each other.
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

    /// Returns how many callbacks are running, nested inside each other.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Drops the label of a source. Must be called for every source that ends.
    pub(crate) fn ended(&mut self, source: impl Into<SourceId>) {
        if !self.labels.is_empty() {
            self.labels.remove(&source.into());
        }
    }
}

impl Reactor {
    /// Gives a source a label, which reports of slow and panicking callbacks print.
    pub fn label(&mut self, source: impl Into<SourceId>, label: impl Into<Arc<str>>) {
        self.callbacks.labels.insert(source.into(), label.into());
    }

    /// Ends a source: cancels a timer or idle work, ends a watch whatever state its descriptor is in, removes a signal's
    /// callback, stops a listener, closes a connection or a datagram socket, kills a child process. A source can be ended in
    /// its own callback. Returns `false` if it has ended already.
    ///
    /// A listener's accepted connections stay open. A connection is [closed](crate::Io::close) without writing.
    pub fn end(&mut self, source: impl Into<SourceId>) -> bool {
        match source.into() {
            SourceId::Timer(id) => self.cancel(id),
            SourceId::Watch(id) => self.unwatch(id),
            SourceId::Path(id) => self.unwatch_path(id),
            SourceId::Process(id) => self.unwatch_process(id),
            SourceId::Child(id) => self.kill_child(id),
            SourceId::Signal(id) => self.remove_signal(id),
            SourceId::Idle(id) => self.cancel_idle(id),
            SourceId::Listener(id) => self.unlisten(id),
            SourceId::Connection(id) => self.connection(id).map(|mut io| io.close()).is_some(),
            SourceId::Datagrams(id) => self.datagrams(id).map(|mut io| io.close()).is_some(),
        }
    }

    /// Calls user code. Every callback goes through this function.
    pub(crate) fn call(&mut self, site: Site, callback: impl FnOnce(&mut Reactor)) -> Result<(), Panic> {
        if self.meter.needs_mark(site.kind, self.watchdog.is_some()) {
            self.meter.set_mark(self.engine.now());
        }
        if let Some(watchdog) = &self.watchdog {
            watchdog.begin(site, self.callbacks.label(site.source), self.meter.mark());
        }
        self.callbacks.depth += 1;
        let outcome = catch(|| callback(self));
        self.callbacks.depth -= 1;
        self.finished(site);
        outcome
    }

    /// Ends a piece of a callback and begins the next one, which is counted and timed as if it were another call.
    #[inline]
    pub(crate) fn begin_next(&mut self, site: Site) {
        if self.watchdog.is_none() && self.meter.only_counts(site.kind) {
            return;
        }
        self.finished(site);
        if let Some(watchdog) = &self.watchdog {
            watchdog.begin(site, self.callbacks.label(site.source), self.meter.mark());
        }
    }

    /// Reports a panic and applies the panic policy. This may unwind, so the caller must have restored all state
    /// before.
    pub(crate) fn fault(&mut self, site: Site, label: Option<Arc<str>>, panic: Panic) {
        let panic = match panic.into_payload().downcast::<Reported>() {
            Ok(reported) => return self.propagate(reported.0),
            Err(payload) => Panic::from(payload),
        };
        self.meter.counters.panics += 1;
        let kind = FaultKind::Panicked(site.kind);
        self.report(Fault { kind, label, place: site.place, message: panic.message() });
        match self.callbacks.policy {
            PanicPolicy::Close => {}
            PanicPolicy::Propagate => self.propagate(panic),
            PanicPolicy::Abort => std::process::abort(),
        }
    }

    /// Resumes the unwinding of a panic that was reported.
    fn propagate(&mut self, panic: Panic) {
        // The panic ends the turn, so its last phase does not do this.
        self.wake_lanes();
        // The outer callback's fault is this one, which was reported.
        if self.callbacks.depth > 0 { resume_unwind(Box::new(Reported(panic))) } else { panic.resume() }
    }

    /// Calls a callback that was taken out of its source, which may have a label. `settle` receives the callback and
    /// the outcome: it puts the callback back or ends the source. A panic is reported after that, with the label that
    /// the source had before.
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
        // The only call of `settle`, so that it is inlined: on the hot path it is a tenth of the cost of a message.
        settle(self, callback, outcome);
        if let Some((panic, label)) = panic {
            self.fault(site, label, panic);
        }
    }

    /// Calls the last callback of a source, then drops the source's label. Reports of this callback still show the
    /// label.
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

    /// Calls a callback that runs only once, whether or not it panics.
    pub(crate) fn call_once(&mut self, site: Site, callback: impl FnOnce(&mut Reactor)) {
        if let Err(panic) = self.call(site, callback) {
            self.fault(site, None, panic);
        }
    }
}
