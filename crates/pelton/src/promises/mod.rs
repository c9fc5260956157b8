//! Promises: values that arrive later, on the loop.

mod combine;
mod continuations;
mod core;
mod deferred;
mod link;
mod next;
mod remains;
mod shared;
mod unhandled;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::Reactor;
use crate::reactor::slots::Slots;

pub(crate) use self::continuations::Continuations;
pub(crate) use self::core::{Core, Source, settle};
pub use self::deferred::{AlreadySettled, Deferred};
pub(crate) use self::link::Step;
pub use self::next::{Next, Recovery};
pub use self::shared::SharedPromise;
pub use self::unhandled::Unhandled;
pub(crate) use self::unhandled::report_unhandled;

pub(crate) use self::deferred::pair;
use self::link::{Link, Sink};

/// The outcome of a promise.
type Settlement<T, E> = Result<T, Rejected<E>>;

/// Delivers a value that another thread has provided for a promise.
type Arrived = Box<dyn FnOnce(&mut Reactor)>;

/// A reactor's state for its promises.
#[derive(Default)]
pub(crate) struct Promises {
    unhandled: Option<unhandled::Hook>,
    /// Replies that other threads have not given yet.
    pub(crate) replies: Slots<Arrived>,
}

/// Why a promise has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected<E> {
    /// The promise was rejected, or an earlier continuation returned an error.
    #[error("{0}")]
    Failed(E),
    /// Every [`Deferred`] was dropped, so nothing can settle the promise any more.
    #[error("abandoned: dropped without being settled")]
    Abandoned,
    /// An earlier continuation panicked. Holds the panic message.
    #[error("an earlier continuation panicked: {0}")]
    Panicked(Arc<str>),
    /// The promise was not settled within its [time limit](Promise::timeout).
    #[error("not settled within {0:?}")]
    TimedOut(Duration),
}

impl<E> From<E> for Rejected<E> {
    fn from(error: E) -> Self {
        Rejected::Failed(error)
    }
}

impl<E> Rejected<E> {
    /// Maps the error, if it [failed](Rejected::Failed) with one.
    pub fn map<G>(self, f: impl FnOnce(E) -> G) -> Rejected<G> {
        match self {
            Rejected::Failed(error) => Rejected::Failed(f(error)),
            Rejected::Abandoned => Rejected::Abandoned,
            Rejected::Panicked(message) => Rejected::Panicked(message),
            Rejected::TimedOut(limit) => Rejected::TimedOut(limit),
        }
    }
}

/// A value that arrives later, or the reason why it does not. Created by [`Reactor::promise`] together with the
/// [`Deferred`] that settles it.
///
/// A promise has one consumer. [`then`](Promise::then) and similar methods consume it and return a promise of their
/// result, which forms a chain. [`done`](Promise::done) ends a chain. A task can also await a promise.
/// [Observers](Promise::observe) see the outcome before the consumer, and [`shared`](Promise::shared) clones it for
/// several consumers.
///
/// A rejection passes down the chain until an [`or_else`](Promise::or_else) handles it. An unhandled rejection is
/// [reported](Reactor::on_unhandled_rejection). A panic in a continuation is reported like that of any callback, and
/// rejects the promise that follows.
///
/// Continuations run as [ticks](Reactor::next_tick), in the order in which their promises were settled, and never
/// before the settling call has returned. Dropping a promise does not prevent the continuations before it from running.
///
/// ```
/// # use pelton::{Reactor, Rejected};
/// # use std::time::Duration;
/// let mut reactor = Reactor::new()?;
/// let (deferred, text) = reactor.promise::<&str, String>();
/// reactor.after(Duration::from_millis(1), move |_| {
/// // Fails if it was already settled.
///     let _ = deferred.resolve("20 + 1");
/// });
/// text.map(|text| text.split(" + ").collect::<Vec<_>>())
///     .then(|_, terms| {
///         let numbers = terms.into_iter().map(|term| term.parse::<u32>().map_err(|error| error.to_string()));
///         numbers.sum::<Result<u32, String>>()
///     })
///     .then(|reactor, sum: u32| {
///         let (later, doubled) = reactor.promise();
///         reactor.after(Duration::from_millis(1), move |_| drop(later.resolve(sum * 2)));
///         doubled
///     })
///     .done(|reactor, doubled| {
///         assert_eq!(doubled, Ok(42));
///         reactor.stop();
///     });
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
pub struct Promise<T: 'static, E: 'static> {
    /// `None` once it is consumed.
    source: Option<Rc<dyn Source<T, E>>>,
}

