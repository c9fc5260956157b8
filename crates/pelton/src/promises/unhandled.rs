//! Unhandled rejections.

use std::fmt;
use std::panic::Location;

use pelton_sync::Closure;

use super::{Continuations, Rejected};
use crate::observe::fault::Undelivered;
use crate::{Fault, FaultKind, Reactor};

/// A promise that was rejected and dropped without a handler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unhandled {
    /// Where the last promise of the chain was made.
    pub place: &'static Location<'static>,
    /// The error it was rejected with.
    pub message: String,
}

impl fmt::Display for Unhandled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise ({}) was rejected, and nobody handled it: {}", self.place, self.message)
    }
}

pub(super) type Hook = Box<dyn FnMut(&mut Reactor, &Unhandled)>;

/// Reports a rejection. A `Drop` may call this, so the hook is called from a tick.
pub(super) fn report(continuations: &Continuations, place: &'static Location<'static>, message: String) {
    let mut fault = Undelivered::new(Fault { kind: FaultKind::Unhandled, label: None, place, message });
    let notify = move |reactor: &mut Reactor| {
        // Taken out while it runs, so that it can replace itself.
        let Some(mut hook) = reactor.promises.unhandled.take() else { return fault.deliver(reactor) };
        if let Some(Fault { place, message, .. }) = fault.take() {
            hook(reactor, &Unhandled { place, message });
            reactor.promises.unhandled.get_or_insert(hook);
        }
    };
    // A stopped loop drops it, which reports it.
    continuations.push(place, Closure::new(notify));
}

/// Reports the rejection of a promise of which only the value was awaited.
pub(crate) fn report_unhandled<E: fmt::Debug>(
    reactor: &Reactor,
    place: &'static Location<'static>,
    rejected: &Rejected<E>,
) {
    let message = match rejected {
        Rejected::Failed(error) => format!("{error:?}"),
        Rejected::Abandoned => Rejected::<&str>::Abandoned.to_string(),
        Rejected::TimedOut(limit) => Rejected::<&str>::TimedOut(*limit).to_string(),
        // The panic has already been reported to the fault hook.
        Rejected::Panicked(_) => return,
    };
    report(&reactor.ticks.continuations, place, message);
}

impl Reactor {
    /// Calls `hook` for every promise that is rejected and dropped without being handled. There is one such hook.
    /// Without it, an unhandled rejection is a [fault](Reactor::on_fault). A hook that panics is not called again.
    pub fn on_unhandled_rejection(&mut self, hook: impl FnMut(&mut Reactor, &Unhandled) + 'static) {
        self.promises.unhandled = Some(Box::new(hook));
    }
}
