//! Ticks: what runs as soon as possible, but not now.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use pelton_sync::Closure;

use crate::Reactor;
use crate::callback::{CallbackKind, Site};
use crate::handle::{Post, Shared};

/// After a burst, a queue with room for more than this many ticks gives its memory back. 160 KiB.
const TICKS_KEPT: usize = 4096;

pub(crate) struct Tick {
    pub(crate) place: &'static Location<'static>,
    pub(crate) closure: Closure<Reactor>,
    /// How many posts there had been when it was queued: those come before it.
    pub(crate) after_posts: usize,
}

impl From<Post> for Tick {
    fn from(post: Post) -> Tick {
        Tick { place: post.place, closure: post.closure.into(), after_posts: 0 }
    }
}

/// The ticks that wait. Shared with promises, which are settled by code that may not have the reactor at hand: a `Drop`, for
/// one.
pub(crate) struct TickQueue {
    ticks: RefCell<VecDeque<Tick>>,
    shared: Arc<Shared>,
    /// A tick was queued since the phase began. If none was, what waits after it are continuations.
    ticked: Cell<bool>,
    /// The loop does not run again.
    closed: Cell<bool>,
}

/// Which end of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Front,
    Back,
}

impl TickQueue {
    pub(crate) fn new(shared: Arc<Shared>) -> Rc<TickQueue> {
        let (ticked, closed) = (Cell::new(false), Cell::new(false));
        Rc::new(TickQueue { ticks: RefCell::default(), shared, ticked, closed })
    }

    pub(crate) fn push_back(&self, tick: Tick) {
        self.ticked.set(true);
        self.ticks.borrow_mut().push_back(tick);
    }

    /// Queues what a promise has to do. At the front goes the rest of what has begun.
    pub(crate) fn push_continuation(&self, end: End, place: &'static Location<'static>, closure: Closure<Reactor>) {
        match end {
            End::Front => self.ticks.borrow_mut().push_front(Tick { place, closure, after_posts: 0 }),
            End::Back => {
                let after_posts = self.shared.latest().posted();
                self.ticks.borrow_mut().push_back(Tick { place, closure, after_posts });
            }
        }
    }

    pub(crate) fn append(&self, ticks: &mut VecDeque<Tick>) {
        self.ticked.set(true);
        self.ticks.borrow_mut().append(ticks);
    }

    pub(crate) fn extend(&self, ticks: impl IntoIterator<Item = Tick>) {
        self.ticked.set(true);
        self.ticks.borrow_mut().extend(ticks);
    }

    fn pop_front(&self) -> Option<Tick> {
        self.ticks.borrow_mut().pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.ticks.borrow().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ticks.borrow().is_empty()
    }

    /// How many posts come before the oldest.
    pub(crate) fn after_posts(&self) -> usize {
        self.ticks.borrow().front().map_or(0, |tick| tick.after_posts)
    }

    /// Begins a phase; says how many belong to it.
    pub(crate) fn begin_phase(&self) -> usize {
        self.ticked.set(false);
        self.len()
    }

    /// Whether what waits, after everything that belongs to the phase has run, are continuations and nothing else.
    pub(crate) fn has_continuations_only(&self) -> bool {
        !self.ticked.get() && !self.is_empty()
    }

    /// After a fork, the posts count from 0.
    pub(crate) fn forget_posts(&self) {
        self.ticks.borrow_mut().iter_mut().for_each(|tick| tick.after_posts = 0);
    }

    /// The loop does not run again: drops what waits.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        // What is dropped may queue more, which nobody will run.
        while !self.is_empty() {
            drop(self.ticks.take());
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Gives back the memory of a burst that is over.
    fn shrink(&self) {
        let mut ticks = self.ticks.borrow_mut();
        if ticks.is_empty() && ticks.capacity() > TICKS_KEPT {
            ticks.shrink_to(TICKS_KEPT / 4);
        }
    }
}

impl Reactor {
    /// Runs `f` in the next tick phase, after everything that was queued before it. Allocates nothing if `f` captures at
    /// most 24 bytes.
    ///
    /// A tick that queues another does not starve the rest: what is queued during a tick phase waits for the next turn.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut reactor = Reactor::new()?;
    /// reactor.next_tick(|reactor| {
    ///     reactor.next_tick(|reactor| reactor.stop());
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn next_tick(&mut self, f: impl FnOnce(&mut Reactor) + 'static) {
        let tick = Tick { place: Location::caller(), closure: Closure::new(f), after_posts: self.shared.posted() };
        self.ticks.push_back(tick);
    }

    /// Runs `f` at once. What [`Handle::schedule`](crate::Handle::schedule) does on the loop's thread, for code that does
    /// not care which of the two it was given.
    pub fn schedule<T>(&mut self, f: impl FnOnce(&mut Reactor) -> T) -> T {
        f(self)
    }

    /// Runs the oldest tick.
    pub(crate) fn run_tick(&mut self) {
        if let Some(tick) = self.ticks.pop_front() {
            let site = Site { kind: CallbackKind::Tick, place: tick.place, source: None };
            self.call_once(site, |reactor| tick.closure.call(reactor));
        }
    }

    /// Runs posts up to the one that is number `end`, but no more than `most`; says how many. One that its thread is still
    /// writing comes later, and so do those behind it.
    pub(crate) fn run_posts(&mut self, end: usize, most: usize) -> usize {
        let mut ran = 0;
        while ran < most
            && self.posts.taken() < end
            && let Some(post) = self.posts.pop()
        {
            ran += 1;
            self.meter.counters.posts += 1;
            let site = Site { kind: CallbackKind::Tick, place: post.place, source: None };
            self.call_once(site, |reactor| post.closure.call(reactor));
        }
        ran
    }

    /// Gives back the memory of a burst that is over.
    pub(crate) fn shrink_ticks(&mut self) {
        self.ticks.shrink();
    }
}
