//! Active checks: connects to each target from time to time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Targets;
use crate::{Chunk, Connection, Endpoint, Io, Limit, Reactor, Reason, TimerId};

/// Connects, and closes again.
struct Check {
    targets: Arc<Targets>,
    number: usize,
    accepted: bool,
}

impl Connection for Check {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.accepted = true;
        io.close();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        self.targets.all()[self.number].checking.store(false, Relaxed);
        if !reactor.stopping() {
            self.targets.report(self.number, self.accepted, &reason.to_string());
        }
    }
}

impl Targets {
    /// Checks now and at this interval whether each target accepts a connection, which may take `patience`. Targets that do not
    /// are not used until they do. Cancelling the timer ends the checks.
    pub fn check_every(self: &Arc<Self>, reactor: &mut Reactor, interval: Duration, patience: Duration) -> TimerId {
        let targets = self.clone();
        targets.check(reactor, patience);
        reactor.every(interval, move |reactor, _| targets.check(reactor, patience))
    }

    fn check(self: &Arc<Self>, reactor: &mut Reactor, patience: Duration) {
        for (number, target) in self.all().iter().enumerate() {
            // One check at a time: those of a target that does not answer would pile up, and the last to fail would be about the time
            // before it came back.
            if target.checking.swap(true, Relaxed) {
                continue;
            }
            let check = Check { targets: self.clone(), number, accepted: false };
            let started = match target.endpoint().clone() {
                Endpoint::Address(address) => reactor.connect(&address, check),
                name => reactor.connect_to(name, check),
            };
            match started {
                Ok(id) => {
                    if let Some(mut io) = reactor.connection(id) {
                        io.set_limit(Limit::Connect, Some(patience));
                    }
                }
                Err(error) => {
                    target.checking.store(false, Relaxed);
                    self.report(number, false, &error.to_string());
                }
            }
        }
    }

    fn report(&self, number: usize, accepted: bool, reason: &str) {
        if self.checked(number, accepted) {
            let target = self.all()[number].endpoint();
            match accepted {
                true => tracing::warn!(%target, "a target is up again"),
                false => tracing::warn!(%target, reason, "a target is down"),
            }
        }
    }
}