impl Reactor {
    /// Creates a promise and the deferred that settles it.
    #[track_caller]
    pub fn promise<T: 'static, E: fmt::Debug + 'static>(&self) -> (Deferred<T, E>, Promise<T, E>) {
        pair(self.ticks.continuations.clone(), Location::caller())
    }
}

impl<T: 'static, E: 'static> Promise<T, E> {
    /// Creates a promise of the outcome of `source`.
    pub(crate) fn of(source: Rc<dyn Source<T, E>>) -> Promise<T, E> {
        Promise { source: Some(source) }
    }

    fn core(&self) -> &Core<T, E> {
        self.source.as_ref().expect("only methods that consume the promise take the source").core()
    }
}

impl<T: 'static, E: fmt::Debug + 'static> Promise<T, E> {
    /// Creates a resolved promise.
    #[track_caller]
    pub fn resolved(reactor: &Reactor, value: T) -> Promise<T, E> {
        let (deferred, promise) = pair(reactor.ticks.continuations.clone(), Location::caller());
        let _ = deferred.resolve(value);
        promise
    }

    /// Creates a rejected promise.
    #[track_caller]
    pub fn rejected(reactor: &Reactor, error: E) -> Promise<T, E> {
        let (deferred, promise) = pair(reactor.ticks.continuations.clone(), Location::caller());
        let _ = deferred.reject(error);
        promise
    }

    /// Creates a promise of the output of `future`. The future runs on the loop as a [task](Reactor::spawn), even if
    /// the promise is dropped. Use it for futures such as those of another runtime. For a [`Reply`](crate::Reply) use
    /// [`into_promise`](crate::Reply::into_promise).
    ///
    /// The promise is [abandoned](Rejected::Abandoned) if the future panics or the loop stops first.
    ///
    /// ```
    /// # use pelton::{Promise, Reactor, task};
    /// # use std::time::Duration;
    /// let mut reactor = Reactor::new()?;
    /// let future = async {
    ///     task::sleep(Duration::from_millis(1)).await;
    ///     Ok::<_, String>(21)
    /// };
    /// Promise::of_future(&mut reactor, future).map(|half| half * 2).done(|reactor, answer| {
    ///     assert_eq!(answer, Ok(42));
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn of_future(reactor: &mut Reactor, future: impl Future<Output = Result<T, E>> + 'static) -> Promise<T, E> {
        let (deferred, promise) = pair(reactor.ticks.continuations.clone(), Location::caller());
        // Nothing else settles it.
        reactor.spawn(async move { drop(deferred.settle(future.await)) }).detach();
        promise
    }

    /// Returns whether the promise is settled. If so, a continuation attached now runs at the next tick.
    pub fn is_settled(&self) -> bool {
        self.core().is_settled()
    }

    fn link<U: 'static, G: fmt::Debug + 'static>(
        self,
        place: &'static Location<'static>,
        act: impl FnOnce(&mut Reactor, Settlement<T, E>) -> Step<U, G> + 'static,
    ) -> Promise<U, G> {
        let link = Link::new(self.core().continuations.clone(), place, Some(act));
        self.attach(link.clone());
        Promise { source: Some(link) }
    }

    pub(crate) fn sink(
        self,
        place: &'static Location<'static>,
        act: impl FnOnce(&mut Reactor, Settlement<T, E>) + 'static,
    ) {
        self.attach(Sink::new(place, act));
    }

