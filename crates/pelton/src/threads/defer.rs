//! Defers blocking work to another thread, and delivers its result on the loop.
//!
//! A result is a post. Results therefore arrive with everything else that other threads post, in the order in which
//! they became ready, and any number of them share one wake-up. A result finds its callback by a key, which is gone if
//! the callback was cancelled. Small closures and results are not boxed; the callback is.
//!
//! Work that is deferred during a turn is queued at once, but its lane is woken only before the loop waits. Waking a
//! thread takes longer than deferring, and one wake-up serves all jobs of a turn. Writes to connections are batched in
//! the same way.

use std::any::Any;
use std::fmt;
use std::panic::Location;

use pelton_sync::{Closure, SendClosure};

use crate::reactor::slots::{Key, Slots};
use crate::threads::handle::Handle;
use crate::threads::lane::{JobId, Lane, Refusal, Wake, Worker, attempt};
use crate::threads::reply::{Replier, Reply, reply};
use crate::{Error, Promise, Reactor};

/// Identifies [deferred](Reactor::defer) work, to [cancel](Reactor::cancel_deferred) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeferId(pub(crate) Key);

/// Why [deferred](Reactor::defer) work has no result.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeferFailure {
    /// It panicked with this message.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// The process was forked while the work was running, and this is the child.
    #[error("the process was forked during the work")]
    Forked,
}

/// A lane refused work. The error returns it.
#[derive(thiserror::Error)]
#[error("defer to the {lane} lane: {refusal}")]
pub struct DeferError<Op> {
    /// The work.
    pub op: Op,
    /// The lane.
    pub lane: Lane,
    /// Why it was refused.
    pub refusal: Refusal,
}

impl<Op> fmt::Debug for DeferError<Op> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferError").field("lane", &self.lane).field("refusal", &self.refusal).finish_non_exhaustive()
    }
}

impl<Op> From<DeferError<Op>> for Error {
    fn from(error: DeferError<Op>) -> Error {
        error.refusal.while_doing(format!("defer to the {} lane", error.lane))
    }
}

/// Callbacks of deferred work.
#[derive(Default)]
pub(crate) struct Deferrals {
    awaiting: Slots<Awaiting>,
    /// How many of them draining waits for.
    pub(crate) holding: usize,
    /// A turn is in progress, which wakes lanes at its end.
    gathering: bool,
    /// How many jobs each lane was given since it was last woken.
    gathered: [usize; Lane::ALL.len()],
    /// Whether there are any. Most turns defer nothing and only check this.
    has_gathered: bool,
}

/// About as many jobs are deferred in the time that it takes to wake a thread. Beyond that a wake-up is worth it, even
/// if more may follow.
const GATHERED_AT_MOST: usize = 128;

struct Awaiting {
    place: &'static Location<'static>,
    /// The callback. The code that delivers the result knows its type.
    then: Box<dyn Any>,
    /// Calls it with a failure.
    fail: fn(&mut Reactor, Box<dyn Any>, DeferFailure),
    /// The job, to take it back. `None` if it runs on the loop.
    job: Option<(Lane, JobId)>,
    drain: Drain,
}

/// Whether [draining](Reactor::drain) waits for the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drain {
    Waits,
    DoesNotWait,
}

/// Where to run the work.
pub(crate) enum Where {
    /// On a thread, where it may block.
    Lane(Lane),
    /// On the loop, at the next tick.
    Loop,
}

impl Deferrals {
    /// Returns whether a callback has not been called yet.
    pub(crate) fn waits(&self, key: Key) -> bool {
        self.awaiting.get(key).is_some()
    }

    fn remove(&mut self, key: Key) -> Option<Awaiting> {
        let awaiting = self.awaiting.remove(key)?;
        if awaiting.drain == Drain::Waits {
            self.holding -= 1;
        }
        Some(awaiting)
    }

    /// Returns whether to wake a lane for one more job.
    fn gather(&mut self, lane: Lane) -> Wake {
        let gathered = &mut self.gathered[lane as usize];
        *gathered += 1;
        if self.gathering && *gathered < GATHERED_AT_MOST {
            self.has_gathered = true;
            return Wake::Later;
        }
        *gathered = 0;
        Wake::Now
    }
}

impl Reactor {
    /// Batches the wake-ups of lanes until [`wake_lanes`](Reactor::wake_lanes).
    pub(crate) fn gather_deferred(&mut self) {
        self.deferred.gathering = true;
    }

