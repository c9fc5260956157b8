//! Links: the continuations attached to a promise.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;

use super::core::{Core, Read, Source, follow, settle};
use super::{Continuations, Promise, Rejected, Settlement};
use crate::Reactor;
use crate::reactor::panics::catch;

/// The result of a continuation.
pub enum Step<T: 'static, E: 'static> {
    Settled(Settlement<T, E>),
    Follow(Promise<T, E>),
}

/// A continuation and the promise of its result, in one allocation.
pub(super) struct Link<T, E, U: 'static, G: 'static, F> {
    act: Cell<Option<F>>,
    core: Core<U, G>,
    takes: PhantomData<fn(T, E)>,
}

impl<T, E, U, G, F> Link<T, E, U, G, F>
where
    T: 'static,
    E: 'static,
    U: 'static,
    G: fmt::Debug + 'static,
    F: FnOnce(&mut Reactor, Settlement<T, E>) -> Step<U, G> + 'static,
{
    pub(super) fn new(continuations: Rc<Continuations>, place: &'static Location<'static>, act: Option<F>) -> Rc<Self> {
        Rc::new(Link { act: Cell::new(act), core: Core::new(continuations, place), takes: PhantomData })
    }

    pub(super) fn set(&self, act: F) {
        self.act.set(Some(act));
    }

    /// Passes the outcome to its reader. Does so at once if it would run next anyway, because the way through the queue
    /// takes longer than most continuations.
    #[inline]
    fn settled(self: Rc<Self>, reactor: &mut Reactor, outcome: Settlement<U, G>) {
        if reactor.comes_next()
            && let Some(next) = self.core.settle_for_link()
        {
            drop(self);
            return reactor.run_at_once(next.place(), |reactor| next.read(reactor, outcome));
        }
        // It may already be settled, by a time limit.
        drop(settle(self, outcome));
    }
}

impl<T, E, U, G, F> Source<U, G> for Link<T, E, U, G, F>
where
    T: 'static,
    E: 'static,
    U: 'static,
    G: fmt::Debug + 'static,
    F: 'static,
{
    fn core(&self) -> &Core<U, G> {
        &self.core
    }

    fn describe(&self, error: &G) -> String {
        format!("{error:?}")
    }
}

impl<T, E, U, G, F> Read<T, E> for Link<T, E, U, G, F>
where
    T: 'static,
    E: 'static,
    U: 'static,
    G: fmt::Debug + 'static,
    F: FnOnce(&mut Reactor, Settlement<T, E>) -> Step<U, G> + 'static,
{
    fn place(&self) -> &'static Location<'static> {
        self.core.place
    }

    fn read(self: Rc<Self>, reactor: &mut Reactor, outcome: Settlement<T, E>) {
        let Some(act) = self.act.take() else { return };
        match catch(|| act(reactor, outcome)) {
            Ok(Step::Settled(outcome)) => self.settled(reactor, outcome),
            Ok(Step::Follow(promise)) => follow(self, promise),
            Err(panic) => {
                let _ = settle(self, Err(Rejected::Panicked(panic.message().into())));
                // Propagate to the code that catches and reports the panics of all callbacks.
                panic.resume();
            }
        }
    }
}

/// The end of a chain: a continuation without a result.
pub(super) struct Sink<F> {
    act: Cell<Option<F>>,
    place: &'static Location<'static>,
}

impl<F> Sink<F> {
    pub(super) fn new(place: &'static Location<'static>, act: F) -> Rc<Self> {
        Rc::new(Sink { act: Cell::new(Some(act)), place })
    }
}

impl<T, E, F> Read<T, E> for Sink<F>
where
    F: FnOnce(&mut Reactor, Settlement<T, E>) + 'static,
{
    fn place(&self) -> &'static Location<'static> {
        self.place
    }

    fn read(self: Rc<Self>, reactor: &mut Reactor, outcome: Settlement<T, E>) {
        if let Some(act) = self.act.take() {
            act(reactor, outcome);
        }
    }
}