    /// Continues with the value. `f` returns a `Result` or another promise.
    ///
    /// If `f` cannot fail, use [`map`](Promise::map). To change the error type, use [`map_err`](Promise::map_err).
    ///
    /// A promise has one consumer, because the value is moved to it. A second `then` on the same promise, as in
    /// JavaScript, does not compile:
    ///
    /// ```compile_fail,E0382
    /// # use pelton::Reactor;
    /// # let reactor = Reactor::new().unwrap();
    /// # let (_deferred, promise) = reactor.promise::<u32, String>();
    /// promise.then(|_, value| Ok(println!("first: {value}")));
    /// promise.then(|_, value| Ok(println!("second: {value}")));
    /// ```
    ///
    /// [`shared`](Promise::shared) clones the outcome for each consumer. [`observe`](Promise::observe) sees the outcome
    /// without consuming it.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # let mut reactor = Reactor::new()?;
    /// # let (deferred, promise) = reactor.promise::<u32, String>();
    /// let shared = promise.shared();
    /// shared.promise().then(|_, value| Ok(println!("first: {value}")));
    /// shared.promise().then(|_, value| Ok(println!("second: {value}")));
    /// # drop(deferred.resolve(1));
    /// # reactor.turn(Some(std::time::Duration::ZERO))?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn then<N: Next<E>>(self, f: impl FnOnce(&mut Reactor, T) -> N + 'static) -> Promise<N::Value, E> {
        self.link(Location::caller(), |reactor, outcome| match outcome {
            Ok(value) => f(reactor, value).into_step(),
            Err(rejected) => Step::Settled(Err(rejected)),
        })
    }

    /// Maps the value.
    #[track_caller]
    pub fn map<U: 'static>(self, f: impl FnOnce(T) -> U + 'static) -> Promise<U, E> {
        self.link(Location::caller(), |_, outcome| Step::Settled(outcome.map(f)))
    }

    /// Maps the error that the promise was [rejected](Deferred::reject) with.
    #[track_caller]
    pub fn map_err<G: fmt::Debug + 'static>(self, f: impl FnOnce(E) -> G + 'static) -> Promise<T, G> {
        self.link(Location::caller(), |_, outcome| Step::Settled(outcome.map_err(|rejected| rejected.map(f))))
    }

    /// Handles a rejection. `f` returns a replacement value, passes on this rejection or another one, or returns
    /// another promise.
    ///
    /// ```
    /// # use pelton::{Promise, Reactor, Rejected};
    /// # let mut reactor = Reactor::new()?;
    /// # let (deferred, cached) = reactor.promise::<u32, &str>();
    /// # drop(deferred.reject("not found"));
    /// let answer = cached.or_else(|_, rejected| match rejected {
    ///     Rejected::Failed("not found") => Ok(42),
    ///     other => Err(other),
    /// });
    /// # answer.done(|reactor, answer| {
    /// #     assert_eq!(answer, Ok(42));
    /// #     reactor.stop();
    /// # });
    /// # reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn or_else<R: Recovery<T, E>>(self, f: impl FnOnce(&mut Reactor, Rejected<E>) -> R + 'static) -> Promise<T, E> {
        self.link(Location::caller(), |reactor, outcome| match outcome {
            Ok(value) => Step::Settled(Ok(value)),
            Err(rejected) => f(reactor, rejected).into_step(),
        })
    }

    /// Runs `f` for any outcome, and passes the outcome on.
    #[track_caller]
    pub fn finally(self, f: impl FnOnce(&mut Reactor) + 'static) -> Promise<T, E> {
        self.link(Location::caller(), |reactor, outcome| {
            f(reactor);
            Step::Settled(outcome)
        })
    }

    /// Ends the chain. `f` receives the outcome, which counts as handled.
    #[track_caller]
    pub fn done(self, f: impl FnOnce(&mut Reactor, Result<T, Rejected<E>>) + 'static) {
        self.sink(Location::caller(), f);
    }

    /// Calls `look` with the outcome before the consumer receives it. There may be any number of observers. They are
    /// called in the order in which they were added, including those added after the promise was settled.
    ///
    /// Observing a rejection does not handle it. That is up to the consumer.
    #[track_caller]
    pub fn observe(&self, look: impl FnOnce(&mut Reactor, &Result<T, Rejected<E>>) + 'static) {
        self.attach_observer(Location::caller(), Box::new(look));
    }

    /// Rejects with [`Rejected::TimedOut`] if the promise is not settled within `limit` from now. A later outcome is
    /// dropped. An outcome in time cancels the timer.
    #[track_caller]
    pub fn timeout(self, reactor: &mut Reactor, limit: Duration) -> Promise<T, E> {
        let place = Location::caller();
        let link = Link::new(self.core().continuations.clone(), place, None);
        let late: Rc<dyn Source<T, E>> = link.clone();
        let timer = reactor.after_from(place, limit, move |_| drop(settle(late, Err(Rejected::TimedOut(limit)))));
        link.set(move |reactor: &mut Reactor, outcome: Settlement<T, E>| {
            reactor.cancel(timer);
            Step::Settled(outcome)
        });
        self.attach(link.clone());
        Promise { source: Some(link) }
    }

    /// Converts the promise to one with several consumers, each of which receives a clone of the outcome.
    pub fn shared(self) -> SharedPromise<T, E> {
        SharedPromise::new(self)
    }
}

impl<T: 'static, E: 'static> Unpin for Promise<T, E> {}

/// Awaiting a promise returns its outcome, once.
impl<T: 'static, E: 'static> Future for Promise<T, E> {
    type Output = Result<T, Rejected<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.core().poll(context)
    }
}

impl<T: 'static, E: 'static> fmt::Debug for Promise<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Promise").field("settled", &self.core().is_settled()).finish_non_exhaustive()
    }
}
