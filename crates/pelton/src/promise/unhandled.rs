//! Rejections that nobody handled.

use std::fmt;
use std::panic::Location;

use pelton_sync::Closure;

use super::{Continuations, Rejected};
use crate::Reactor;

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

/// Logged in the end, unless the hook took it: a loop that stops drops what waits.
struct Report(Option<Unhandled>);

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(unhandled) = &self.0 {
            tracing::warn!("{unhandled}");
        }
    }
}

/// Reports a rejection. This may be called from any `Drop`, so the hook is called by a tick.
pub(super) fn report(continuations: &Continuations, place: &'static Location<'static>, message: String) {
    let mut report = Report(Some(Unhandled { place, message }));
    if continuations.is_closed() {
        return;
    }
    let tell = move |reactor: &mut Reactor| {
        // Taken out while it runs, so that it may replace itself.
        if let Some(mut hook) = reactor.promises.unhandled.take()
            && let Some(unhandled) = report.0.take()
        {
            hook(reactor, &unhandled);
            reactor.promises.unhandled.get_or_insert(hook);
        }
    };
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
    report(&reactor.continuations, place, message);
}

impl Reactor {
    /// Calls `hook` for every promise that is rejected and dropped without anybody having handled that. There is one such
    /// hook; by default, this is logged. One that panics is not called again.
    pub fn on_unhandled_rejection(&mut self, hook: impl FnMut(&mut Reactor, &Unhandled) + 'static) {
        self.promises.unhandled = Some(Box::new(hook));
    }
}
