//! Deferring: work that blocks is done on another thread, and what comes of it is told on the loop.
//!
//! What comes of it is a post, so results come in with everything else that other threads have to say, in the order in which
//! they were ready, as many per wake-up as there are. It finds its callback by a key: one that was cancelled meanwhile is
//! simply not found. Neither what is done nor what comes of it is boxed if it is small; the callback is.
//!
//! What is deferred in the course of a turn is handed over at once, but its lane is told only before the loop waits: to wake a
//! thread takes longer than to defer, and one wake-up does for all. As with what is written to connections, what a turn has
//! to say to others it says together.

use std::any::Any;
use std::fmt;
use std::panic::Location;

use pelton_sync::{Closure, SendClosure};

use crate::reactor::slots::{Key, Slots};
use crate::threads::handle::Handle;
use crate::threads::lane::{JobId, Lane, Refusal, Wake, Worker, attempt};
use crate::threads::reply::{Replier, Reply, reply};
use crate::{Error, Promise, Reactor};

/// Names something that was [deferred](Reactor::defer), to [cancel](Reactor::cancel_deferred) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeferId(pub(crate) Key);

/// Why something that was [deferred](Reactor::defer) came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeferFailure {
    /// It panicked, with this message.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// The process was forked while it was being done, and this is the child.
    #[error("the process was forked meanwhile")]
    Forked,
}

/// A lane did not take something on. What was to be done comes back.
#[derive(thiserror::Error)]
#[error("defer to the {lane} lane: {refusal}")]
pub struct DeferError<Op> {
    /// What was to be done.
    pub op: Op,
    /// Where.
    pub lane: Lane,
    /// Why not.
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

/// Callbacks that wait for what is done elsewhere.
#[derive(Default)]
pub(crate) struct Deferred {
    awaiting: Slots<Awaiting>,
    /// How many of them draining waits for.
    pub(crate) holding: usize,
    /// Whether a turn is under way, which will have lanes woken.
    gathering: bool,
    /// How much each lane was given since it was last woken.
    gathered: [usize; Lane::ALL.len()],
    /// Whether any was: most turns defer nothing, and pay no more than a look at this.
    has_gathered: bool,
}

/// So much is deferred in about the time that it takes to wake a thread. After that it is worth it, though more may come.
const GATHERED_AT_MOST: usize = 128;

struct Awaiting {
    place: &'static Location<'static>,
    /// The callback. Whoever has what it waits for knows its type.
    then: Box<dyn Any>,
    /// Calls it, if there will be nothing.
    fail: fn(&mut Reactor, Box<dyn Any>, DeferFailure),
    /// Where it can be taken back. `None` if it is done on the loop.
    job: Option<(Lane, JobId)>,
    drain: Drain,
}

/// Whether [draining](Reactor::drain) waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drain {
    Waits,
    DoesNotWait,
}

/// Where to do something.
pub(crate) enum Where {
    /// On a thread: it may block.
    Lane(Lane),
    /// On the loop, at the next tick.
    Loop,
}

impl Deferred {
    /// Whether a callback has yet to be called.
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

    /// Whether a lane is to be woken for one more.
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
    /// Until [`wake_lanes`](Reactor::wake_lanes), lanes need not be woken for each thing that is deferred.
    pub(crate) fn gather_deferred(&mut self) {
        self.deferred.gathering = true;
    }

    /// Has everything begun that was deferred.
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

    /// Does `op` on a thread of `lane`, where it may block, then calls `then` with what came of it, on the loop and never
    /// before this returns. An `op` that panics costs nothing but its result. What callbacks defer begins when the loop is
    /// about to wait, if there was no thread for it at once: so do not wait for it in the callback.
    ///
    /// If [too much](crate::LaneSettings) waits for the lane already, `op` comes back. [Draining](Reactor::drain) waits for
    /// what is deferred; [stopping](Reactor::stop) does not: what has begun then goes on by itself, and what comes of it is
    /// dropped.
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

    /// [`defer`](Reactor::defer) without a callback: what comes of it is a [`Reply`], to be awaited. Dropping that does not
    /// cancel it.
    #[track_caller]
    pub fn defer_reply<T, Op>(&mut self, lane: Lane, op: Op) -> Result<Reply<Result<T, DeferFailure>>, DeferError<Op>>
    where
        T: Send + 'static,
        Op: FnOnce() -> T + Send + 'static,
    {
        self.handle().defer_reply(lane, op)
    }

    /// [`defer`](Reactor::defer) with a promise in place of the callback. Dropping that does not cancel it.
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
        // Nobody else can have settled it.
        self.defer(lane, op, move |_, outcome| drop(deferred.settle(outcome)))?;
        Ok(promise)
    }

    /// Forgets about something that was deferred: its callback is dropped. `true` if it had not begun, and now never will;
    /// otherwise it goes on, but nobody is told.
    ///
    /// ```
    /// # use pelton::{Lane, LaneSettings, Reactor};
    /// # use std::sync::mpsc::channel;
    /// let settings = LaneSettings { threads: 1, ..LaneSettings::CPU };
    /// let mut reactor = Reactor::builder().lane(Lane::Cpu, settings).build()?;
    /// let (release, released) = channel::<()>();
    /// reactor.defer(Lane::Cpu, move || released.recv(), |_, _| {})?;
    /// let second = reactor.defer(Lane::Cpu, || {}, |_, _| panic!("it was cancelled"))?;
    /// assert!(reactor.cancel_deferred(second));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn cancel_deferred(&mut self, id: DeferId) -> bool {
        let Some(awaiting) = self.deferred.remove(id.0) else { return false };
        awaiting.job.is_some_and(|(lane, job)| self.shared.lane(lane).take_back(job))
    }

    /// Does `op` elsewhere, then calls `then` with what came of it, on the loop and not before this has returned.
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
                        // Apart, so that a small value makes a small closure.
                        Ok(value) => tell(worker, move |reactor| reactor.is_done::<T, Then>(key, Ok(value))),
                        Err(failure) => tell(worker, move |reactor| reactor.is_done::<T, Then>(key, Err(failure))),
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
                    // It may have been cancelled since.
                    if reactor.deferred.waits(key) {
                        reactor.is_done::<T, Then>(key, attempt(op));
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

    /// Something has been done, and its callback is a `Then`.
    fn is_done<T, Then>(&mut self, key: Key, outcome: Result<T, DeferFailure>)
    where
        Then: FnOnce(&mut Reactor, Result<T, DeferFailure>) + 'static,
    {
        if let Some(awaiting) = self.deferred.remove(key) {
            of_type::<Then>(awaiting.then)(self, outcome);
        }
    }

    /// In a forked child: nothing comes back from the threads of the parent, so the callbacks are told that.
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
    /// [`Reactor::defer_reply`] from any thread.
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

    /// Does `op` on a thread of `lane`, where what `answer` makes of its outcome is given to whoever waits for it. Draining
    /// waits for it.
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
        // Its lanes are open until it has shut down, which may be a while after it was told to stop.
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

/// Tells the loop what came of a job. A loop that is gone is not told.
fn tell(worker: &Worker<Handle>, closure: impl FnOnce(&mut Reactor) + Send + 'static) {
    let _ = worker.context.post_from(worker.place, closure, None);
}

fn of_type<Then: 'static>(then: Box<dyn Any>) -> Then {
    *then.downcast::<Then>().expect("the key is that of a callback of this type")
}
