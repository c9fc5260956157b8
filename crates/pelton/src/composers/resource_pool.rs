//! A pool of resources that are lent to one user at a time.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pelton_sync::Closure;

use crate::composers::waiters::Waiters;
use crate::promises::{Continuations, Step};
use crate::reactor::panics::catch;
use crate::{Next, Promise, Reactor, Rejected};

/// A pool of resources that are used exclusively, such as database connections, with a queue for waiting
/// callers.
///
/// [`acquire`](ResourcePool::acquire) lends a resource until the [`Lent`] is dropped. Waiters are served in the order
/// in which they came. A broken resource is [discarded](Lent::discard), and a new one is made when it is needed.
///
/// A pool belongs to a loop and can be cloned there. It is created either with [a function that makes
/// resources](ResourcePool::new) on demand, or [from existing resources](ResourcePool::of).
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

/// Why no resource was lent. In addition, waiting may [time out](Rejected::TimedOut).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError<E> {
    /// The [limit](ResourcePool::max_waiting) on waiters is reached. Holds their number.
    #[error("acquire a resource: {0} others are already waiting for one")]
    Crowded(usize),
    /// Making a resource failed. Only the waiter that has waited longest gets this error.
    #[error("acquire a resource: making one failed: {0}")]
    NotMade(Rejected<E>),
    /// All resources were discarded, and the pool cannot make new ones.
    #[error("acquire a resource: none are left")]
    NoneLeft,
    /// The pool was [closed](ResourcePool::close).
    #[error("acquire a resource: the pool is closed")]
    Closed,
}

/// The statistics of a resource pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ResourcePoolStats {
    /// Resources that are not lent.
    pub free: usize,
    /// Resources that are lent, or about to be picked up by a waiter.
    pub lent: usize,
    /// Resources that are being made.
    pub making: usize,
    /// Waiters.
    pub waiting: usize,
    /// Resources [discarded](Lent::discard) so far.
    pub discarded: u64,
    /// Acquisitions [refused](AcquireError::Crowded) so far.
    pub refused: u64,
}

type Make<R, E> = Box<dyn FnMut(&mut Reactor) -> Step<R, E>>;

struct Inner<R: 'static, E: 'static> {
    waiters: Arc<Waiters<R, AcquireError<E>>>,
    continuations: Rc<Continuations>,
    place: &'static Location<'static>,
    /// `None` while it is being called.
    make: RefCell<Option<Make<R, E>>>,
    can_make: bool,
    /// The maximum number of resources.
    size: Cell<usize>,
    /// The number of resources, free and lent.
    made: Cell<usize>,
    making: Cell<usize>,
    max_waiting: Cell<usize>,
    wait_limit: Cell<Option<Duration>>,
    discarded: Cell<u64>,
    refused: Cell<u64>,
}

impl<R: 'static, E: fmt::Debug + 'static> ResourcePool<R, E> {
    /// Creates a pool of up to `size` resources, at least one. `make` is called when one is needed, and returns a
    /// `Result` or a promise. If it fails, the waiter that has waited longest gets [`AcquireError::NotMade`].
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
            waiters: Waiters::new(|| AcquireError::Closed),
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

    /// Refuses to let more than `most` wait. By default there is no limit.
    pub fn max_waiting(self, most: usize) -> Self {
        self.inner.max_waiting.set(most);
        self
    }

    /// Limits the wait. After `limit` it fails with [`Rejected::TimedOut`].
    pub fn wait_limit(self, limit: Duration) -> Self {
        self.inner.wait_limit.set(Some(limit));
        self
    }

    /// Adds a resource to the pool.
    pub fn add(&self, resource: R) {
        let inner = &self.inner;
        // A closed pool refuses the resource, which is dropped here.
        if inner.waiters.put(resource, usize::MAX).is_ok() {
            inner.made.set(inner.made.get() + 1);
            inner.size.set(inner.size.get().max(inner.made.get()));
        }
    }

