//! The same for each of many, some at a time.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;

use pelton_sync::Closure;

use crate::promises::{Step, pair};
use crate::reactor::callback::message;
use crate::{Deferred, Next, Promise, Reactor, Rejected};

/// How many steps one tick starts at most, so that those which are over at once do not keep the loop from events.
const STEPS_PER_TICK: usize = 64;

type Outcome<V, E> = Result<V, Rejected<E>>;

/// Puts what came of the step for an item to the results; or says that it all comes to nothing.
type Keep<R, V, E, G> = fn(&mut R, usize, Outcome<V, E>) -> Result<(), Rejected<G>>;

/// Does the same for each of many items, [some at a time](Each::at_most): [`for_each`](Each::for_each), [`map`](Each::map), or
/// [`outcomes`](Each::outcomes), which goes on after errors.
///
/// A step is given an item, and returns a `Result`, or a [`Promise`] to wait for. Steps are started in the order of the items, from
/// the tick queue, never before the call that begins has returned. The items may be endless, and are taken one by one: there
/// are never more of them than steps in progress.
///
/// After an error no step is started. Those in progress go on; what comes of them is dropped.
///
/// ```
/// # use pelton::{Each, Promise, Reactor};
/// # use std::time::Duration;
/// fn measure(reactor: &mut Reactor, name: &'static str) -> Promise<usize, String> {
///     let (deferred, length) = reactor.promise();
///     reactor.after(Duration::from_millis(1), move |_| drop(deferred.resolve(name.len())));
///     length
/// }
///
/// let mut reactor = Reactor::new()?;
/// Each::of(["ann", "gustav", "bo"]).at_most(2).map(&mut reactor, measure).done(|reactor, lengths| {
///     assert_eq!(lengths, Ok(vec![3, 6, 2]));
///     reactor.stop();
/// });
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is done before it is said what"]
pub struct Each<I> {
    items: I,
    limit: usize,
}

impl<I: Iterator + 'static> Each<I> {
    /// One at a time, unless [`at_most`](Each::at_most) says otherwise.
    pub fn of(items: impl IntoIterator<IntoIter = I>) -> Each<I> {
        Each { items: items.into_iter(), limit: 1 }
    }

    /// How many may be in progress at a time. At least one is, whatever is said here.
    pub fn at_most(self, limit: usize) -> Each<I> {
        Each { limit: limit.max(1), ..self }
    }

    /// Does `step` for each item, and drops the values. The promise is kept when all are done, or rejected with the first error,
    /// as soon as it is there.
    #[track_caller]
    pub fn for_each<N, E>(
        self,
        reactor: &mut Reactor,
        step: impl FnMut(&mut Reactor, I::Item) -> N + 'static,
    ) -> Promise<(), E>
    where
        N: Next<E>,
        E: fmt::Debug + 'static,
    {
        self.start(Location::caller(), reactor, step, |(), _, outcome| outcome.map(drop))
    }

    /// Does `step` for each item. What comes of them is promised in the order of the items; or else the first error, as soon as
    /// it is there.
    #[track_caller]
    pub fn map<N, E>(
        self,
        reactor: &mut Reactor,
        step: impl FnMut(&mut Reactor, I::Item) -> N + 'static,
    ) -> Promise<Vec<N::Value>, E>
    where
        N: Next<E>,
        E: fmt::Debug + 'static,
    {
        let values = self.start(Location::caller(), reactor, step, |values: &mut Values<N::Value>, index, outcome| {
            outcome.map(|value| values.put(index, value))
        });
        values.map(Values::into_vec)
    }

    /// Does `step` for each item, whatever becomes of the others. Everything that came of them is promised, in the order of the
    /// items. Only if `step` itself panics, no more are started, and the promise is rejected.
    ///
    /// ```
    /// # use pelton::{Each, Reactor, Rejected};
    /// let mut reactor = Reactor::new()?;
    /// let numbers = Each::of(["1", "two", "3"]).outcomes(&mut reactor, |_, text| text.parse::<u32>());
    /// numbers.done(|reactor, outcomes| {
    ///     let numbers: Vec<_> = outcomes.unwrap().into_iter().map(Result::ok).collect();
    ///     assert_eq!(numbers, [Some(1), None, Some(3)]);
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn outcomes<N, E>(
        self,
        reactor: &mut Reactor,
        step: impl FnMut(&mut Reactor, I::Item) -> N + 'static,
    ) -> Promise<Vec<Outcome<N::Value, E>>, Infallible>
    where
        N: Next<E>,
        E: fmt::Debug + 'static,
    {
        let keep = |outcomes: &mut Values<Outcome<N::Value, E>>, index, outcome| {
            outcomes.put(index, outcome);
            Ok(())
        };
        self.start(Location::caller(), reactor, step, keep).map(Values::into_vec)
    }

    fn start<N, E, R, G>(
        self,
        place: &'static Location<'static>,
        reactor: &mut Reactor,
        step: impl FnMut(&mut Reactor, I::Item) -> N + 'static,
        keep: Keep<R, N::Value, E, G>,
    ) -> Promise<R, G>
    where
        N: Next<E>,
        E: fmt::Debug + 'static,
        R: Default + 'static,
        G: fmt::Debug + 'static,
    {
        let (whole, promise) = pair(reactor.ticks.continuations.clone(), place);
        let rest = Cell::new(Some((self.items.enumerate(), step)));
        let (running, queued, results) = (Cell::new(0), Cell::new(true), RefCell::default());
        let work = Rc::new(Work { rest, running, queued, limit: self.limit, results, keep, whole, place });
        reactor.tick_from(place, Closure::new(move |reactor: &mut Reactor| work.start_steps(reactor)));
        promise
    }
}

