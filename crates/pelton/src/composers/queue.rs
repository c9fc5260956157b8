//! A queue between threads and loops.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::composers::waiters::{Refused, Waiters};
use crate::{Promise, Reactor, Rejected};

/// A first-in, first-out queue of items, with consumers that are served in the order in which they came.
///
/// A queue can be cloned, and it can be sent and shared if its items are `Send`. Any thread can [push](Queue::push),
/// and any loop can [pop](Queue::pop). Several loops that pop from one queue share the work.
///
/// Each item is delivered to exactly one consumer, the one that has waited longest. If that consumer goes away before
/// it has picked up the item (its promise is dropped, its pop [cancelled](Queue::cancel_pop), or its reactor dropped),
/// the item goes to the next one. No item is lost.
///
/// ```
/// # use pelton::{Queue, Reactor};
/// let mut reactor = Reactor::new()?;
/// let orders = Queue::bounded(100);
/// let counter = orders.clone();
/// let waiter = std::thread::spawn(move || ["tea", "cake"].map(|order| counter.push(order).is_ok()));
/// orders.pop(&mut reactor).then(move |reactor, first| orders.pop(reactor).map(move |second| (first, second))).done(
///     |reactor, served| {
///         assert_eq!(served, Ok(("tea", "cake")));
///         reactor.stop();
///     },
/// );
/// reactor.run()?;
/// # assert_eq!(waiter.join().unwrap(), [true, true]);
/// # Ok::<(), pelton::Error>(())
/// ```
pub struct Queue<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    waiters: Arc<Waiters<T, QueueClosed>>,
    bound: usize,
}

/// The queue is closed and empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pop from a queue: it is closed and empty")]
pub struct QueueClosed;

/// The error returned when an item cannot be pushed. It gives the item back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal<T> {
    /// The queue holds as many items as its [bound](Queue::bounded) allows.
    #[error("push to a queue: it is full")]
    Full(T),
    /// The queue is [closed](Queue::close).
    #[error("push to a queue: it is closed")]
    Closed(T),
}

impl<T> QueueRefusal<T> {
    /// Returns the item.
    pub fn into_inner(self) -> T {
        match self {
            QueueRefusal::Full(item) | QueueRefusal::Closed(item) => item,
        }
    }
}

impl<T> fmt::Debug for QueueRefusal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueRefusal::Full(_) => "Full(..)",
            QueueRefusal::Closed(_) => "Closed(..)",
        })
    }
}

/// Identifies a pop started with [`pop_then`](Queue::pop_then), to [cancel](Queue::cancel_pop) it. Valid for that queue
/// only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PopId(u64);

/// The statistics of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Accepted items.
    pub pushed: u64,
    /// Delivered items.
    pub popped: u64,
    /// [Refused](QueueRefusal) items.
    pub refused: u64,
    /// Items in the queue.
    pub len: usize,
    /// Waiting consumers.
    pub waiting: usize,
}

impl<T> Queue<T> {
    /// Creates a queue that holds at most `bound` items and refuses more. With a bound of 0 it accepts an item only if
    /// a consumer is waiting.
    ///
    /// ```
    /// # use pelton::{Queue, QueueRefusal};
    /// let queue = Queue::bounded(1);
    /// assert_eq!(queue.push("first"), Ok(()));
    /// assert_eq!(queue.push("second"), Err(QueueRefusal::Full("second")));
    /// assert_eq!(queue.try_pop(), Some("first"));
    /// ```
    pub fn bounded(bound: usize) -> Queue<T> {
        Queue { shared: Arc::new(Shared { waiters: Waiters::new(|| QueueClosed), bound }) }
    }

    /// Creates a queue without a bound. Use it when something else limits the number of items.
    ///
    /// ```
    /// let queue = pelton::Queue::unbounded();
    /// assert!((0..10_000).all(|number| queue.push(number).is_ok()));
    /// ```
    pub fn unbounded() -> Queue<T> {
        Queue::bounded(usize::MAX)
    }

    /// Pushes an item. It goes to the consumer that has waited longest, or into the queue. No callback runs before this
    /// returns, on any thread.
    pub fn push(&self, item: T) -> Result<(), QueueRefusal<T>> {
        self.shared.waiters.put(item, self.shared.bound).map_err(|refused| match refused {
            Refused::Full(item) => QueueRefusal::Full(item),
            Refused::Closed(item) => QueueRefusal::Closed(item),
        })
    }

    /// Pops the oldest item, if there is one. Can be called on any thread.
    pub fn try_pop(&self) -> Option<T> {
        self.shared.waiters.take()
    }