    /// Returns whether jobs wait for their lanes to be woken.
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.has_gathered
    }

    /// Wakes the lanes that have been given jobs.
    pub(crate) fn wake_lanes(&mut self) {
        self.deferred.gathering = false;
        if !std::mem::take(&mut self.deferred.has_gathered) {
            return;
        }
        for lane in Lane::ALL {
            if std::mem::take(&mut self.deferred.gathered[lane as usize]) > 0 {
                self.shared.lane(lane).wake();
            }
        }
    }

    /// Runs `op` on a thread of `lane`, where it may block, then calls `then` with its result on the loop, never before
    /// this returns. A panic in `op` only costs its result. Unless a thread takes it at once, work deferred by a
    /// callback begins when the loop is about to wait, so do not wait for it in the callback.
    ///
    /// If [too many](crate::LaneSettings) jobs are already waiting for the lane, `op` is returned.
    /// [Draining](Reactor::drain) waits for deferred work. [Stopping](Reactor::stop) does not: work that has begun
    /// continues, and its result is dropped.
    ///
    /// ```
    /// # use pelton::{Lane, Reactor};
    /// let mut reactor = Reactor::new()?;
    /// reactor.defer(
    ///     Lane::Cpu,
    ///     || (1..=20_u64).product::<u64>(),
    ///     |reactor, product| {
    ///         assert_eq!(product, Ok(2_432_902_008_176_640_000));
    ///         reactor.stop();
    ///     },
    /// )?;
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn defer<T, Op, Then>(&mut self, lane: Lane, op: Op, then: Then) -> Result<DeferId, DeferError<Op>>
    where
        T: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
        Then: FnOnce(&mut Reactor, Result<T, DeferFailure>) + 'static,
    {
        let deferred = self.defer_to(Where::Lane(lane), Drain::Waits, Location::caller(), op, then);
        deferred.map(DeferId).map_err(|(op, refusal)| DeferError { op, lane, refusal })
    }

    /// Defers without a callback. The result is a [`Reply`], which can be awaited. Dropping it does not cancel the
    /// work. See [`defer`](Reactor::defer).
    #[track_caller]
    pub fn defer_reply<T, Op>(&mut self, lane: Lane, op: Op) -> Result<Reply<Result<T, DeferFailure>>, DeferError<Op>>
    where
        T: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
    {
        self.handle().defer_reply(lane, op)
    }

    /// Defers with a promise instead of a callback. Dropping the promise does not cancel the work. See
    /// [`defer`](Reactor::defer).
    ///
    /// ```
    /// # use pelton::{Lane, Reactor};
    /// let mut reactor = Reactor::new()?;
    /// reactor
    ///     .defer_promise(Lane::Cpu, || (1..=20_u64).product::<u64>())?
    ///     .map(|product| product.trailing_zeros())
    ///     .done(|reactor, zeros| {
    ///         assert_eq!(zeros, Ok(18));
    ///         reactor.stop();
    ///     });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn defer_promise<T, Op>(&mut self, lane: Lane, op: Op) -> Result<Promise<T, DeferFailure>, DeferError<Op>>
    where
        T: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
    {
        let (deferred, promise) = self.promise();
        // Nothing else settles it.
        self.defer(lane, op, move |_, outcome| drop(deferred.settle(outcome)))?;
        Ok(promise)
    }

    /// Cancels deferred work and drops its callback. Returns `true` if the work had not begun and never will. Otherwise
    /// it continues, and its result is dropped.
    ///
    /// ```
    /// # use pelton::{Lane, LaneSettings, Reactor};
    /// # use std::sync::mpsc::channel;
    /// let settings = LaneSettings { threads: 1, ..LaneSettings::CPU };
    /// let mut reactor = Reactor::builder().lane(Lane::Cpu, settings).build()?;
    /// let (release, released) = channel::<()>();
    /// reactor.defer(Lane::Cpu, move || released.recv(), |_, _| {})?;
    /// let second = reactor.defer(Lane::Cpu, || {}, |_, _| panic!("the work was cancelled"))?;
    /// assert!(reactor.cancel_deferred(second));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn cancel_deferred(&mut self, id: DeferId) -> bool {
        let Some(awaiting) = self.deferred.remove(id.0) else { return false };
        awaiting.job.is_some_and(|(lane, job)| self.shared.lane(lane).take_back(job))
    }

    /// Runs `op` at the given place, then calls `then` with its result on the loop, never before this returns.
    pub(crate) fn defer_to<T, Op, Then>(
        &mut self,
        to: Where,
        drain: Drain,
        place: &'static Location<'static>,
        op: Op,
        then: Then,
    ) -> Result<Key, (Op, Refusal)>
    where
        T: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
        Then: FnOnce(&mut Reactor, Result<T, DeferFailure>) + 'static,
    {
        if self.lifecycle.has_stopped() {
            return Err((op, Refusal::Stopped));
        }
        let fail = |reactor: &mut Reactor, then: Box<dyn Any>, failure| of_type::<Then>(then)(reactor, Err(failure));
        let awaiting = Awaiting { place, then: Box::new(then), fail, job: None, drain };
        let key = self.deferred.awaiting.insert(awaiting);
        match to {
            Where::Lane(lane) => {
                let job = |op: Op| {
                    SendClosure::new(move |worker: &mut Worker<Handle>| match worker.attempt(op) {
                        // Separate closures, so that a small value makes a small closure.
                        Ok(value) => {
                            post_result(worker, move |reactor| reactor.complete_deferred::<T, Then>(key, Ok(value)))
                        }
                        Err(failure) => {
                            post_result(worker, move |reactor| reactor.complete_deferred::<T, Then>(key, Err(failure)))
                        }
                    })
                };
                let wake = self.deferred.gather(lane);
                match self.shared.lane(lane).run(|| self.handle(), place, wake, op, job) {
                    Ok(job) => {
                        if let Some(awaiting) = self.deferred.awaiting.get_mut(key) {
                            awaiting.job = Some((lane, job));
                        }
                    }
                    Err(refused) => {
                        self.deferred.awaiting.remove(key);
                        return Err(refused);
                    }
                }
            }
            Where::Loop => {
                let closure = Closure::new(move |reactor: &mut Reactor| {
                    // It may have been cancelled meanwhile.
                    if reactor.deferred.waits(key) {
                        reactor.complete_deferred::<T, Then>(key, attempt(op));
                    }
                });
                self.tick_from(place, closure);
            }
        }
        if drain == Drain::Waits {
            self.deferred.holding += 1;
        }
        Ok(key)
    }

    /// Calls the callback of finished work, whose type is `Then`.
    fn complete_deferred<T, Then>(&mut self, key: Key, outcome: Result<T, DeferFailure>)
    where
        Then: FnOnce(&mut Reactor, Result<T, DeferFailure>) + 'static,
    {
        if let Some(awaiting) = self.deferred.remove(key) {
            of_type::<Then>(awaiting.then)(self, outcome);
        }
    }

    /// Fails all callbacks in a forked child, because the threads of the parent never deliver a result here.
    pub(crate) fn renew_deferred(&mut self) {
        let left = self.deferred.awaiting.iter().filter(|(_, awaiting)| awaiting.job.is_some());
        for (key, place) in left.map(|(key, awaiting)| (key, awaiting.place)).collect::<Vec<_>>() {
            let closure = Closure::new(move |reactor: &mut Reactor| {
                if let Some(awaiting) = reactor.deferred.remove(key) {
                    (awaiting.fail)(reactor, awaiting.then, DeferFailure::Forked);
                }
            });
            self.tick_from(place, closure);
        }
    }
}

