//! Ticks: what runs as soon as possible, but not now.

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

/// After a burst, a queue with room for more than this many ticks gives its memory back. 160 KiB.
const TICKS_KEPT: usize = 4096;

/// Continuations that are called one inside the other, without going through the queue, at most: it is the stack that they
/// take, a few hundred bytes each.
const TICKS_NESTED: usize = 16;

pub(crate) struct Tick {
    pub(crate) place: &'static Location<'static>,
    pub(crate) closure: Closure<Reactor>,
    /// How many posts there had been when it was queued: those come before it.
    pub(crate) after_posts: usize,
}

/// The ticks that wait, and how many may still run.
pub(crate) struct Ticks {
    queue: VecDeque<Tick>,
    /// What promises have queued behind them.
    pub(crate) continuations: Rc<Continuations>,
    per_turn: usize,
    /// How many may still run in this turn.
    left: usize,
}

impl Ticks {
    pub(crate) fn new(per_turn: usize, continuations: Rc<Continuations>) -> Ticks {
        Ticks { queue: VecDeque::new(), continuations, per_turn, left: 0 }
    }

    /// Allows as many ticks as may run in a turn.
    pub(crate) fn begin_turn(&mut self) {
        self.left = self.per_turn;
    }

    /// How many wait, continuations included.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.continuations.len()
    }

    /// Whether none waits. Continuations count once they are [queued](Ticks::queue_continuations).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Puts the continuations that wait into the queue, before what is queued next.
    #[inline]
    pub(crate) fn queue_continuations(&mut self) {
        if !self.continuations.is_empty() {
            self.continuations.append_to(&mut self.queue);
        }
    }

    /// Queues ticks, in order.
    pub(crate) fn append(&mut self, ticks: &mut VecDeque<Tick>) {
        self.queue_continuations();
        self.queue.append(ticks);
    }

    /// Queues the rest of what has begun, before everything else.
    pub(crate) fn continue_first(&mut self, place: &'static Location<'static>, closure: Closure<Reactor>) {
        let tick = Tick { place, closure, after_posts: 0 };
        if self.queue.is_empty() {
            self.continuations.push_front(tick);
        } else {
            self.queue.push_front(tick);
        }
    }

    /// Goes on with a new queue of posts, which counts from 0. What waited in the one before is queued here.
    pub(crate) fn posts_begin_anew(&mut self, waiting: Vec<Post>) {
        self.queue_continuations();
        self.queue.iter_mut().for_each(|tick| tick.after_posts = 0);
        self.queue.extend(waiting.into_iter().map(Tick::from));
    }

    /// Takes out what is queued, to be dropped.
    pub(crate) fn take_queued(&mut self) -> VecDeque<Tick> {
        std::mem::take(&mut self.queue)
    }

    /// The loop does not run again: drops what waits.
    pub(crate) fn close(&mut self) {
        drop(self.take_queued());
        self.continuations.close();
    }

    /// Gives back the memory of a burst that is over.
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
        self.tick_from(Location::caller(), Closure::new(f));
    }

    /// [`next_tick`](Reactor::next_tick), for a callback that was registered at `place`.
    pub(crate) fn tick_from(&mut self, place: &'static Location<'static>, closure: Closure<Reactor>) {
        if self.is_over() {
            return;
        }
        self.ticks.queue_continuations();
        self.ticks.queue.push_back(Tick { place, closure, after_posts: self.shared.posted() });
    }

    /// Runs `f` at once. What [`Handle::schedule`](crate::Handle::schedule) does on the loop's thread, for code that does
    /// not care which of the two it was given.
    pub fn schedule<T>(&mut self, f: impl FnOnce(&mut Reactor) -> T) -> T {
        f(self)
    }

    /// The tick phase: ticks, posts and continuations, as they stand when it begins.
    pub(crate) fn run_ticks(&mut self) {
        // Ticks wait in `ticks` and posts in `posts`, but they are one queue: each tick knows how many posts it is behind.
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
        // A chain of promises goes on until something else is before it: a turn per link would be a system call per link.
        while self.run_continuation() {}
        self.ticks_finished();
        self.ticks.shrink();
    }

    /// Runs the oldest continuation that nothing is queued before; `false` if there is none, or no more ticks may run.
    pub(crate) fn run_continuation(&mut self) -> bool {
        if self.ticks.left == 0 || !self.ticks.queue.is_empty() {
            return false;
        }
        let Some(Tick { place, closure, .. }) = self.ticks.continuations.pop(self.posts.taken()) else { return false };
        self.call_tick(place, |reactor| closure.call(reactor));
        true
    }

    /// Runs posts up to the one that is number `end`, as long as ticks may run. One that its thread is still writing comes
    /// later, and so do those behind it.
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

    /// Whether what would be queued now would be what runs next, and may as well run [at once](Reactor::run_at_once). Only
    /// a tick that has nothing left to do may ask.
    #[inline]
    pub(crate) fn comes_next(&self) -> bool {
        self.ticks.left > 0
            && self.callbacks.depth() <= TICKS_NESTED
            && self.ticks.queue.is_empty()
            && self.ticks.continuations.is_empty()
            && self.posts.taken() == self.shared.posted()
            // One inside the other, they cannot be told apart.
            && self.watchdog.is_none()
            && self.meter.times_ticks_together()
    }

    /// Runs a tick inside another, where it [comes next](Reactor::comes_next).
    #[inline]
    pub(crate) fn run_at_once(&mut self, place: &'static Location<'static>, f: impl FnOnce(&mut Reactor)) {
        self.call_tick(place, f);
    }
}
