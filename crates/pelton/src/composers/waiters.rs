//! Waiting for things that are handed out one by one. [`Queue`](crate::Queue) and [`ResourcePool`](crate::ResourcePool)
//! share this.
//!
//! There are either things in stock or waiters, never both. A thing that arrives is assigned to the first waiter at
//! once, so that later waiters cannot overtake it. The waiter's loop is notified by a post and picks the thing up.
//! Until then the thing is kept here. If the waiter or its whole loop goes away, the thing goes to the next waiter.

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

pub(crate) struct Waiters<T, E> {
    state: Mutex<State<T, E>>,
    /// Creates the error that waiters get once this is closed.
    closing: fn() -> E,
}

/// A thing with a sequence number, so that one that is put back regains its position.
type Numbered<T> = (u64, T);

struct State<T, E> {
    stock: VecDeque<Numbered<T>>,
    /// The waiters by ticket, so the first entry has waited longest.
    waiting: BTreeMap<u64, Arrival>,
    /// Results that are assigned to a waiter, but not yet picked up.
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

/// A snapshot of the state.
pub(crate) struct Snapshot {
    pub(crate) stock: usize,
    pub(crate) waiting: usize,
    pub(crate) closed: bool,
    pub(crate) counts: Counts,
}

/// The error returned when a thing cannot be put in. It gives the thing back.
pub(crate) enum Refused<T> {
    Full(T),
    Closed(T),
}

impl<T, E> State<T, E> {
    /// Assigns the thing to the waiter that has waited longest, or returns it if nobody is waiting.
    fn serve(&mut self, thing: Numbered<T>) -> Option<Numbered<T>> {
        let Some((ticket, arrival)) = self.waiting.pop_first() else { return Some(thing) };
        // Notify under the lock, so that notifications have the same order as assignments.
        arrival.notify();
        self.served.insert(ticket, (arrival, Ok(thing)));
        None
    }

    fn put_back(&mut self, thing: Numbered<T>) {
        if let Some((number, thing)) = self.serve(thing) {
            let position = self.stock.partition_point(|(other, _)| *other < number);
            self.stock.insert(position, (number, thing));
        }
    }
}

impl<T, E> Waiters<T, E> {
    pub(crate) fn new(closing: fn() -> E) -> Arc<Waiters<T, E>> {
        let state = State {
            stock: VecDeque::new(),
            waiting: BTreeMap::new(),
            served: BTreeMap::new(),
            next_ticket: 0,
            next_number: 0,
            closed: false,
            counts: Counts::default(),
        };
        Arc::new(Waiters { state: Mutex::new(state), closing })
    }

    /// Locks the state. No user code runs under the lock and nothing of the user's is dropped, so a panic leaves it
    /// consistent.
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        Snapshot { stock: state.stock.len(), waiting: state.waiting.len(), closed: state.closed, counts: state.counts }
    }

    /// Puts a thing in. Refuses it if `bound` things are already in stock.
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

    /// Takes a thing out of the stock, if there is one.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.lock();
        let (_, thing) = state.stock.pop_front()?;
        state.counts.taken += 1;
        Some(thing)
    }

    /// Fails the waiter that has waited longest with `error`, or returns the error if nobody is waiting.
    pub(crate) fn fail_first(&self, error: E) -> Result<(), E> {
        let mut state = self.lock();
        let Some((ticket, arrival)) = state.waiting.pop_first() else { return Err(error) };
        arrival.notify();
        state.served.insert(ticket, (arrival, Err(error)));
        Ok(())
    }

    /// Closes: refuses further things, and fails all waiters. Returns `false` if it was already closed.
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

    /// Removes a waiter. If it was assigned a thing and has not picked it up, the next waiter gets it. Returns `false`
    /// if it was not waiting any more.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.lock();
        if let Some(arrival) = state.waiting.remove(&ticket) {
            // Its loop still has an entry to remove.
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

    /// Removes a waiter, unless it has been served.
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

impl<T: 'static, E: fmt::Debug + 'static> Waiters<T, E> {
    /// Waits for a thing, for at most `limit`. `wrap` converts the thing to the promised value; `unwrap` converts it
    /// back if the value is never taken. Also returns the ticket.
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
            // Do not assign a thing to a loop that will never pick it up.
            return (ticket, pair(reactor.ticks.continuations.clone(), place).1);
        }
        let at_once = match state.stock.pop_front() {
            Some(thing) => Some(Ok(thing)),
            None if state.closed => Some(Err((self.closing)())),
            None => None,
        };
        let waiter = Rc::new(Waiter {
            core: Core::new(reactor.ticks.continuations.clone(), place),
            waiters: self.clone(),
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
            // Others were served earlier but have not been notified yet. Notify this one after them.
            arrival.notify();
            state.served.insert(ticket, (arrival, outcome));
            return (ticket, Promise::of(waiter));
        }
        state.waiting.insert(ticket, arrival);
        drop(state);
        if let Some(limit) = limit {
            let late = waiter.clone();
            let timer = reactor.after_from(place, limit, move |reactor| {
                if late.waiters.give_up(ticket) {
                    let _ = settle(late, Err(Rejected::TimedOut(limit)));
                    drop(reactor.promises.replies.remove(key));
                }
            });
            waiter.timer.set(Some(timer));
        }
        (ticket, Promise::of(waiter))
    }
}

/// A waiter, and the promise that it waits for.
struct Waiter<T, E: 'static, U: 'static, W> {
    core: Core<U, E>,
    waiters: Arc<Waiters<T, E>>,
    ticket: u64,
    /// The sequence number of the thing it received.
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
        self.waiters.withdraw(self.ticket);
    }

    fn untaken(&self, value: U) {
        let thing = (self.unwrap)(value);
        let mut state = self.waiters.lock();
        state.counts.taken -= 1;
        state.put_back((self.number.get(), thing));
    }
}

/// A waiter's entry in its reactor. When the reactor drops it, the waiter is removed.
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
        // `None` if it was withdrawn.
        if let Some(served) = self.0.waiters.pick_up(self.0.ticket) {
            self.0.clone().settle(served);
        }
    }
}

impl<T, E, U, W> Drop for Claim<T, E, U, W> {
    fn drop(&mut self) {
        if !self.0.core.is_settled() {
            self.0.waiters.withdraw(self.0.ticket);
        }
    }
}
