//! Ticks: callbacks that run as soon as possible, but not at once.

pub(crate) mod idle;
pub(crate) mod tick_loop;

use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;

use pelton_sync::Closure;

use crate::Reactor;
use crate::promises::Continuations;
use crate::reactor::callback::{CallbackKind, Site};
use crate::threads::handle::Post;

/// After a burst, a queue with capacity for more ticks than this releases its memory. 160 KiB.
const TICKS_KEPT: usize = 4096;

/// How deep continuations may nest when they bypass the queue. Each takes a few hundred bytes of stack.
const TICKS_NESTED: usize = 16;

pub(crate) struct Tick {
    pub(crate) place: &'static Location<'static>,
    pub(crate) closure: Closure<Reactor>,
    /// How many posts had been made when it was queued. Those run before it.
    pub(crate) after_posts: usize,
}

/// The queued ticks, and how many may still run.
pub(crate) struct Ticks {
    queue: VecDeque<Tick>,
    /// Continuations of promises, which follow the queue.
    pub(crate) continuations: Rc<Continuations>,
    per_turn: usize,
    /// How many may still run in this turn.
    left: usize,
}

impl Ticks {
    pub(crate) fn new(per_turn: usize, continuations: Rc<Continuations>) -> Ticks {
        Ticks { queue: VecDeque::new(), continuations, per_turn, left: 0 }
    }

    /// Resets the number of ticks that may run in a turn.
    /// Lets no more ticks run in this turn.
    pub(crate) fn end_turn(&mut self) {
        self.left = 0;
    }

    pub(crate) fn begin_turn(&mut self) {
        self.left = self.per_turn;
    }

    /// Returns the number of queued ticks, including continuations.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.continuations.len()
    }

    /// Returns whether no ticks are queued. Continuations count once they are [queued](Ticks::queue_continuations).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Moves waiting continuations to the queue, ahead of what is queued next.
    #[inline]
    pub(crate) fn queue_continuations(&mut self) {
        if !self.continuations.is_empty() {
            self.continuations.append_to(&mut self.queue);
        }
    }

    /// Queues ticks in order.
    pub(crate) fn append(&mut self, ticks: &mut VecDeque<Tick>) {
        self.queue_continuations();
        self.queue.append(ticks);
    }

    /// Queues the continuation of work in progress ahead of everything else.
    pub(crate) fn continue_first(&mut self, place: &'static Location<'static>, closure: Closure<Reactor>) {
        let tick = Tick { place, closure, after_posts: 0 };
        if self.queue.is_empty() {
            self.continuations.push_front(tick);
        } else {
            self.queue.push_front(tick);
        }
    }

    /// Switches to a new post queue, which counts from 0. The posts left in the old one are queued here.
    pub(crate) fn posts_begin_anew(&mut self, waiting: Vec<Post>) {
        self.queue_continuations();
        self.queue.iter_mut().for_each(|tick| tick.after_posts = 0);
        self.queue.extend(waiting.into_iter().map(Tick::from));
    }

    /// Takes all queued ticks, to drop them.
    pub(crate) fn take_queued(&mut self) -> VecDeque<Tick> {
        std::mem::take(&mut self.queue)
    }

    /// Drops all ticks. The loop does not run again.
    pub(crate) fn close(&mut self) {
        drop(self.take_queued());
        self.continuations.close();
    }

    /// Releases the memory of a burst.
    fn shrink(&mut self) {
        self.continuations.shrink(TICKS_KEPT);
        if self.queue.is_empty() && self.queue.capacity() > TICKS_KEPT {
            self.queue.shrink_to(TICKS_KEPT / 4);
        }
    }
}

impl From<Post> for Tick {
    fn from(post: Post) -> Tick {
        Tick { place: post.place, closure: post.closure.into(), after_posts: 0 }
    }
}

