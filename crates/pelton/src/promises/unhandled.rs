//! Rejections that nobody handled.

use std::fmt;
use std::panic::Location;

use pelton_sync::Closure;

use super::{Continuations, Rejected};
use crate::observe::fault::Undelivered;
use crate::{Fault, FaultKind, Reactor};

/// A promise was rejected, and whoever had it dropped it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unhandled {
    /// Where the promise was made: the last one of its chain.
    pub place: &'static Location<'static>,
    /// What it was rejected with.
    pub message: String,
}

impl fmt::Display for Unhandled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise ({}) was rejected, and nobody handled it: {}", self.place, self.message)
    }
}

pub(super) type Hook = Box<dyn FnMut(&mut Reactor, &Unhandled)>;

/// Reports a rejection. This may be called from any `Drop`, so the hook is called by a tick.
pub(super) fn report(continuations: &Continuations, place: &'static Location<'static>, message: String) {
    let mut fault = Undelivered::new(Fault { kind: FaultKind::Unhandled, label: None, place, message });
    let tell = move |reactor: &mut Reactor| {
        // Taken out while it runs, so that it may replace itself.
        let Some(mut hook) = reactor.promises.unhandled.take() else { return fault.deliver(reactor) };
        if let Some(Fault { place, message, .. }) = fault.take() {
            hook(reactor, &Unhandled { place, message });
            reactor.promises.unhandled.get_or_insert(hook);
        }
    };
    // A loop that has stopped drops it, and that reports it.
    continuations.push(place, Closure::new(tell));
}

/// Reports the rejection of a promise that was awaited for its value only.
pub(crate) fn report_unhandled<E: fmt::Debug>(
    reactor: &Reactor,
    place: &'static Location<'static>,
    rejected: &Rejected<E>,
) {
    let message = match rejected {
        Rejected::Failed(error) => format!("{error:?}"),
        Rejected::Abandoned => Rejected::<&str>::Abandoned.to_string(),
        Rejected::TimedOut(limit) => Rejected::<&str>::TimedOut(*limit).to_string(),
        // The fault hook has been told.
        Rejected::Panicked(_) => return,
    };
    report(&reactor.ticks.continuations, place, message);
}

impl Reactor {
    /// Calls `hook` for every promise that is rejected and dropped without anybody having handled that. There is one such
    /// hook; without it, this is a [fault](Reactor::on_fault). One that panics is not called again.
    pub fn on_unhandled_rejection(&mut self, hook: impl FnMut(&mut Reactor, &Unhandled) + 'static) {
        self.promises.unhandled = Some(Box::new(hook));
    }
}
