//! Active checks: connects to each target from time to time.

use std::sync::Arc;
use std::time::Duration;

use pelton::{Chunk, Connection, Endpoint, Io, Limit, Reactor, Reason};

use super::targets::Targets;

/// Connects, and closes again.
struct Check {
    targets: Arc<Targets>,
    index: usize,
    accepted: bool,
}

impl Connection for Check {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.accepted = true;
        io.close();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        if reactor.stopping() {
            return;
        }
        report(&self.targets, self.index, self.accepted, &reason.to_string());
    }
}

fn report(targets: &Targets, index: usize, accepted: bool, reason: &str) {
    if targets.checked(index, accepted) {
        let target = &targets.all[index].endpoint;
        match accepted {
            true => tracing::warn!(%target, "a target is up again"),
            false => tracing::warn!(%target, reason, "a target is down"),
        }
    }
}

/// Checks all targets at this interval. A check takes at most `patience`.
pub fn start(reactor: &mut Reactor, targets: &Arc<Targets>, interval: Duration, patience: Duration) {
    let targets = targets.clone();
    check_all(reactor, &targets, patience);
    reactor.every(interval, move |reactor, _| check_all(reactor, &targets, patience));
}

fn check_all(reactor: &mut Reactor, targets: &Arc<Targets>, patience: Duration) {
    for (index, target) in targets.all.iter().enumerate() {
        let check = Check { targets: targets.clone(), index, accepted: false };
        let started = match target.endpoint.clone() {
            Endpoint::Address(address) => reactor.connect(&address, check),
            name => reactor.connect_to(name, check),
        };
        match started {
            Ok(id) => {
                if let Some(mut io) = reactor.connection(id) {
                    io.set_limit(Limit::Connect, Some(patience));
                }
            }
            Err(error) => report(targets, index, false, &error.to_string()),
        }
    }
}