/// What has come of some of the items.
struct Values<V>(Vec<Option<V>>);

impl<V> Default for Values<V> {
    fn default() -> Self {
        Values(Vec::new())
    }
}

impl<V> Values<V> {
    fn put(&mut self, index: usize, value: V) {
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(value);
    }

    fn into_vec(self) -> Vec<V> {
        self.0.into_iter().flatten().collect()
    }
}

/// Steps in progress, and those to come. `V` and `E` are what comes of a step, `R` and `G` what comes of it all.
struct Work<I, S, V, E, R: 'static, G: 'static> {
    /// What is left to do, and how. Nothing once the items are at their end, or the work is; nor while a step is being started.
    rest: Cell<Option<(std::iter::Enumerate<I>, S)>>,
    running: Cell<usize>,
    /// A tick is on its way that starts more.
    queued: Cell<bool>,
    limit: usize,
    results: RefCell<R>,
    keep: Keep<R, V, E, G>,
    whole: Deferred<R, G>,
    place: &'static Location<'static>,
}

impl<I, S, N, E, R, G> Work<I, S, N::Value, E, R, G>
where
    I: Iterator + 'static,
    S: FnMut(&mut Reactor, I::Item) -> N + 'static,
    N: Next<E>,
    E: fmt::Debug + 'static,
    R: Default + 'static,
    G: fmt::Debug + 'static,
{
    /// Starts as many steps as there may be. What a promise comes to is told by a tick, so no step is ever inside another.
    fn start_steps(self: Rc<Self>, reactor: &mut Reactor) {
        self.queued.set(false);
        let Some((mut items, mut step)) = self.rest.take() else { return };
        for _ in 0..STEPS_PER_TICK {
            if self.running.get() >= self.limit {
                self.rest.set(Some((items, step)));
                return;
            }
            let next = || items.next().map(|(index, item)| (index, step(reactor, item).into_step()));
            let (index, begun) = match catch_unwind(AssertUnwindSafe(next)) {
                Ok(Some(begun)) => begun,
                Ok(None) => return self.finish_if_done(),
                Err(panic) => {
                    self.end(Err(Rejected::Panicked(message(&panic).into())));
                    // Goes on to where the panics of all callbacks are caught and reported.
                    resume_unwind(panic);
                }
            };
            match begun {
                Step::Settled(outcome) => {
                    if !self.keep(index, outcome) {
                        return;
                    }
                }
                Step::Follow(promise) => {
                    self.running.set(self.running.get() + 1);
                    let work = self.clone();
                    promise.sink(self.place, move |reactor, outcome| {
                        work.running.set(work.running.get() - 1);
                        if work.keep(index, outcome) {
                            work.go_on(reactor);
                        }
                    });
                }
            }
        }
        self.rest.set(Some((items, step)));
        self.queued.set(true);
        reactor.tick_from(self.place, Closure::new(move |reactor: &mut Reactor| self.start_steps(reactor)));
    }

    /// A step is over.
    fn go_on(self: Rc<Self>, reactor: &mut Reactor) {
        if self.queued.get() {
            return;
        }
        match self.rest.take() {
            None => self.finish_if_done(),
            rest => {
                self.rest.set(rest);
                self.start_steps(reactor);
            }
        }
    }

    /// Keeps what came of a step, and says whether to go on.
    fn keep(&self, index: usize, outcome: Outcome<N::Value, E>) -> bool {
        if self.whole.is_settled() {
            return false;
        }
        let kept = (self.keep)(&mut self.results.borrow_mut(), index, outcome);
        match kept {
            Ok(()) => true,
            Err(rejected) => {
                self.end(Err(rejected));
                false
            }
        }
    }

    fn finish_if_done(&self) {
        if self.running.get() == 0 {
            let results = self.results.take();
            self.end(Ok(results));
        }
    }

    fn end(&self, outcome: Outcome<R, G>) {
        let _ = self.whole.settle_with(outcome);
        // Nothing else is wanted.
        drop(self.rest.take());
        drop(self.results.take());
    }
}
