//! What a promise and those who settle it share, and how an outcome gets from one promise to the next.
//!
//! A chain points one way: a promise knows who reads it, and that is all. An outcome is kept by the promise that it is of,
//! until a tick takes it to the reader. Each step is one tick, so chains take no stack.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pelton_sync::Closure;

use super::remains::bury;
use super::{Promise, Rejected, Settlement, unhandled};
use crate::Reactor;
use crate::callback::message;
use crate::ticks::{End, TickQueue};

/// Whatever a promise is the end of: a plain one, or the output of a link.
pub(crate) trait Source<T: 'static, E: 'static>: Any {
    fn core(&self) -> &Core<T, E>;
}

/// What takes an outcome.
pub(crate) trait Read<T, E>: Any {
    /// Where it was attached.
    fn place(&self) -> &'static Location<'static>;

    fn read(self: Rc<Self>, reactor: &mut Reactor, outcome: Settlement<T, E>);

    /// `read` panicked.
    fn panicked(self: Rc<Self>, message: &str);
}

/// Who takes the outcome of a promise.
enum Reader<T: 'static, E: 'static> {
    /// Nobody yet.
    Nobody,
    /// The task that has polled it last, and will again.
    Task(Waker),
    Link(Rc<dyn Read<T, E>>),
    /// Another promise, which takes it as its own.
    Promise(Rc<dyn Source<T, E>>),
    /// Nobody any more.
    Gone,
}

type Look<T, E> = Box<dyn FnOnce(&mut Reactor, &Settlement<T, E>)>;

struct Observer<T, E> {
    place: &'static Location<'static>,
    look: Look<T, E>,
}

pub(crate) struct Core<T: 'static, E: 'static> {
    outcome: Cell<Option<Settlement<T, E>>>,
    reader: Cell<Reader<T, E>>,
    /// Few have any.
    observers: Cell<Option<Box<VecDeque<Observer<T, E>>>>>,
    settled: Cell<bool>,
    /// In the tick queue, or being delivered from it.
    queued: Cell<bool>,
    /// A rejection has been passed on, though it is still here.
    handled: Cell<bool>,
    pub(crate) ticks: Rc<TickQueue>,
    /// Where the promise was made.
    pub(crate) place: &'static Location<'static>,
    describe: fn(&E) -> String,
}

impl<T: 'static, E: fmt::Debug + 'static> Core<T, E> {
    pub(crate) fn new(ticks: Rc<TickQueue>, place: &'static Location<'static>) -> Core<T, E> {
        Core {
            outcome: Cell::new(None),
            reader: Cell::new(Reader::Nobody),
            observers: Cell::new(None),
            settled: Cell::new(false),
            queued: Cell::new(false),
            handled: Cell::new(false),
            ticks,
            place,
            describe: |error| format!("{error:?}"),
        }
    }
}

impl<T: 'static, E: 'static> Core<T, E> {
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.get()
    }

    /// Whether anybody will look at the outcome.
    pub(crate) fn is_wanted(&self) -> bool {
        let reader = self.reader.replace(Reader::Gone);
        let gone = matches!(reader, Reader::Gone);
        self.reader.set(reader);
        !gone || self.next_observer().is_some()
    }

    /// Somebody else answers for a rejection.
    pub(crate) fn set_handled(&self) {
        self.handled.set(true);
    }

    /// Where the next observer was attached.
    fn next_observer(&self) -> Option<&'static Location<'static>> {
        let observers = self.observers.take()?;
        let place = observers.front().map(|observer| observer.place);
        self.observers.set(Some(observers));
        place
    }

    fn take_observer(&self) -> Option<Observer<T, E>> {
        let mut observers = self.observers.take()?;
        let observer = observers.pop_front();
        // Those who are not here any more would have been put back.
        if !observers.is_empty() {
            self.observers.set(Some(observers));
        }
        observer
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Settlement<T, E>> {
        // Observers were there first.
        if self.settled.get() && !self.queued.get() {
            self.reader.set(Reader::Gone);
            return Poll::Ready(self.outcome.take().unwrap_or(Err(Rejected::Abandoned)));
        }
        let waker = match self.reader.replace(Reader::Gone) {
            Reader::Task(waker) if waker.will_wake(context.waker()) => waker,
            _ => context.waker().clone(),
        };
        self.reader.set(Reader::Task(waker));
        Poll::Pending
    }

    /// Nobody wants the outcome: drops it, and reports it if it is an error.
    fn discard(&self) {
        if let Some(Err(rejected)) = self.outcome.take()
            && !self.handled.get()
        {
            let message = match &rejected {
                Rejected::Failed(error) => (self.describe)(error),
                Rejected::Abandoned => Rejected::<&str>::Abandoned.to_string(),
                Rejected::TimedOut(limit) => Rejected::<&str>::TimedOut(*limit).to_string(),
                // The fault hook has been told.
                Rejected::Panicked(_) => return,
            };
            unhandled::report(&self.ticks, self.place, message);
        }
    }

    /// Nobody will be called any more.
    fn let_go(&self) {
        match self.reader.replace(Reader::Gone) {
            Reader::Link(link) => bury(link),
            Reader::Promise(promise) => bury(promise),
            other => self.reader.set(other),
        }
        if let Some(observers) = self.observers.take() {
            bury(Rc::new(observers));
        }
    }
}

