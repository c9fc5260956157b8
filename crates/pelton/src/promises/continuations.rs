//! Continuations on their way into the tick queue.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use pelton_sync::Closure;

use crate::Reactor;
use crate::threads::handle::Shared;
use crate::ticks::Tick;

/// Continuations that have come up since the last tick was queued. Promises are settled by code that may not have the reactor
/// at hand, a `Drop` for one; this is what they reach instead.
///
/// Whoever queues a tick puts these into the queue first, so all are in one order.
pub(crate) struct Continuations {
    queue: RefCell<VecDeque<Tick>>,
    /// Whether there are any: a queue of ticks pays no more than a look at this for them.
    waiting: Cell<bool>,
    /// The loop does not run again.
    closed: Cell<bool>,
    shared: Arc<Shared>,
}

impl Continuations {
    pub(crate) fn new(shared: Arc<Shared>) -> Rc<Continuations> {
        let (waiting, closed) = (Cell::new(false), Cell::new(false));
        Rc::new(Continuations { queue: RefCell::default(), waiting, closed, shared })
    }

    /// Inlined, as what it calls is: a closure that is written word by word and moved at once has the processor wait.
    #[inline]
    pub(crate) fn push(&self, place: &'static Location<'static>, closure: Closure<Reactor>) {
        if self.closed.get() {
            return;
        }
        let after_posts = self.shared.latest().posted();
        self.queue.borrow_mut().push_back(Tick { place, closure, after_posts });
        self.waiting.set(true);
    }

    /// The oldest, unless there are posts before it that have not been taken.
    #[inline]
    pub(crate) fn pop(&self, posts_taken: usize) -> Option<Tick> {
        let mut queue = self.queue.borrow_mut();
        let tick = queue.pop_front_if(|tick| tick.after_posts <= posts_taken);
        self.waiting.set(!queue.is_empty());
        tick
    }

    /// Moves all that wait to the end of a queue.
    #[cold]
    pub(crate) fn append_to(&self, queue: &mut VecDeque<Tick>) {
        self.waiting.set(false);
        queue.append(&mut self.queue.borrow_mut());
    }

    pub(crate) fn push_front(&self, tick: Tick) {
        self.queue.borrow_mut().push_front(tick);
        self.waiting.set(true);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.waiting.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.borrow().len()
    }

    /// The loop does not run again: drops what waits.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.waiting.set(false);
        drop(self.queue.take());
    }

    /// Gives back the memory of a burst that is over.
    pub(crate) fn shrink(&self, kept: usize) {
        let mut queue = self.queue.borrow_mut();
        if queue.is_empty() && queue.capacity() > kept {
            queue.shrink_to(kept / 4);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }
}
