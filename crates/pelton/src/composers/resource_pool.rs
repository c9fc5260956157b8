//! Things that are few, lent to those who need one.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pelton_sync::Closure;

use crate::composers::waiters::Line;
use crate::promises::{Continuations, Step};
use crate::reactor::callback::message;
use crate::{Next, Promise, Reactor, Rejected};

/// So many things of which each can be used by one at a time, such as connections to a database, and a line of those who wait
/// for one.
///
/// Whoever [acquires](ResourcePool::acquire) one has it [lent](Lent) until that is dropped; those who wait get one in the order in
/// which they came. A resource that is found to be broken is [discarded](Lent::discard), and made anew when somebody needs one.
///
/// It belongs to a loop, and may be cloned there. It is made with [what makes resources](ResourcePool::new), which is called only
/// when one is needed; or [of resources](ResourcePool::of) that are there.
///
/// ```
/// # use pelton::{Promise, Reactor, ResourcePool};
/// # use std::time::Duration;
/// # type Failure = Box<dyn std::error::Error>;
/// # struct Connection(u32);
/// # fn connect(reactor: &mut Reactor, number: u32) -> Promise<Connection, String> {
/// #     Promise::resolved(reactor, Connection(number))
/// # }
/// # impl Connection {
/// #     fn query(&mut self, reactor: &mut Reactor) -> Promise<u32, Failure> { Promise::resolved(reactor, self.0) }
/// # }
/// let mut reactor = Reactor::new()?;
/// let mut made = 0;
/// let connections = ResourcePool::new(&reactor, 2, move |reactor| {
///     made += 1;
///     connect(reactor, made)
/// })
/// .max_waiting(100)
/// .wait_limit(Duration::from_secs(5));
///
/// let answer = connections.perform(&mut reactor, |reactor, connection| connection.query(reactor));
/// answer.done(|reactor, answer| {
///     assert_eq!(answer.unwrap(), 1);
///     reactor.stop();
/// });
/// reactor.run()?;
/// # Ok::<(), pelton::Error>(())
/// ```
pub struct ResourcePool<R: 'static, E: 'static = Infallible> {
    inner: Rc<Inner<R, E>>,
}

/// Why no resource was lent. Besides, waiting may [time out](Rejected::TimedOut).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError<E> {
    /// As many wait already as [may](ResourcePool::max_waiting): this many.
    #[error("acquire a resource: {0} are waiting for one already")]
    Crowded(usize),
    /// A resource was to be made for whoever has waited longest, and could not be.
    #[error("acquire a resource: it could not be made: {0}")]
    NotMade(Rejected<E>),
    /// All resources were discarded, and there is nothing to make others with.
    #[error("acquire a resource: none is left")]
    NoneLeft,
    /// The pool was [closed](ResourcePool::close).
    #[error("acquire a resource: the pool is closed")]
    Closed,
}

/// How a pool stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ResourcePoolStats {
    /// Resources that nobody uses.
    pub free: usize,
    /// Resources that are lent, or on their way to whoever waited.
    pub lent: usize,
    /// Resources that are being made.
    pub making: usize,
    /// Those who wait.
    pub waiting: usize,
    /// Resources that were [discarded](Lent::discard), so far.
    pub discarded: u64,
    /// Those who were [turned away](AcquireError::Crowded), so far.
    pub refused: u64,
}

type Make<R, E> = Box<dyn FnMut(&mut Reactor) -> Step<R, E>>;

struct Inner<R: 'static, E: 'static> {
    line: Arc<Line<R, AcquireError<E>>>,
    continuations: Rc<Continuations>,
    place: &'static Location<'static>,
    /// Not there while it is being called.
    make: RefCell<Option<Make<R, E>>>,
    can_make: bool,
    /// How many resources there may be.
    size: Cell<usize>,
    /// How many there are, free and lent.
    made: Cell<usize>,
    making: Cell<usize>,
    max_waiting: Cell<usize>,
    wait_limit: Cell<Option<Duration>>,
    discarded: Cell<u64>,
    refused: Cell<u64>,
}

impl<R: 'static, E: fmt::Debug + 'static> ResourcePool<R, E> {
    /// A pool of up to `size` resources, at least one, that `make` makes as they are needed: it returns a `Result`, or a promise to
    /// wait for. If it fails, whoever has waited longest is [told](AcquireError::NotMade).
    #[track_caller]
    pub fn new<N: Next<E, Value = R>>(
        reactor: &Reactor,
        size: usize,
        mut make: impl FnMut(&mut Reactor) -> N + 'static,
    ) -> ResourcePool<R, E> {
        let make: Make<R, E> = Box::new(move |reactor| make(reactor).into_step());
        ResourcePool::with(reactor, size.max(1), Some(make))
    }