    /// Cancels a pop. Its callback is dropped without being called. Returns `false` if the pop has already received its
    /// item or was already cancelled.
    ///
    /// ```
    /// # use pelton::{Queue, Reactor};
    /// # let mut reactor = Reactor::new()?;
    /// let queue = Queue::bounded(10);
    /// let pop = queue.pop_then(&mut reactor, |_, _| unreachable!("the pop is cancelled"));
    /// assert!(queue.cancel_pop(pop));
    /// assert_eq!(queue.push("for somebody else"), Ok(()));
    /// # reactor.turn(Some(std::time::Duration::ZERO))?;
    /// assert_eq!(queue.try_pop(), Some("for somebody else"));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn cancel_pop(&self, id: PopId) -> bool {
        self.shared.waiters.withdraw(id.0)
    }

    /// Closes the queue, which then refuses further items. Waiting consumers are rejected with [`QueueClosed`]. Items
    /// in the queue can still be popped; once it is empty, pops are rejected as well. Dropping the last clone also
    /// closes the queue. Returns `false` if it was already closed.
    ///
    /// ```
    /// # use pelton::{Queue, QueueClosed, QueueRefusal, Reactor, Rejected};
    /// # let mut reactor = Reactor::new()?;
    /// let queue = Queue::bounded(10);
    /// assert_eq!(queue.push(1), Ok(()));
    /// queue.close();
    /// assert_eq!(queue.push(2), Err(QueueRefusal::Closed(2)));
    /// queue.pop_then(&mut reactor, |_, rest| assert_eq!(rest, Ok(1)));
    /// queue.pop_then(&mut reactor, |reactor, end| {
    ///     assert_eq!(end, Err(Rejected::Failed(QueueClosed)));
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn close(&self) -> bool {
        self.shared.waiters.close()
    }

    /// Returns whether the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.shared.waiters.snapshot().closed
    }

    /// Returns how many items are in the queue.
    pub fn len(&self) -> usize {
        self.shared.waiters.snapshot().stock
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the queue's statistics.
    pub fn stats(&self) -> QueueStats {
        let snapshot = self.shared.waiters.snapshot();
        QueueStats {
            pushed: snapshot.counts.put,
            popped: snapshot.counts.taken,
            refused: snapshot.counts.refused,
            len: snapshot.stock,
            waiting: snapshot.waiting,
        }
    }
}

impl<T: 'static> Queue<T> {
    /// Returns a promise of the next item, on this loop. Consumers are served in the order in which they came.
    ///
    /// Dropping the promise leaves the queue at once. If the promise was already settled, its item goes to the next
    /// consumer, so a task that awaits it can be cancelled safely. Once a callback is attached, the item goes to the
    /// callback. Use [`pop_within`](Queue::pop_within) to limit the wait: [`timeout`](Promise::timeout) would drop an
    /// item that arrives later.
    #[track_caller]
    pub fn pop(&self, reactor: &mut Reactor) -> Promise<T, QueueClosed> {
        self.wait(reactor, Location::caller(), None).1
    }

    /// Pops with a time limit. After `limit` the promise rejects with [`Rejected::TimedOut`], and the consumer leaves
    /// the queue.
    ///
    /// ```
    /// # use pelton::{Queue, Reactor, Rejected};
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let queue = Queue::<u32>::bounded(10);
    /// let limit = Duration::from_millis(1);
    /// let late = queue.clone();
    /// queue.pop_within(&mut reactor, limit).done(move |reactor, item| {
    ///     assert_eq!(item, Err(Rejected::TimedOut(limit)));
    ///     assert_eq!(late.push(1), Ok(()));
    ///     assert_eq!(late.len(), 1);
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn pop_within(&self, reactor: &mut Reactor, limit: Duration) -> Promise<T, QueueClosed> {
        self.wait(reactor, Location::caller(), Some(limit)).1
    }

    /// Pops with a callback, which can be [cancelled](Queue::cancel_pop). The callback runs from the tick queue, never
    /// before this returns.
    #[track_caller]
    pub fn pop_then(
        &self,
        reactor: &mut Reactor,
        then: impl FnOnce(&mut Reactor, Result<T, Rejected<QueueClosed>>) + 'static,
    ) -> PopId {
        let (ticket, promise) = self.wait(reactor, Location::caller(), None);
        promise.sink(Location::caller(), then);
        PopId(ticket)
    }

    fn wait(
        &self,
        reactor: &mut Reactor,
        place: &'static Location<'static>,
        limit: Option<Duration>,
    ) -> (u64, Promise<T, QueueClosed>) {
        self.shared.waiters.wait(reactor, place, limit, |item| item, |item| item)
    }
}

/// Clones refer to the same queue.
impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Nothing can be pushed any more, so nobody needs to wait.
        self.waiters.close();
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
