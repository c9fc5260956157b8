//! Runs a step for each of many items, with limited concurrency.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

use pelton_sync::Closure;

use crate::promises::{Step, pair};
use crate::reactor::panics::catch;
use crate::{Deferred, Next, Promise, Reactor, Rejected};

/// How many steps one tick starts at most, so that steps that finish at once do not starve the loop's events.
const STEPS_PER_TICK: usize = 64;

type Outcome<V, E> = Result<V, Rejected<E>>;

/// Stores the outcome of an item's step in the results, or fails the whole run.
type Keep<R, V, E, G> = fn(&mut R, usize, Outcome<V, E>) -> Result<(), Rejected<G>>;

/// Runs a step for each of many items, with [limited concurrency](Each::at_most): [`for_each`](Each::for_each),
/// [`map`](Each::map), or [`outcomes`](Each::outcomes), which continues after errors.
///
/// A step receives an item and returns a `Result` or a [`Promise`]. Steps start in the order of the items, from the
/// tick queue, never before the starting call has returned. The iterator may be infinite: an item is taken only when
/// its step starts.
///
/// After an error no more steps start. Running steps continue, and their outcomes are dropped.
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
#[must_use = "an `Each` does nothing until a method such as `for_each` runs it"]
pub struct Each<I> {
    items: I,
    limit: usize,
}

impl<I: Iterator + 'static> Each<I> {
    /// Creates an `Each` that runs one step at a time. [`at_most`](Each::at_most) raises the limit.
    pub fn of(items: impl IntoIterator<IntoIter = I>) -> Each<I> {
        Each { items: items.into_iter(), limit: 1 }
    }

    /// Sets how many steps may run at a time. At least one.
    pub fn at_most(self, limit: usize) -> Each<I> {
        Each { limit: limit.max(1), ..self }
    }

    /// Runs `step` for each item and drops the values. The promise resolves when all steps are done. It rejects on the
    /// first error.
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

    /// Runs `step` for each item. The promise resolves with the values in the order of the items. It rejects on the
    /// first error.
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

    /// Runs `step` for each item, and continues after errors. The promise resolves with all outcomes in the order of
    /// the items. It rejects only if `step` itself panics; then no more steps start.
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

/// The values of the items that have finished.
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

/// Running and future steps. `V` and `E` are the outcome of a step, `R` and `G` that of the whole run.
struct Work<I, S, V, E, R: 'static, G: 'static> {
    /// The remaining items and the step function. `None` after the last item, after the run has ended, and while a step
    /// is being started.
    rest: Cell<Option<(std::iter::Enumerate<I>, S)>>,
    running: Cell<usize>,
    /// A tick that starts more steps is queued.
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
    /// Starts as many steps as the limit allows. Promises settle from ticks, so steps never nest.
    fn start_steps(self: Rc<Self>, reactor: &mut Reactor) {
        self.queued.set(false);
        let Some((mut items, mut step)) = self.rest.take() else { return };
        for _ in 0..STEPS_PER_TICK {
            if self.running.get() >= self.limit {
                self.rest.set(Some((items, step)));
                return;
            }
            let next = || items.next().map(|(index, item)| (index, step(reactor, item).into_step()));
            let (index, begun) = match catch(next) {
                Ok(Some(begun)) => begun,
                Ok(None) => return self.finish_if_done(),
                Err(panic) => {
                    self.end(Err(Rejected::Panicked(panic.message().into())));
                    // Propagate to the code that catches and reports the panics of all callbacks.
                    panic.resume();
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

    /// Starts more steps after one has finished.
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

    /// Stores the outcome of a step. Returns whether to continue.
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
        // The rest is not needed any more.
        drop(self.rest.take());
        drop(self.results.take());
    }
}