impl Reactor {
    /// Runs `f` in the next tick phase, after everything that was queued before it. Does not allocate if `f` captures
    /// at most 24 bytes.
    ///
    /// A tick that queues another does not starve the rest: a tick queued during a tick phase waits for the next turn.
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
        self.tick_from(Location::caller(), Closure::new(f));
    }

    /// Does the same as [`next_tick`](Reactor::next_tick), for a callback registered at `place`.
    pub(crate) fn tick_from(&mut self, place: &'static Location<'static>, closure: Closure<Reactor>) {
        if self.is_over() {
            return;
        }
        self.ticks.queue_continuations();
        self.ticks.queue.push_back(Tick { place, closure, after_posts: self.shared.posted() });
    }

    /// Runs `f` at once, as [`Handle::schedule`](crate::Handle::schedule) does on the loop's thread. It exists for code
    /// that works with either type.
    pub fn schedule<T>(&mut self, f: impl FnOnce(&mut Reactor) -> T) -> T {
        f(self)
    }

    /// Returns whether there may be a tick, post or continuation to run.
    #[inline]
    pub(crate) fn has_ticks(&self) -> bool {
        !self.ticks.is_empty() || !self.ticks.continuations.is_empty() || !self.posts.is_empty()
    }

    /// Runs the tick phase: the ticks, posts and continuations that are queued when it begins.
    pub(crate) fn run_ticks(&mut self) {
        // Ticks are in `ticks` and posts in `posts`, but they form one queue: each tick knows how many posts precede
        // it.
        let posted = self.shared.posted();
        self.ticks.begin_turn();
        self.ticks.queue_continuations();
        for _ in 0..self.ticks.queue.len() {
            let after_posts = self.ticks.queue.front().map_or(0, |tick| tick.after_posts);
            self.run_posts(after_posts.min(posted));
            if self.ticks.left == 0 {
                break;
            }
            if let Some(tick) = self.ticks.queue.pop_front() {
                self.call_tick(tick.place, |reactor| tick.closure.call(reactor));
            }
        }
        self.run_posts(posted);
        // A chain of promises continues until something else is queued before it. One turn per link would be one system
        // call per link.
        while self.run_continuation() {}
        self.ticks_finished();
        self.ticks.shrink();
    }

    /// Runs the oldest continuation if nothing is queued before it. Returns `false` if there is none, or no more ticks
    /// may run.
    pub(crate) fn run_continuation(&mut self) -> bool {
        if self.ticks.left == 0 || !self.ticks.queue.is_empty() {
            return false;
        }
        let Some(Tick { place, closure, .. }) = self.ticks.continuations.pop(self.posts.taken()) else { return false };
        self.call_tick(place, |reactor| closure.call(reactor));
        true
    }

    /// Runs posts up to number `end`, while ticks may run. A post that its thread is still writing runs later, and so
    /// do those behind it.
    fn run_posts(&mut self, end: usize) {
        while self.ticks.left > 0
            && self.posts.taken() < end
            && let Some(post) = self.posts.pop()
        {
            self.meter.counters.posts += 1;
            self.call_tick(post.place, |reactor| post.closure.call(reactor));
        }
    }

    #[inline]
    fn call_tick(&mut self, place: &'static Location<'static>, f: impl FnOnce(&mut Reactor)) {
        self.ticks.left -= 1;
        self.call_once(Site { kind: CallbackKind::Tick, place, source: None }, f);
    }

    /// Returns whether a tick queued now would run next, so that it can run [at once](Reactor::run_at_once). Only a
    /// tick that has nothing left to do may call this.
    #[inline]
    pub(crate) fn comes_next(&self) -> bool {
        self.ticks.left > 0
            && self.callbacks.depth() <= TICKS_NESTED
            && self.ticks.queue.is_empty()
            && self.ticks.continuations.is_empty()
            && self.posts.taken() == self.shared.posted()
            // Nested ticks cannot be timed separately.
            && self.watchdog.is_none()
            && self.meter.times_ticks_together()
    }

    /// Runs a tick inside another, if it [comes next](Reactor::comes_next).
    #[inline]
    pub(crate) fn run_at_once(&mut self, place: &'static Location<'static>, f: impl FnOnce(&mut Reactor)) {
        self.call_tick(place, f);
    }
}