    #[track_caller]
    fn with(reactor: &Reactor, size: usize, make: Option<Make<R, E>>) -> ResourcePool<R, E> {
        let inner = Inner {
            line: Line::new(|| AcquireError::Closed),
            continuations: reactor.ticks.continuations.clone(),
            place: Location::caller(),
            can_make: make.is_some(),
            make: RefCell::new(make),
            size: Cell::new(size),
            made: Cell::new(0),
            making: Cell::new(0),
            max_waiting: Cell::new(usize::MAX),
            wait_limit: Cell::new(None),
            discarded: Cell::new(0),
            refused: Cell::new(0),
        };
        ResourcePool { inner: Rc::new(inner) }
    }

    /// Turns away who comes when so many wait already. Without it, any number may.
    pub fn max_waiting(self, most: usize) -> Self {
        self.inner.max_waiting.set(most);
        self
    }

    /// Nobody waits longer than this: then it is [`Rejected::TimedOut`].
    pub fn wait_limit(self, limit: Duration) -> Self {
        self.inner.wait_limit.set(Some(limit));
        self
    }

    /// Puts one more resource in.
    pub fn add(&self, resource: R) {
        let inner = &self.inner;
        // A closed pool takes nothing; what it refuses is dropped here.
        if inner.line.put(resource, usize::MAX).is_ok() {
            inner.made.set(inner.made.get() + 1);
            inner.size.set(inner.size.get().max(inner.made.get()));
        }
    }

    /// A promise of a resource, until what is promised is dropped. Dropping the promise leaves the line.
    ///
    /// ```
    /// # use pelton::{AcquireError, Reactor, Rejected, ResourcePool};
    /// let mut reactor = Reactor::new()?;
    /// let pens = ResourcePool::of(&reactor, ["red", "blue"]);
    /// pens.acquire(&mut reactor).done(|reactor, pen| {
    ///     assert_eq!(*pen.unwrap(), "red");
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn acquire(&self, reactor: &mut Reactor) -> Promise<Lent<R, E>, AcquireError<E>> {
        let inner = &self.inner;
        let standing = inner.line.standing();
        if standing.stock == 0 && !standing.closed {
            if !inner.can_make && inner.made.get() == 0 {
                return Promise::rejected(reactor, AcquireError::NoneLeft);
            }
            if standing.waiting >= inner.max_waiting.get() {
                inner.refused.set(inner.refused.get() + 1);
                return Promise::rejected(reactor, AcquireError::Crowded(standing.waiting));
            }
        }
        let pool = inner.clone();
        let lend = move |resource| Lent { resource: Some(resource), pool };
        let (_, promise) = inner.line.wait(reactor, Location::caller(), inner.wait_limit.get(), lend, Lent::take_back);
        inner.make_soon();
        promise
    }

    /// Acquires a resource, calls `f` with it, and has it back when what `f` returns is settled. Its type of error has to be able
    /// to say that there was [no resource](AcquireError): `Box<dyn Error>` is.
    #[track_caller]
    pub fn perform<T, F>(
        &self,
        reactor: &mut Reactor,
        f: impl FnOnce(&mut Reactor, &mut Lent<R, E>) -> Promise<T, F> + 'static,
    ) -> Promise<T, F>
    where
        T: 'static,
        F: From<AcquireError<E>> + fmt::Debug + 'static,
    {
        self.acquire(reactor).map_err(F::from).then(move |reactor, mut lent| {
            let result = f(reactor, &mut lent);
            result.finally(move |_| drop(lent))
        })
    }

    /// Lends nothing any more. Those who wait are told; what is free is dropped now, and what is lent when it is given back.
    pub fn close(&self) {
        self.inner.line.close();
        while let Some(resource) = self.inner.line.take() {
            self.inner.made.set(self.inner.made.get() - 1);
            drop(resource);
        }
    }

    /// How it stands.
    ///
    /// ```
    /// # use pelton::{Reactor, ResourcePool};
    /// # let reactor = Reactor::new()?;
    /// let pens = ResourcePool::of(&reactor, ["red", "blue"]);
    /// assert_eq!((pens.stats().free, pens.stats().lent), (2, 0));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn stats(&self) -> ResourcePoolStats {
        let (inner, standing) = (&self.inner, self.inner.line.standing());
        ResourcePoolStats {
            free: standing.stock,
            lent: inner.made.get() - standing.stock,
            making: inner.making.get(),
            waiting: standing.waiting,
            discarded: inner.discarded.get(),
            refused: inner.refused.get(),
        }
    }
}

