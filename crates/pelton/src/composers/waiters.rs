//! Standing in line for things that are handed out one by one: what a [`Queue`](crate::Queue) and a
//! [`ResourcePool`](crate::ResourcePool) have in common.
//!
//! There are things in stock, or there are waiters, never both. A thing that comes in is handed to the first waiter there and
//! then, so nobody who comes later can get ahead of it; its loop is told by a post, and picks the thing up. Until it has, the
//! thing is accounted for here: if the waiter goes, or its whole loop does, the thing goes to the next one.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::promises::{Core, Source, pair, settle};
use crate::threads::reply::Arrival;
use crate::{Promise, Reactor, Rejected, TimerId};

pub(crate) struct Line<T, E> {
    state: Mutex<State<T, E>>,
    /// What those are told who wait when it is closed.
    closing: fn() -> E,
}

/// Things have numbers, so that one that comes back finds the place it had.
type Numbered<T> = (u64, T);

struct State<T, E> {
    stock: VecDeque<Numbered<T>>,
    /// By ticket, so the first is the one that has waited longest.
    waiting: BTreeMap<u64, Arrival>,
    /// Handed over, and not yet picked up.
    served: BTreeMap<u64, (Arrival, Result<Numbered<T>, E>)>,
    next_ticket: u64,
    next_number: u64,
    closed: bool,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) put: u64,
    pub(crate) taken: u64,
    pub(crate) refused: u64,
}

/// How a line is.
pub(crate) struct Standing {
    pub(crate) stock: usize,
    pub(crate) waiting: usize,
    pub(crate) closed: bool,
    pub(crate) counts: Counts,
}

/// Why a thing was not taken in.
pub(crate) enum Refused<T> {
    Full(T),
    Closed(T),
}

impl<T, E> State<T, E> {
    /// Hands it to whoever has waited longest; or else it comes back.
    fn serve(&mut self, thing: Numbered<T>) -> Option<Numbered<T>> {
        let Some((ticket, arrival)) = self.waiting.pop_first() else { return Some(thing) };
        // Told under the lock, so that those who are served first are told first.
        arrival.notify();
        self.served.insert(ticket, (arrival, Ok(thing)));
        None
    }

    fn put_back(&mut self, thing: Numbered<T>) {
        if let Some((number, thing)) = self.serve(thing) {
            let place = self.stock.partition_point(|(other, _)| *other < number);
            self.stock.insert(place, (number, thing));
        }
    }
}

impl<T, E> Line<T, E> {
    pub(crate) fn new(closing: fn() -> E) -> Arc<Line<T, E>> {
        let state = State {
            stock: VecDeque::new(),
            waiting: BTreeMap::new(),
            served: BTreeMap::new(),
            next_ticket: 0,
            next_number: 0,
            closed: false,
            counts: Counts::default(),
        };
        Arc::new(Line { state: Mutex::new(state), closing })
    }

    /// Nothing of the user's runs or is dropped under the lock, so what a panic left behind is whole.
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn standing(&self) -> Standing {
        let state = self.lock();
        Standing { stock: state.stock.len(), waiting: state.waiting.len(), closed: state.closed, counts: state.counts }
    }

    /// Takes a thing in; but not if `bound` things are in stock already.
    pub(crate) fn put(&self, thing: T, bound: usize) -> Result<(), Refused<T>> {
        let mut state = self.lock();
        if state.closed {
            state.counts.refused += 1;
            return Err(Refused::Closed(thing));
        }
        if state.waiting.is_empty() && state.stock.len() >= bound {
            state.counts.refused += 1;
            return Err(Refused::Full(thing));
        }
        let number = state.next_number;
        state.next_number += 1;
        state.counts.put += 1;
        if let Some(thing) = state.serve((number, thing)) {
            state.stock.push_back(thing);
        }
        Ok(())
    }

    /// Takes a thing out, if there is one.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.lock();
        let (_, thing) = state.stock.pop_front()?;
        state.counts.taken += 1;
        Some(thing)
    }

    /// Tells the one that has waited longest that it gets none. The error comes back if nobody waits.
    pub(crate) fn fail_first(&self, error: E) -> Result<(), E> {
        let mut state = self.lock();
        let Some((ticket, arrival)) = state.waiting.pop_first() else { return Err(error) };
        arrival.notify();
        state.served.insert(ticket, (arrival, Err(error)));
        Ok(())
    }

    /// Takes nothing in any more, and tells everybody who waits. `false` if it was closed before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return false;
        }
        for (ticket, arrival) in std::mem::take(&mut state.waiting) {
            arrival.notify();
            state.served.insert(ticket, (arrival, Err((self.closing)())));
        }
        true
    }

    /// Takes a waiter out of the line. What it was handed, and has not picked up, goes to the next. `false` if it was not in
    /// line any more.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.lock();
        if let Some(arrival) = state.waiting.remove(&ticket) {
            // There is something to clear away on its loop.
            arrival.notify();
            return true;
        }
        let Some((arrival, served)) = state.served.remove(&ticket) else { return false };
        arrival.notify();
        match served {
            Ok(thing) => state.put_back(thing),
            Err(error) => {
                drop(state);
                drop(error);
            }
        }
        true
    }

    /// Takes a waiter out of the line, unless it was served.
    fn give_up(&self, ticket: u64) -> bool {
        self.lock().waiting.remove(&ticket).is_some()
    }

    fn pick_up(&self, ticket: u64) -> Option<Result<Numbered<T>, E>> {
        let mut state = self.lock();
        let (_, served) = state.served.remove(&ticket)?;
        state.counts.taken += u64::from(served.is_ok());
        Some(served)
    }
}

