//! Ticks: what runs as soon as possible, but not now.

pub(crate) mod idle;
pub(crate) mod tick_loop;

use std::panic::Location;

use pelton_sync::Closure;

use crate::Reactor;
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
        self.queue_continuations();
        self.ticks.push_back(Tick { place, closure, after_posts: self.shared.posted() });
    }

    /// Runs `f` at once. What [`Handle::schedule`](crate::Handle::schedule) does on the loop's thread, for code that does
    /// not care which of the two it was given.
    pub fn schedule<T>(&mut self, f: impl FnOnce(&mut Reactor) -> T) -> T {
        f(self)
    }

    /// Runs the oldest tick.
    pub(crate) fn run_tick(&mut self) {
        if let Some(tick) = self.ticks.pop_front() {
            self.call_tick(tick.place, |reactor| tick.closure.call(reactor));
        }
    }

    /// Runs the oldest continuation that nothing is queued before; `false` if there is none, or no more ticks may run.
    pub(crate) fn run_continuation(&mut self) -> bool {
        if self.ticks_left == 0 || !self.ticks.is_empty() {
            return false;
        }
        let Some(Tick { place, closure, .. }) = self.continuations.pop(self.posts.taken()) else { return false };
        self.call_tick(place, |reactor| closure.call(reactor));
        true
    }

    /// Runs posts up to the one that is number `end`, as long as ticks may run. One that its thread is still writing comes
    /// later, and so do those behind it.
    pub(crate) fn run_posts(&mut self, end: usize) {
        while self.ticks_left > 0
            && self.posts.taken() < end
            && let Some(post) = self.posts.pop()
        {
            self.meter.counters.posts += 1;
            self.call_tick(post.place, |reactor| post.closure.call(reactor));
        }
    }

    #[inline]
    fn call_tick(&mut self, place: &'static Location<'static>, f: impl FnOnce(&mut Reactor)) {
        self.ticks_left -= 1;
        self.call_once(Site { kind: CallbackKind::Tick, place, source: None }, f);
    }

    /// Whether what would be queued now would be what runs next, and may as well run [at once](Reactor::run_at_once). Only
    /// a tick that has nothing left to do may ask.
    #[inline]
    pub(crate) fn comes_next(&self) -> bool {
        self.ticks_left > 0
            && self.callbacks.depth() <= TICKS_NESTED
            && self.ticks.is_empty()
            && self.continuations.is_empty()
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

    /// Gives back the memory of a burst that is over.
    pub(crate) fn shrink_ticks(&mut self) {
        self.continuations.shrink(TICKS_KEPT);
        if self.ticks.is_empty() && self.ticks.capacity() > TICKS_KEPT {
            self.ticks.shrink_to(TICKS_KEPT / 4);
        }
    }
}
