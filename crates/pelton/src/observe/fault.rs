//! Faults: failures that no caller can receive.
//!
//! Every fault goes through [`Reactor::report`], on the loop it belongs to, to the hook set by
//! [`Builder::on_fault`](crate::Builder::on_fault) or [`Reactor::on_fault`]. Without a hook or a loop, [`by_default`]
//! reports it.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::reactor::callback::{CallbackKind, Named};
use crate::reactor::panics::catch;
use crate::{Handle, Reactor};

/// A failure that no caller can receive.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Fault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The label of the source, if it was given one with [`Reactor::label`].
    pub label: Option<Arc<str>>,
    /// Where the failed item was created: where a callback was registered, or a promise made.
    pub place: &'static Location<'static>,
    /// The panic message, or the error as text.
    pub message: String,
}

/// The kinds of [faults](Fault).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// A callback panicked.
    Panicked(CallbackKind),
    /// A promise was rejected without a handler.
    Unhandled,
    /// The requested engine is not available, and another one is used.
    Engine,
    /// Something failed that nobody waits for. The name says what: `"listener"`, `"http"`.
    Failed(&'static str),
}

impl FaultKind {
    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Panicked(kind) => kind.name(),
            FaultKind::Unhandled => "promise",
            FaultKind::Engine => "engine",
            FaultKind::Failed(what) => what,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq<CallbackKind> for FaultKind {
    fn eq(&self, other: &CallbackKind) -> bool {
        *self == FaultKind::Panicked(*other)
    }
}

impl Fault {
    /// Creates a fault of code built on the reactor. `what` names that code in one word. The place is that of the
    /// caller.
    #[track_caller]
    pub fn new(what: &'static str, message: impl fmt::Display) -> Fault {
        Fault::at(Location::caller(), what, message)
    }

    /// Does the same as [`Fault::new`] with the given place.
    pub fn at(place: &'static Location<'static>, what: &'static str, message: impl fmt::Display) -> Fault {
        Fault { kind: FaultKind::Failed(what), label: None, place, message: message.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { label, place, message, .. } = self;
        match self.kind {
            FaultKind::Panicked(kind) => write!(f, "{} panicked: {message}", Named { kind: kind.name(), label, place }),
            FaultKind::Unhandled => write!(f, "promise ({place}) was rejected, and nobody handled it: {message}"),
            FaultKind::Engine | FaultKind::Failed(_) => {
                write!(f, "{}: {message}", Named { kind: self.kind.name(), label, place })
            }
        }
    }
}

pub(crate) type Hook = Box<dyn FnMut(&mut Reactor, &Fault)>;

/// Reports a fault that no hook handles.
pub(crate) fn by_default(fault: &Fault) {
    pelton_os::fault::report(fault.kind.name(), fault.place, fault);
}

impl Reactor {
    /// Calls `hook` for every fault: a callback that panicked, after its source has ended; a promise rejected without a
    /// handler; a requested engine that is not available; and other failures that nobody waits for. There is one hook,
    /// and this replaces it. [`Builder::on_fault`](crate::Builder::on_fault) also catches faults during building.
    ///
    /// Without a hook, faults go to `tracing` if the program has a subscriber, and otherwise to standard error, once
    /// per kind and place.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::new()?;
    /// reactor.on_fault(|reactor, fault| {
    ///     assert_eq!(fault.message, "out of water");
    ///     reactor.stop();
    /// });
    /// reactor.next_tick(|_| panic!("out of water"));
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn on_fault(&mut self, hook: impl FnMut(&mut Reactor, &Fault) + 'static) {
        self.callbacks.hook = Some(Box::new(hook));
    }

    /// Reports a fault of code built on the reactor. It is handled like the reactor's [own faults](Reactor::on_fault).
    ///
    /// ```
    /// # use pelton::{Fault, Reactor};
    /// # let mut reactor = Reactor::new()?;
    /// # reactor.on_fault(|_, fault| assert!(fault.to_string().ends_with("the cache is not written")));
    /// reactor.report(Fault::new("cache", "the cache is not written"));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn report(&mut self, fault: Fault) {
        // Taken out while it runs, so that it can replace itself.
        let Some(mut hook) = self.callbacks.hook.take() else { return by_default(&fault) };
        match catch(|| hook(self, &fault)) {
            Ok(()) => {
                self.callbacks.hook.get_or_insert(hook);
            }
            Err(second) => {
                let message = format!("{}; then the fault hook panicked: {}", fault.message, second.message());
                by_default(&Fault { message, ..fault });
            }
        }
    }
}

impl Handle {
    /// Reports a fault from any thread. See [`Reactor::report`]. If the loop has stopped, the fault is reported as
    /// without a hook.
    pub fn report(&self, fault: Fault) {
        let place = fault.place;
        let fault = Undelivered::new(fault);
        // If the post is refused, dropping the fault reports it.
        let _ = self.post_from(place, move |reactor: &mut Reactor| fault.deliver(reactor), None);
    }
}

/// A fault on its way to its loop. If a stopping loop drops it, it is reported without the loop.
pub(crate) struct Undelivered(Option<Fault>);

impl Undelivered {
    pub(crate) fn new(fault: Fault) -> Undelivered {
        Undelivered(Some(fault))
    }

    pub(crate) fn deliver(mut self, reactor: &mut Reactor) {
        if let Some(fault) = self.0.take() {
            reactor.report(fault);
        }
    }

    /// Takes the fault out, so that it is not reported here.
    pub(crate) fn take(&mut self) -> Option<Fault> {
        self.0.take()
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(fault) = &self.0 {
            by_default(fault);
        }
    }
}