    /// Returns a promise of a resource, which is lent until the [`Lent`] is dropped. Dropping the promise stops
    /// waiting.
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
        let snapshot = inner.waiters.snapshot();
        if snapshot.stock == 0 && !snapshot.closed {
            if !inner.can_make && inner.made.get() == 0 {
                return Promise::rejected(reactor, AcquireError::NoneLeft);
            }
            if snapshot.waiting >= inner.max_waiting.get() {
                inner.refused.set(inner.refused.get() + 1);
                return Promise::rejected(reactor, AcquireError::Crowded(snapshot.waiting));
            }
        }
        let pool = inner.clone();
        let lend = move |resource| Lent { resource: Some(resource), pool };
        let (_, promise) =
            inner.waiters.wait(reactor, Location::caller(), inner.wait_limit.get(), lend, Lent::take_back);
        inner.make_soon();
        promise
    }

    /// Acquires a resource, calls `f` with it, and takes it back when the promise returned by `f` settles. The error
    /// type must be constructible from [`AcquireError`], as `Box<dyn Error>` is.
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

    /// Closes the pool. Waiters are rejected, free resources are dropped now, and lent ones when they are given back.
    pub fn close(&self) {
        self.inner.waiters.close();
        while let Some(resource) = self.inner.waiters.take() {
            self.inner.made.set(self.inner.made.get() - 1);
            drop(resource);
        }
    }

    /// Returns the pool's statistics.
    ///
    /// ```
    /// # use pelton::{Reactor, ResourcePool};
    /// # let reactor = Reactor::new()?;
    /// let pens = ResourcePool::of(&reactor, ["red", "blue"]);
    /// assert_eq!((pens.stats().free, pens.stats().lent), (2, 0));
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn stats(&self) -> ResourcePoolStats {
        let (inner, snapshot) = (&self.inner, self.inner.waiters.snapshot());
        ResourcePoolStats {
            free: snapshot.stock,
            lent: inner.made.get() - snapshot.stock,
            making: inner.making.get(),
            waiting: snapshot.waiting,
            discarded: inner.discarded.get(),
            refused: inner.refused.get(),
        }
    }
}

impl<R: 'static> ResourcePool<R> {
    /// Creates a pool of existing resources. A discarded resource is not replaced; [`add`](ResourcePool::add) adds one.
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
    /// Makes the needed resources from a tick, since callers may not have a reactor.
    fn make_soon(self: &Rc<Self>) {
        if self.lacks_one() {
            let pool = self.clone();
            self.continuations.push(self.place, Closure::new(move |reactor| pool.make_needed(reactor)));
        }
    }

    fn lacks_one(&self) -> bool {
        let room = self.made.get() + self.making.get() < self.size.get();
        self.can_make && room && self.waiters.snapshot().waiting > self.making.get()
    }

    fn make_needed(self: Rc<Self>, reactor: &mut Reactor) {
        while self.lacks_one() {
            let Some(mut make) = self.make.take() else { return };
            let begun = catch(|| make(reactor));
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
                    self.made(Err(Rejected::Panicked(panic.message().into())));
                    self.make_soon();
                    // Propagate to the code that catches and reports the panics of all callbacks.
                    panic.resume();
                }
            }
        }
    }

    fn made(&self, outcome: Result<R, Rejected<E>>) {
        match outcome {
            Ok(resource) => {
                if self.waiters.put(resource, usize::MAX).is_ok() {
                    self.made.set(self.made.get() + 1);
                }
            }
            Err(rejected) => drop(self.waiters.fail_first(AcquireError::NotMade(rejected))),
        }
    }
}

impl<R: 'static, E: 'static> Inner<R, E> {
    fn give_back(&self, resource: R) {
        if self.waiters.put(resource, usize::MAX).is_err() {
            self.made.set(self.made.get() - 1);
        }
    }
}

/// Clones refer to the same pool.
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

/// A resource lent by a [`ResourcePool`]. Dropping it gives the resource back.
pub struct Lent<R: 'static, E: 'static = Infallible> {
    /// `None` after it was discarded or taken back.
    resource: Option<R>,
    pool: Rc<Inner<R, E>>,
}

impl<R: 'static, E: fmt::Debug + 'static> Lent<R, E> {
    /// Removes the resource from the pool because it is broken. If somebody is waiting, another one is made.
    pub fn discard(mut self) -> R {
        let pool = self.pool.clone();
        let resource = self.resource.take().expect("a resource is taken once, since this consumes `self`");
        pool.made.set(pool.made.get() - 1);
        pool.discarded.set(pool.discarded.get() + 1);
        if !pool.can_make && pool.made.get() == 0 {
            while pool.waiters.fail_first(AcquireError::NoneLeft).is_ok() {}
        }
        pool.make_soon();
        resource
    }

    fn take_back(mut self) -> R {
        self.resource.take().expect("a resource is taken once, since this consumes `self`")
    }
}

impl<R: 'static, E: 'static> Deref for Lent<R, E> {
    type Target = R;

    fn deref(&self) -> &R {
        self.resource.as_ref().expect("only `discard` and `take_back` take the resource, and they consume `self`")
    }
}

impl<R: 'static, E: 'static> DerefMut for Lent<R, E> {
    fn deref_mut(&mut self) -> &mut R {
        self.resource.as_mut().expect("only `discard` and `take_back` take the resource, and they consume `self`")
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