impl<T: 'static, E: 'static> Drop for Core<T, E> {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl<T: 'static, E: 'static> Promise<T, E> {
    pub(crate) fn core(&self) -> &Core<T, E> {
        self.source.core()
    }

    pub(super) fn attach(self, link: Rc<dyn Read<T, E>>) {
        self.attach_reader(Reader::Link(link));
    }

    fn attach_reader(self, reader: Reader<T, E>) {
        let core = self.core();
        core.reader.set(reader);
        if core.settled.get() {
            advance(self.source.clone(), End::Back);
        }
    }

    pub(super) fn attach_observer(&self, place: &'static Location<'static>, look: Look<T, E>) {
        let core = self.core();
        let mut observers = core.observers.take().unwrap_or_default();
        observers.push_back(Observer { place, look });
        core.observers.set(Some(observers));
        if core.settled.get() {
            advance(self.source.clone(), End::Back);
        }
    }
}

impl<T: 'static, E: 'static> Drop for Promise<T, E> {
    fn drop(&mut self) {
        let core = self.core();
        match core.reader.replace(Reader::Gone) {
            Reader::Nobody | Reader::Task(_) if core.settled.get() => advance(self.source.clone(), End::Back),
            Reader::Nobody | Reader::Task(_) => {}
            // It was consumed.
            reader => core.reader.set(reader),
        }
    }
}

/// Settles a promise. If it was settled already, the outcome comes back.
pub(crate) fn settle<T: 'static, E: 'static>(
    source: Rc<dyn Source<T, E>>,
    outcome: Settlement<T, E>,
) -> Result<(), Settlement<T, E>> {
    let core = source.core();
    if core.settled.replace(true) {
        return Err(outcome);
    }
    core.outcome.set(Some(outcome));
    advance(source, End::Back);
    Ok(())
}

/// Lets `target` have whatever becomes of `promise`.
pub(crate) fn follow<T: 'static, E: 'static>(target: Rc<dyn Source<T, E>>, promise: Promise<T, E>) {
    let core = target.core();
    let reader = match core.reader.replace(Reader::Gone) {
        // Its reader may as well read the other directly. So a chain that makes itself longer with every step, as a loop
        // written with promises does, stays as short as it is.
        reader @ (Reader::Link(_) | Reader::Promise(_)) if core.next_observer().is_none() => reader,
        reader => {
            core.reader.set(reader);
            Reader::Promise(target)
        }
    };
    promise.attach_reader(reader);
}

/// Takes a promise that is settled as far as it gets without calling anybody.
fn advance<T: 'static, E: 'static>(mut source: Rc<dyn Source<T, E>>, end: End) {
    loop {
        let core = source.core();
        if core.queued.get() {
            return;
        }
        if let Some(place) = core.next_observer() {
            return queue(source, end, place);
        }
        match core.reader.replace(Reader::Gone) {
            Reader::Nobody => return core.reader.set(Reader::Nobody),
            Reader::Task(waker) => {
                core.reader.set(Reader::Nobody);
                return waker.wake();
            }
            Reader::Link(link) => {
                let place = link.place();
                core.reader.set(Reader::Link(link));
                return queue(source, end, place);
            }
            Reader::Gone => return core.discard(),
            Reader::Promise(next) => {
                let outcome = core.outcome.take();
                if next.core().settled.replace(true) {
                    return;
                }
                next.core().outcome.set(outcome);
                source = next;
            }
        }
    }
}

fn queue<T: 'static, E: 'static>(source: Rc<dyn Source<T, E>>, end: End, place: &'static Location<'static>) {
    let core = source.core();
    if core.ticks.is_closed() {
        return core.let_go();
    }
    core.queued.set(true);
    let ticks = core.ticks.clone();
    ticks.push_continuation(end, place, Closure::new(move |reactor| deliver(source, reactor)));
}

/// Calls the next observer, or else the reader, of a settled promise.
fn deliver<T: 'static, E: 'static>(source: Rc<dyn Source<T, E>>, reactor: &mut Reactor) {
    let core = source.core();
    if let Some(observer) = core.take_observer() {
        let Some(outcome) = core.outcome.take() else { return };
        let ended = catch_unwind(AssertUnwindSafe(|| (observer.look)(reactor, &outcome)));
        core.outcome.set(Some(outcome));
        core.queued.set(false);
        advance(source, End::Front);
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
        return;
    }
    core.queued.set(false);
    match core.reader.replace(Reader::Gone) {
        Reader::Link(link) => {
            let Some(outcome) = core.outcome.take() else { return };
            drop(source);
            let reader = link.clone();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| reader.read(reactor, outcome))) {
                link.panicked(&message(&panic));
                // Goes on to where all callbacks' panics are caught and reported.
                resume_unwind(panic);
            }
        }
        reader => {
            core.reader.set(reader);
            advance(source, End::Back);
        }
    }
}