impl<R: 'static> ResourcePool<R> {
    /// A pool of what is there. If a resource is discarded, there is one less; [`add`](ResourcePool::add) puts one in.
    ///
    /// ```
    /// # use pelton::{AcquireError, Reactor, Rejected, ResourcePool};
    /// let mut reactor = Reactor::new()?;
    /// let pens = ResourcePool::of(&reactor, ["red"]);
    /// let same = pens.clone();
    /// pens.acquire(&mut reactor)
    ///     .then(move |reactor, pen| {
    ///         assert_eq!(pen.discard(), "red");
    ///         same.acquire(reactor)
    ///     })
    ///     .done(|reactor, none| {
    ///         assert!(matches!(none, Err(Rejected::Failed(AcquireError::NoneLeft))));
    ///         reactor.stop();
    ///     });
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn of(reactor: &Reactor, resources: impl IntoIterator<Item = R>) -> ResourcePool<R> {
        let pool = ResourcePool::with(reactor, 0, None);
        resources.into_iter().for_each(|resource| pool.add(resource));
        pool
    }
}

impl<R: 'static, E: fmt::Debug + 'static> Inner<R, E> {
    /// Makes what is needed, from a tick: this may be called where there is no reactor.
    fn make_soon(self: &Rc<Self>) {
        if self.lacks_one() {
            let pool = self.clone();
            self.continuations.push(self.place, Closure::new(move |reactor| pool.make_needed(reactor)));
        }
    }

    fn lacks_one(&self) -> bool {
        let room = self.made.get() + self.making.get() < self.size.get();
        self.can_make && room && self.line.standing().waiting > self.making.get()
    }

    fn make_needed(self: Rc<Self>, reactor: &mut Reactor) {
        while self.lacks_one() {
            let Some(mut make) = self.make.take() else { return };
            let begun = catch_unwind(AssertUnwindSafe(|| make(reactor)));
            *self.make.borrow_mut() = Some(make);
            match begun {
                Ok(Step::Settled(outcome)) => self.made(outcome),
                Ok(Step::Follow(promise)) => {
                    self.making.set(self.making.get() + 1);
                    let pool = self.clone();
                    promise.sink(self.place, move |_, outcome| {
                        pool.making.set(pool.making.get() - 1);
                        pool.made(outcome);
                        pool.make_soon();
                    });
                }
                Err(panic) => {
                    self.made(Err(Rejected::Panicked(message(&panic).into())));
                    self.make_soon();
                    // Goes on to where the panics of all callbacks are caught and reported.
                    resume_unwind(panic);
                }
            }
        }
    }

    fn made(&self, outcome: Result<R, Rejected<E>>) {
        match outcome {
            Ok(resource) => {
                if self.line.put(resource, usize::MAX).is_ok() {
                    self.made.set(self.made.get() + 1);
                }
            }
            Err(rejected) => drop(self.line.fail_first(AcquireError::NotMade(rejected))),
        }
    }
}

impl<R: 'static, E: 'static> Inner<R, E> {
    fn give_back(&self, resource: R) {
        if self.line.put(resource, usize::MAX).is_err() {
            self.made.set(self.made.get() - 1);
        }
    }
}

/// Another way to the same pool.
impl<R: 'static, E: 'static> Clone for ResourcePool<R, E> {
    fn clone(&self) -> Self {
        ResourcePool { inner: self.inner.clone() }
    }
}

impl<R: 'static, E: fmt::Debug + 'static> fmt::Debug for ResourcePool<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourcePool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// A resource of a [`ResourcePool`], on loan: dropping it gives it back.
pub struct Lent<R: 'static, E: 'static = Infallible> {
    /// Nothing once it is discarded.
    resource: Option<R>,
    pool: Rc<Inner<R, E>>,
}

impl<R: 'static, E: fmt::Debug + 'static> Lent<R, E> {
    /// Takes the resource out of the pool for good, because it is broken. If somebody waits, another one is made.
    pub fn discard(mut self) -> R {
        let pool = self.pool.clone();
        let resource = self.resource.take().expect("nothing else takes it");
        pool.made.set(pool.made.get() - 1);
        pool.discarded.set(pool.discarded.get() + 1);
        if !pool.can_make && pool.made.get() == 0 {
            while pool.line.fail_first(AcquireError::NoneLeft).is_ok() {}
        }
        pool.make_soon();
        resource
    }

    fn take_back(mut self) -> R {
        self.resource.take().expect("nothing else takes it")
    }
}

impl<R: 'static, E: 'static> Deref for Lent<R, E> {
    type Target = R;

    fn deref(&self) -> &R {
        self.resource.as_ref().expect("it is there until it is discarded")
    }
}

impl<R: 'static, E: 'static> DerefMut for Lent<R, E> {
    fn deref_mut(&mut self) -> &mut R {
        self.resource.as_mut().expect("it is there until it is discarded")
    }
}

impl<R: 'static, E: 'static> Drop for Lent<R, E> {
    fn drop(&mut self) {
        if let Some(resource) = self.resource.take() {
            self.pool.give_back(resource);
        }
    }
}

impl<R: fmt::Debug + 'static, E: 'static> fmt::Debug for Lent<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&**self).finish()
    }
}
