//! Continuations on their way to the tick queue.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use pelton_sync::Closure;

use crate::Reactor;
use crate::threads::handle::Shared;
use crate::ticks::Tick;

/// Continuations queued since the last tick. Code that settles promises may not have the reactor at hand, for
/// example in a `Drop`. It pushes here instead.
///
/// Code that queues a tick first moves these to the tick queue, so that all have one order.
pub(crate) struct Continuations {
    queue: RefCell<VecDeque<Tick>>,
    /// Whether there are any. This is all that the tick queue checks.
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

    /// Inlined, like its callees: moving a closure right after it was written word by word causes a store-forwarding
    /// stall.
    #[inline]
    pub(crate) fn push(&self, place: &'static Location<'static>, closure: Closure<Reactor>) {
        if self.closed.get() {
            return;
        }
        let after_posts = self.shared.latest().posted();
        self.queue.borrow_mut().push_back(Tick { place, closure, after_posts });
        self.waiting.set(true);
    }

    /// Pops the oldest continuation, unless earlier posts have not been taken yet.
    #[inline]
    pub(crate) fn pop(&self, posts_taken: usize) -> Option<Tick> {
        let mut queue = self.queue.borrow_mut();
        let tick = queue.pop_front_if(|tick| tick.after_posts <= posts_taken);
        self.waiting.set(!queue.is_empty());
        tick
    }

    /// Moves all continuations to the end of `queue`.
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

    /// Drops all continuations. The loop does not run again.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.waiting.set(false);
        drop(self.queue.take());
    }

    /// Releases the memory of a burst.
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
