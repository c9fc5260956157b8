//! A queue between threads and loops.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::composers::waiters::{Line, Refused};
use crate::{Promise, Reactor, Rejected};

/// Items on one side, those who wait for them on the other, both first in, first out.
///
/// It may be cloned, sent and shared freely, if its items may be sent: any thread [pushes](Queue::push), and any loop
/// [pops](Queue::pop), each on its own. Several loops that pop from one queue share the work.
///
/// An item is handed to exactly one popper, the one that has waited longest. If that one goes before it has got to the item
/// (its promise is dropped, its pop [cancelled](Queue::cancel_pop), or its reactor dropped), the next one gets it, and so no
/// item is lost.
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
    line: Arc<Line<T, QueueClosed>>,
    bound: usize,
}

/// The queue is closed, and nothing is left in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pop from a queue: it is closed, and empty")]
pub struct QueueClosed;

/// Why a queue did not take an item, which comes back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal<T> {
    /// As many items as it is [bounded](Queue::bounded) to wait already.
    #[error("push to a queue: it is full")]
    Full(T),
    /// It is [closed](Queue::close).
    #[error("push to a queue: it is closed")]
    Closed(T),
}

impl<T> QueueRefusal<T> {
    /// The item that was refused.
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

/// Names a pop that was begun with [`pop_then`](Queue::pop_then), to [cancel](Queue::cancel_pop) it. It belongs to that queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PopId(u64);

/// What has gone through a queue, and what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Items that were taken in.
    pub pushed: u64,
    /// Items that somebody got.
    pub popped: u64,
    /// Items that were [refused](QueueRefusal).
    pub refused: u64,
    /// Items that are in it.
    pub len: usize,
    /// Poppers that wait.
    pub waiting: usize,
}

impl<T> Queue<T> {
    /// A queue that refuses items while `bound` of them wait already. With a bound of 0 it takes only what somebody waits for.
    ///
    /// ```
    /// # use pelton::{Queue, QueueRefusal};
    /// let queue = Queue::bounded(1);
    /// assert_eq!(queue.push("first"), Ok(()));
    /// assert_eq!(queue.push("second"), Err(QueueRefusal::Full("second")));
    /// assert_eq!(queue.try_pop(), Some("first"));
    /// ```
    pub fn bounded(bound: usize) -> Queue<T> {
        Queue { shared: Arc::new(Shared { line: Line::new(|| QueueClosed), bound }) }
    }

    /// A queue that takes as much as there is memory: for items whose number something else limits.
    ///
    /// ```
    /// let queue = pelton::Queue::unbounded();
    /// assert!((0..10_000).all(|number| queue.push(number).is_ok()));
    /// ```
    pub fn unbounded() -> Queue<T> {
        Queue::bounded(usize::MAX)
    }

    /// Puts an item in: it goes to whoever has waited longest, or waits itself. Nothing is called before this returns, on
    /// whatever thread it is.
    pub fn push(&self, item: T) -> Result<(), QueueRefusal<T>> {
        self.shared.line.put(item, self.shared.bound).map_err(|refused| match refused {
            Refused::Full(item) => QueueRefusal::Full(item),
            Refused::Closed(item) => QueueRefusal::Closed(item),
        })
    }

    /// The item that has waited longest, if there is one. For any thread.
    pub fn try_pop(&self) -> Option<T> {
        self.shared.line.take()
    }

    /// Cancels a pop that waits: its callback is dropped, uncalled. `false` if it has its item, or was cancelled already.
    ///
    /// ```
    /// # use pelton::{Queue, Reactor};
    /// # let mut reactor = Reactor::new()?;
    /// let queue = Queue::bounded(10);
    /// let pop = queue.pop_then(&mut reactor, |_, _| unreachable!("it is cancelled"));
    /// assert!(queue.cancel_pop(pop));
    /// assert_eq!(queue.push("for somebody else"), Ok(()));
    /// # reactor.turn(Some(std::time::Duration::ZERO))?;
    /// assert_eq!(queue.try_pop(), Some("for somebody else"));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn cancel_pop(&self, id: PopId) -> bool {
        self.shared.line.withdraw(id.0)
    }

    /// Takes no more items. Those who wait are told that it is [closed](QueueClosed); what is in it can still be popped, and
    /// then everybody is told so. Also when the last clone is dropped. `false` if it was closed before.
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
        self.shared.line.close()
    }

    /// Whether it takes no more items.
    pub fn is_closed(&self) -> bool {
        self.shared.line.standing().closed
    }

    /// How many items wait.
    pub fn len(&self) -> usize {
        self.shared.line.standing().stock
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What has gone through it, and what is in it.
    pub fn stats(&self) -> QueueStats {
        let standing = self.shared.line.standing();
        QueueStats {
            pushed: standing.counts.put,
            popped: standing.counts.taken,
            refused: standing.counts.refused,
            len: standing.stock,
            waiting: standing.waiting,
        }
    }
}

impl<T: 'static> Queue<T> {
    /// A promise of the next item, on this loop. Those who wait are served in the order in which they came.
    ///
    /// Dropping the promise leaves the line, at once; if it was settled by then, the item goes to the next. So a task that awaits
    /// it may be cancelled. Once something is attached to it, the item goes there: to give up waiting then, say
    /// [`pop_within`](Queue::pop_within) instead of [`timeout`](Promise::timeout), which would drop an item that comes later.
    #[track_caller]
    pub fn pop(&self, reactor: &mut Reactor) -> Promise<T, QueueClosed> {
        self.wait(reactor, Location::caller(), None).1
    }

    /// [`pop`](Queue::pop) that leaves the line when `limit` is over, with [`Rejected::TimedOut`].
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

    /// [`pop`](Queue::pop) with a callback, which can be [cancelled](Queue::cancel_pop). It is called from the tick queue, never
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
        self.shared.line.wait(reactor, place, limit, |item| item, |item| item)
    }
}

/// Another way to the same queue.
impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Nobody can push any more, so nobody needs to wait.
        self.line.close();
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