impl<T: 'static, E: fmt::Debug + 'static> Line<T, E> {
    /// Waits for a thing, for `limit` at most. What is promised is made of it by `wrap`; `unwrap` takes that apart again, should
    /// nobody take it. Gives the ticket too.
    pub(crate) fn wait<U: 'static>(
        self: &Arc<Self>,
        reactor: &mut Reactor,
        place: &'static Location<'static>,
        limit: Option<Duration>,
        wrap: impl FnOnce(T) -> U + 'static,
        unwrap: fn(U) -> T,
    ) -> (u64, Promise<U, E>) {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        if reactor.is_over() {
            // It would keep a thing from others, and never pick it up.
            return (ticket, pair(reactor.ticks.continuations.clone(), place).1);
        }
        let at_once = match state.stock.pop_front() {
            Some(thing) => Some(Ok(thing)),
            None if state.closed => Some(Err((self.closing)())),
            None => None,
        };
        let waiter = Rc::new(Waiter {
            core: Core::new(reactor.ticks.continuations.clone(), place),
            line: self.clone(),
            ticket,
            number: Cell::new(0),
            wrap: Cell::new(Some(wrap)),
            unwrap,
            timer: Cell::new(None),
        });
        let at_once = match at_once {
            Some(outcome) if state.served.is_empty() => {
                state.counts.taken += u64::from(outcome.is_ok());
                drop(state);
                waiter.clone().settle(outcome);
                return (ticket, Promise::of(waiter));
            }
            other => other,
        };
        let claim = Claim(waiter.clone());
        let key = reactor.promises.replies.insert(Box::new(move |reactor| claim.pick_up(reactor)));
        let arrival = Arrival { handle: reactor.handle(), key, place };
        if let Some(outcome) = at_once {
            // Others were served before, and have not heard of it yet: this one is told after them.
            arrival.notify();
            state.served.insert(ticket, (arrival, outcome));
            return (ticket, Promise::of(waiter));
        }
        state.waiting.insert(ticket, arrival);
        drop(state);
        if let Some(limit) = limit {
            let late = waiter.clone();
            let timer = reactor.after_from(place, limit, move |reactor| {
                if late.line.give_up(ticket) {
                    let _ = settle(late, Err(Rejected::TimedOut(limit)));
                    drop(reactor.promises.replies.remove(key));
                }
            });
            waiter.timer.set(Some(timer));
        }
        (ticket, Promise::of(waiter))
    }
}

/// Somebody in line, and the promise of what there is to get.
struct Waiter<T, E: 'static, U: 'static, W> {
    core: Core<U, E>,
    line: Arc<Line<T, E>>,
    ticket: u64,
    /// Of the thing it got.
    number: Cell<u64>,
    wrap: Cell<Option<W>>,
    unwrap: fn(U) -> T,
    timer: Cell<Option<TimerId>>,
}

impl<T, E, U, W> Waiter<T, E, U, W>
where
    T: 'static,
    E: fmt::Debug + 'static,
    U: 'static,
    W: FnOnce(T) -> U + 'static,
{
    fn settle(self: Rc<Self>, outcome: Result<Numbered<T>, E>) {
        let Some(wrap) = self.wrap.take() else { return };
        let outcome = outcome.map(|(number, thing)| {
            self.number.set(number);
            wrap(thing)
        });
        let _ = settle(self, outcome.map_err(Rejected::Failed));
    }
}

impl<T: 'static, E: fmt::Debug + 'static, U: 'static, W: 'static> Source<U, E> for Waiter<T, E, U, W> {
    fn core(&self) -> &Core<U, E> {
        &self.core
    }

    fn describe(&self, error: &E) -> String {
        format!("{error:?}")
    }

    fn unwanted(&self) {
        self.line.withdraw(self.ticket);
    }

    fn untaken(&self, value: U) {
        let thing = (self.unwrap)(value);
        let mut state = self.line.lock();
        state.counts.taken -= 1;
        state.put_back((self.number.get(), thing));
    }
}

/// A waiter's stake in what its reactor keeps: if that goes, the waiter leaves the line.
struct Claim<T: 'static, E: 'static, U: 'static, W: 'static>(Rc<Waiter<T, E, U, W>>);

impl<T, E, U, W> Claim<T, E, U, W>
where
    E: fmt::Debug,
    W: FnOnce(T) -> U + 'static,
{
    fn pick_up(self, reactor: &mut Reactor) {
        if let Some(timer) = self.0.timer.take() {
            reactor.cancel(timer);
        }
        // Nothing, if it was withdrawn.
        if let Some(served) = self.0.line.pick_up(self.0.ticket) {
            self.0.clone().settle(served);
        }
    }
}

impl<T, E, U, W> Drop for Claim<T, E, U, W> {
    fn drop(&mut self) {
        if !self.0.core.is_settled() {
            self.0.line.withdraw(self.0.ticket);
        }
    }
}