impl Handle {
    /// Defers from any thread. See [`Reactor::defer_reply`].
    ///
    /// ```
    /// # use pelton::{Lane, Reactor};
    /// let reactor = Reactor::new()?;
    /// let handle = reactor.handle();
    /// let sum = handle.defer_reply(Lane::Cpu, || (1..=100).sum::<u32>())?;
    /// assert_eq!(sum.wait(), Ok(Ok(5050)));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn defer_reply<T, Op>(&self, lane: Lane, op: Op) -> Result<Reply<Result<T, DeferFailure>>, DeferError<Op>>
    where
        T: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
    {
        let (replier, answer) = reply();
        match self.defer_answer(lane, op, replier, |outcome| outcome) {
            Ok(()) => Ok(answer),
            Err((op, _, refusal)) => Err(DeferError { op, lane, refusal }),
        }
    }

    /// Runs `op` on a thread of `lane`, and gives `answer(outcome)` to the replier there. Draining waits for it.
    #[track_caller]
    pub(crate) fn defer_answer<T, A, Op>(
        &self,
        lane: Lane,
        op: Op,
        replier: Replier<A>,
        answer: impl FnOnce(Result<T, DeferFailure>) -> A + Send + 'static,
    ) -> Result<(), (Op, Replier<A>, Refusal)>
    where
        A: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
    {
        // The lanes stay open until the reactor has shut down, which may be some time after it was stopped.
        if self.has_stopped() {
            return Err((op, replier, Refusal::Stopped));
        }
        let hold = self.hold();
        let job = move |(op, replier): (Op, Replier<A>)| {
            SendClosure::new(move |worker: &mut Worker<Handle>| {
                replier.give(answer(worker.attempt(op)));
                drop(hold);
            })
        };
        let lane = self.shared.latest().lane(lane);
        let taken = lane.run(|| self.clone(), Location::caller(), Wake::Now, (op, replier), job);
        taken.map(drop).map_err(|((op, replier), refusal)| (op, replier, refusal))
    }
}

/// Posts the result of a job to the loop. Does nothing if the loop has ended.
fn post_result(worker: &Worker<Handle>, closure: impl FnOnce(&mut Reactor) + Send + 'static) {
    let _ = worker.context.post_from(worker.place, closure, None);
}

fn of_type<Then: 'static>(then: Box<dyn Any>) -> Then {
    *then.downcast::<Then>().expect("a key belongs to a callback of this type")
}
