//! Jobs in memory: the rules, without clock, disk or network.
//!
//! [`Ledger::apply`] is a function of the ledger, the time and the request only. So the file store can write requests to its log
//! and repeat them after a crash. `queue.rs` has the jobs of one queue.

mod queue;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::queue::Queue;
use crate::Error;
use crate::store::{Request, Response};

/// All queues.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    queues: BTreeMap<String, Queue>,
    /// The last number given to a run. It never falls, whatever clocks do.
    fence: u64,
    /// The latest time that was seen, in milliseconds since 1970.
    now: u64,
}

impl Ledger {
    /// Does what is asked, or nothing if it is an error.
    pub(crate) fn apply(&mut self, now: u64, request: Request) -> Result<Response, Error> {
        // A clock that was set back must not make leases longer.
        self.now = self.now.max(now);
        let now = self.now;
        let queue = match request {
            Request::Queues => return Ok(Response::Queues(self.queues.keys().cloned().collect())),
            Request::Recover => {
                return Ok(Response::Count(self.queues.values_mut().map(Queue::end_leases).sum()));
            }
            Request::Enqueue { ref queue, .. }
            | Request::Take(crate::store::Take { ref queue, .. })
            | Request::Finish { ref queue, .. }
            | Request::Renew { ref queue, .. }
            | Request::Progress { ref queue, .. }
            | Request::Cancel { ref queue, .. }
            | Request::Requeue { ref queue, .. }
            | Request::Purge { ref queue, .. }
            | Request::Repeat { ref queue, .. }
            | Request::Configure { ref queue, .. }
            | Request::Leave { ref queue, .. }
            | Request::Inspect { ref queue, .. }
            | Request::List { ref queue, .. }
            | Request::Stats { ref queue } => queue.clone(),
        };
        if request.is_read_only() || matches!(request, Request::Take(_) | Request::Leave { .. }) {
            // Asking about a queue does not create it.
            return match self.queues.get_mut(&queue) {
                Some(found) => found.apply(now, &mut self.fence, request),
                None => Queue::default().apply(now, &mut self.fence, request),
            };
        }
        self.queues.entry(queue).or_default().apply(now, &mut self.fence, request)
    }

    /// Returns whether applying the request would change anything. If not, it need not be stored.
    pub(crate) fn changes(&self, now: u64, request: &Request) -> bool {
        match request {
            Request::Take(take) => self.queues.get(&take.queue).is_some_and(|queue| queue.has_work(now, take)),
            Request::Leave { .. } => false,
            request => !request.is_read_only(),
        }
    }

    /// Returns whether a job of the queue is ready.
    pub(crate) fn rings(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(Queue::has_ready)
    }

    /// Returns when the next job of the queue that waits for its time is due.
    pub(crate) fn next_due(&self, queue: &str) -> Option<u64> {
        self.queues.get(queue).and_then(Queue::next_due)
    }
}

impl Request {
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Request::Inspect { .. } | Request::List { .. } | Request::Stats { .. } | Request::Queues)
    }

    /// Returns the queue whose workers may have something to do after this request.
    pub(crate) fn may_ring(&self) -> Option<&str> {
        match self {
            Request::Enqueue { queue, .. }
            | Request::Take(crate::store::Take { queue, .. })
            | Request::Finish { queue, .. }
            | Request::Cancel { queue, .. }
            | Request::Requeue { queue, .. }
            | Request::Purge { queue, .. }
            | Request::Repeat { queue, .. }
            | Request::Configure { queue, .. }
            | Request::Leave { queue, .. } => Some(queue),
            _ => None,
        }
    }
}
