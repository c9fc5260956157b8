//! Promises: values that will be there later, on the loop.

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

/// What a promise comes to.
type Settlement<T, E> = Result<T, Rejected<E>>;

/// Takes what another thread has left for a promise.
type Arrived = Box<dyn FnOnce(&mut Reactor)>;

/// What a reactor keeps for its promises.
#[derive(Default)]
pub(crate) struct Promises {
    unhandled: Option<unhandled::Hook>,
    /// Answers that other threads have yet to give.
    pub(crate) replies: Slots<Arrived>,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected<E> {
    /// It was rejected, or a continuation before it returned an error.
    #[error("{0}")]
    Failed(E),
    /// Every [`Deferred`] was dropped, so nobody can settle it any more.
    #[error("abandoned: whoever was to settle it is gone")]
    Abandoned,
    /// A continuation before it panicked, and with what.
    #[error("a continuation before it panicked: {0}")]
    Panicked(Arc<str>),
    /// It was not settled within its [time limit](Promise::timeout).
    #[error("not settled within {0:?}")]
    TimedOut(Duration),
}

impl<E> From<E> for Rejected<E> {
    fn from(error: E) -> Self {
        Rejected::Failed(error)
    }
}

impl<E> Rejected<E> {
    /// Makes another error of it, if it [failed](Rejected::Failed) with one.
    pub fn map<G>(self, f: impl FnOnce(E) -> G) -> Rejected<G> {
        match self {
            Rejected::Failed(error) => Rejected::Failed(f(error)),
            Rejected::Abandoned => Rejected::Abandoned,
            Rejected::Panicked(message) => Rejected::Panicked(message),
            Rejected::TimedOut(limit) => Rejected::TimedOut(limit),
        }
    }
}

/// A value that will be there later, or the reason why it is not. Made by [`Reactor::promise`], together with the
/// [`Deferred`] that settles it.
///
/// It has one consumer, which takes it: [`then`](Promise::then) and its like each give a promise of what they return, so they
/// form a chain; [`done`](Promise::done) ends one. Or a task awaits it. [Observers](Promise::observe) get to see the outcome
/// before that, and [`shared`](Promise::shared) has it cloned.
///
/// A rejection goes down the chain until an [`or_else`](Promise::or_else) takes it. One that nobody takes is
/// [reported](Reactor::on_unhandled_rejection). A panic in a continuation is reported as in any other callback, and is a
/// rejection to what follows.
///
/// Continuations run as [ticks](Reactor::next_tick), first settled, first run: never before the call that settles has returned.
/// Dropping a promise does not keep the continuations before it from running.
///
/// ```
/// # use pelton::{Reactor, Rejected};
/// # use std::time::Duration;
/// let mut reactor = Reactor::new()?;
/// let (deferred, text) = reactor.promise::<&str, String>();
/// reactor.after(Duration::from_millis(1), move |_| {
///     // Fails if somebody else was first.
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
    /// Nothing once it is consumed.
    source: Option<Rc<dyn Source<T, E>>>,
}

impl Reactor {
    /// A promise, and what settles it.
    #[track_caller]
    pub fn promise<T: 'static, E: fmt::Debug + 'static>(&self) -> (Deferred<T, E>, Promise<T, E>) {
        pair(self.ticks.continuations.clone(), Location::caller())
    }
}

impl<T: 'static, E: 'static> Promise<T, E> {
    /// The promise of whatever settles `source`.
    pub(crate) fn of(source: Rc<dyn Source<T, E>>) -> Promise<T, E> {
        Promise { source: Some(source) }
    }

    fn core(&self) -> &Core<T, E> {
        self.source.as_ref().expect("only what consumes a promise takes this").core()
    }
}

impl<T: 'static, E: fmt::Debug + 'static> Promise<T, E> {
    /// A promise that is kept already.
    #[track_caller]
    pub fn resolved(reactor: &Reactor, value: T) -> Promise<T, E> {
        let (deferred, promise) = pair(reactor.ticks.continuations.clone(), Location::caller());
        let _ = deferred.resolve(value);
        promise
    }

