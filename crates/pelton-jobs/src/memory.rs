//! Jobs of one process, kept in memory.

use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pelton::Reactor;

use crate::Error;
use crate::bells::Bells;
use crate::job::millis;
use crate::ledger::Ledger;
use crate::store::{Listening, Request, Response, Ring, Store, Then};

/// Jobs of one process, kept in memory. Clones share them, on any thread, so that several loops can work off one queue:
/// [`Jobs::on`](crate::Jobs::on).
#[derive(Clone, Default)]
pub struct Memory {
    ledger: Arc<Mutex<Ledger>>,
    bells: Bells,
}

impl Memory {
    /// Makes an empty store.
    pub fn new() -> Memory {
        Memory::default()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Store for Memory {
    fn ask(&self, reactor: &mut Reactor, request: Request, then: Then) {
        let answer = {
            let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            apply(&mut ledger, unix_millis(), request, |queue| self.bells.ring(queue))
        };
        reactor.next_tick(|reactor| then(reactor, answer));
    }

    fn listen(&self, reactor: &mut Reactor, queue: &str, _: Duration, ring: Ring) -> Result<Rc<dyn Listening>, Error> {
        Ok(self.bells.listen(reactor, queue, ring))
    }
}

/// Applies a request, and calls `ring` if workers of a queue may have something to do now.
pub(crate) fn apply(
    ledger: &mut Ledger,
    now: u64,
    request: Request,
    ring: impl FnOnce(&str),
) -> Result<Response, Error> {
    let Some(queue) = request.may_ring().map(str::to_owned) else { return ledger.apply(now, request) };
    let due = ledger.next_due(&queue);
    let answer = ledger.apply(now, request)?;
    let took = match &answer {
        Response::Taken(taken) => !taken.jobs.is_empty(),
        _ => true,
    };
    let sooner = ledger.next_due(&queue).is_some_and(|new| due.is_none_or(|due| new < due));
    // A worker that got nothing rings for nobody: the others would get nothing either, and would ring again.
    if took && (sooner || ledger.rings(&queue)) {
        ring(&queue);
    }
    Ok(answer)
}

pub(crate) fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}
