//! The peers' sets of timers.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::unconstrained;
use tokio::time::{Instant, advance};
use tokio_util::time::delay_queue::{DelayQueue, Key};

use super::{Callback, Fire, Timers, Work};

pub const DELAY_QUEUE: &str = "tokio-util DelayQueue";
pub const BINARY_HEAP: &str = "std BinaryHeap";

/// tokio-util's wheel, on a runtime with a paused clock.
pub struct Delayed {
    queue: DelayQueue<Callback>,
    start: Instant,
    runtime: Runtime,
}

impl Delayed {
    pub fn new() -> Result<Self> {
        let runtime =
            Builder::new_current_thread().enable_time().start_paused(true).build().context("build a tokio runtime")?;
        let (queue, start) = {
            let _inside = runtime.enter();
            (DelayQueue::new(), Instant::now())
        };
        Ok(Self { queue, start, runtime })
    }
}

impl Timers for Delayed {
    type Key = Key;

    fn insert(&mut self, deadline: u64, work: Work) -> Key {
        // The queue arms a sleep for its earliest entry, which needs its runtime: two thread-local stores.
        let _inside = self.runtime.enter();
        self.queue.insert_at(Box::new(move || work.run()), self.start + Duration::from_nanos(deadline))
    }

    fn cancel(&mut self, key: Key) -> Option<bool> {
        let _inside = self.runtime.enter();
        Some(self.queue.try_remove(&key).is_some())
    }
}

impl Fire for Delayed {
    fn fire(&mut self, readings: &[u64]) {
        let queue = &mut self.queue;
        // Unconstrained, because the cooperative budget would reschedule every 128th poll.
        self.runtime.block_on(unconstrained(async move {
            let mut now = 0;
            for &reading in readings {
                advance(Duration::from_nanos(reading - now)).await;
                now = reading;
                while let Poll::Ready(Some(expired)) = poll_fn(|cx| Poll::Ready(queue.poll_expired(cx))).await {
                    expired.into_inner()();
                }
            }
        }));
    }
}

/// A heap of deadlines. A heap cannot cancel in the middle.
#[derive(Default)]
pub struct Heap {
    heap: BinaryHeap<Reverse<Entry>>,
    set: u64,
}

struct Entry {
    deadline: u64,
    /// Timers with the same deadline fire in the order they were set.
    order: u64,
    callback: Callback,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.deadline, self.order).cmp(&(other.deadline, other.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl Timers for Heap {
    type Key = ();

    fn insert(&mut self, deadline: u64, work: Work) {
        self.set += 1;
        self.heap.push(Reverse(Entry { deadline, order: self.set, callback: Box::new(move || work.run()) }));
    }

    fn cancel(&mut self, (): ()) -> Option<bool> {
        None
    }
}

impl Fire for Heap {
    fn fire(&mut self, readings: &[u64]) {
        for &now in readings {
            while self.heap.peek().is_some_and(|Reverse(first)| first.deadline <= now) {
                if let Some(Reverse(entry)) = self.heap.pop() {
                    (entry.callback)();
                }
            }
        }
    }
}

/// A tree of deadlines: slower to set than a heap, but it can cancel.
#[derive(Default)]
pub struct Tree {
    tree: BTreeMap<(u64, u64), Callback>,
    set: u64,
}

impl Timers for Tree {
    type Key = (u64, u64);

    fn insert(&mut self, deadline: u64, work: Work) -> Self::Key {
        self.set += 1;
        let key = (deadline, self.set);
        self.tree.insert(key, Box::new(move || work.run()));
        key
    }

    fn cancel(&mut self, key: Self::Key) -> Option<bool> {
        Some(self.tree.remove(&key).is_some())
    }
}

impl Fire for Tree {
    fn fire(&mut self, readings: &[u64]) {
        for &now in readings {
            while let Some(first) = self.tree.first_entry()
                && first.key().0 <= now
            {
                first.remove()();
            }
        }
    }
}