    /// A promise that is rejected already.
    #[track_caller]
    pub fn rejected(reactor: &Reactor, error: E) -> Promise<T, E> {
        let (deferred, promise) = pair(reactor.ticks.continuations.clone(), Location::caller());
        let _ = deferred.reject(error);
        promise
    }

    /// A promise of what `future` gives. The future runs on the loop, as a [task](Reactor::spawn), also if the promise is
    /// dropped. For answers that are futures, such as those of another runtime: a [`Reply`](crate::Reply) has
    /// [its own way](crate::Reply::into_promise).
    ///
    /// It is [abandoned](Rejected::Abandoned) if the future panics, or the loop stops first.
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
        // Nobody else settles it.
        reactor.spawn(async move { drop(deferred.settle(future.await)) }).detach();
        promise
    }

    /// Whether it is settled: what is attached to it now will run at the next tick.
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

    /// Goes on with the value: `f` returns a `Result`, or another promise to wait for.
    ///
    /// For what cannot fail there is [`map`](Promise::map); for another type of error, [`map_err`](Promise::map_err).
    ///
    /// A promise has one consumer, because the value is moved to it. JavaScript's second `then` on the same promise does not
    /// compile:
    ///
    /// ```compile_fail,E0382
    /// # use pelton::Reactor;
    /// # let reactor = Reactor::new().unwrap();
    /// # let (_deferred, promise) = reactor.promise::<u32, String>();
    /// promise.then(|_, value| Ok(println!("first: {value}")));
    /// promise.then(|_, value| Ok(println!("second: {value}")));
    /// ```
    ///
    /// [`shared`](Promise::shared) makes one whose outcome is cloned for each consumer. To only look at the outcome on its way,
    /// without consuming it, there is [`observe`](Promise::observe).
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

    /// Makes another value of the value.
    #[track_caller]
    pub fn map<U: 'static>(self, f: impl FnOnce(T) -> U + 'static) -> Promise<U, E> {
        self.link(Location::caller(), |_, outcome| Step::Settled(outcome.map(f)))
    }

    /// Makes another error of the error that it was [rejected](Deferred::reject) with.
    #[track_caller]
    pub fn map_err<G: fmt::Debug + 'static>(self, f: impl FnOnce(E) -> G + 'static) -> Promise<T, G> {
        self.link(Location::caller(), |_, outcome| Step::Settled(outcome.map_err(|rejected| rejected.map(f))))
    }

    /// Handles a rejection: `f` returns a value in its place, passes it or another one on, or returns another promise to
    /// wait for.
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

    /// Runs `f` whatever the outcome is, and passes that on.
    #[track_caller]
    pub fn finally(self, f: impl FnOnce(&mut Reactor) + 'static) -> Promise<T, E> {
        self.link(Location::caller(), |reactor, outcome| {
            f(reactor);
            Step::Settled(outcome)
        })
    }

    /// Ends the chain: `f` gets the outcome, and has handled it by that.
    #[track_caller]
    pub fn done(self, f: impl FnOnce(&mut Reactor, Result<T, Rejected<E>>) + 'static) {
        self.sink(Location::caller(), f);
    }

    /// Calls `look` with the outcome, before it goes to whoever consumes the promise. There may be any number of observers;
    /// they are called in the order in which they came, late ones too.
    ///
    /// To look at a rejection is not to handle it: that is for the consumer.
    #[track_caller]
    pub fn observe(&self, look: impl FnOnce(&mut Reactor, &Result<T, Rejected<E>>) + 'static) {
        self.attach_observer(Location::caller(), Box::new(look));
    }

    /// Rejects with [`Rejected::TimedOut`] if the outcome is not there within `limit`, counted from now. An outcome that comes
    /// later is dropped; one that comes in time cancels the timer.
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

    /// Makes it one whose outcome several consumers can have, each a clone: for several [`then`](Promise::then)s on the same
    /// promise.
    pub fn shared(self) -> SharedPromise<T, E> {
        SharedPromise::new(self)
    }
}

impl<T: 'static, E: 'static> Unpin for Promise<T, E> {}

/// For tasks: a promise that is awaited gives its outcome once.
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
