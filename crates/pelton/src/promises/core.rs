//! The shared state of a promise, and the way of an outcome from one promise to the next.
//!
//! A chain points one way: a promise knows only its reader. A promise keeps its outcome until a tick delivers it to the
//! reader. Each step is one tick, so chains use no stack.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pelton_sync::Closure;

use super::remains::drop_later;
use super::{Continuations, Promise, Rejected, Settlement, unhandled};
use crate::Reactor;
use crate::reactor::panics::catch;

/// The source of a promise: a plain promise, or the output of a link.
pub(crate) trait Source<T: 'static, E: 'static>: Any {
    fn core(&self) -> &Core<T, E>;

    /// Formats an error.
    fn describe(&self, error: &E) -> String;

    /// Called when the promise was dropped before it was settled, and nobody will see the outcome.
    fn unwanted(&self) {}

    /// Called when the promise was resolved, but dropped before anybody took the value.
    fn untaken(&self, value: T) {
        drop(value);
    }
}

/// Receives an outcome.
pub(crate) trait Read<T, E>: Any {
    /// Returns where it was attached.
    fn place(&self) -> &'static Location<'static>;

    fn read(self: Rc<Self>, reactor: &mut Reactor, outcome: Settlement<T, E>);
}

/// The reader of a promise's outcome.
enum Reader<T: 'static, E: 'static> {
    /// No reader yet.
    Nobody,
    /// The task that polled the promise last.
    Task(Waker),
    Link(Rc<dyn Read<T, E>>),
    /// Another promise, which settles with the same outcome.
    Promise(Rc<dyn Source<T, E>>),
    /// The reader is gone.
    Gone,
}

type Look<T, E> = Box<dyn FnOnce(&mut Reactor, &Settlement<T, E>)>;

struct Observer<T, E> {
    place: &'static Location<'static>,
    look: Look<T, E>,
}

struct Observers<T, E>(VecDeque<Observer<T, E>>);

impl<T, E> Default for Observers<T, E> {
    fn default() -> Self {
        Observers(VecDeque::new())
    }
}

/// Its size matters: a link with a short closure and a number takes 120 bytes, the largest size that glibc caches
/// unchanged. It would coalesce larger blocks with their neighbours and split them again.
pub(crate) struct Core<T: 'static, E: 'static> {
    /// Never borrowed while user code is called or dropped.
    state: RefCell<State<T, E>>,
    pub(crate) continuations: Rc<Continuations>,
    /// Where the promise was made.
    pub(crate) place: &'static Location<'static>,
}

struct State<T: 'static, E: 'static> {
    outcome: Option<Settlement<T, E>>,
    reader: Reader<T, E>,
    /// Boxed, because few promises have observers.
    observers: Option<Box<Observers<T, E>>>,
    settled: bool,
    /// The promise is in the tick queue, or is being delivered from it.
    queued: bool,
    /// A rejection has been passed on, although it is still here.
    handled: bool,
}

impl<T: 'static, E: 'static> State<T, E> {
    /// Returns where the next callback was attached.
    fn next_call(&self) -> Option<&'static Location<'static>> {
        match (&self.observers, &self.reader) {
            (Some(observers), _) => observers.0.front().map(|observer| observer.place),
            (None, Reader::Link(link)) => Some(link.place()),
            (None, _) => None,
        }
    }

    fn take_observer(&mut self) -> Option<Observer<T, E>> {
        let observers = self.observers.as_mut()?;
        let observer = observers.0.pop_front();
        if observers.0.is_empty() {
            self.observers = None;
        }
        observer
    }

    fn take_reader(&mut self) -> Reader<T, E> {
        std::mem::replace(&mut self.reader, Reader::Gone)
    }

    /// Removes all callbacks. Returns them to be dropped.
    fn let_go(&mut self) -> [Option<Rc<dyn Any>>; 2] {
        let reader: Option<Rc<dyn Any>> = match self.take_reader() {
            Reader::Link(link) => Some(link),
            Reader::Promise(promise) => Some(promise),
            other => {
                self.reader = other;
                None
            }
        };
        [reader, self.observers.take().map(|observers| Rc::new(observers) as Rc<dyn Any>)]
    }
}

impl<T: 'static, E: 'static> Core<T, E> {
    pub(crate) fn new(continuations: Rc<Continuations>, place: &'static Location<'static>) -> Core<T, E> {
        let state = State {
            outcome: None,
            reader: Reader::Nobody,
            observers: None,
            settled: false,
            queued: false,
            handled: false,
        };
        Core { state: RefCell::new(state), continuations, place }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.state.borrow().settled
    }

    /// Settles the promise for the link that reads it, if there is one and nothing else is involved.
    #[inline]
    pub(super) fn settle_for_link(&self) -> Option<Rc<dyn Read<T, E>>> {
        let mut state = self.state.borrow_mut();
        if state.settled || state.observers.is_some() || !matches!(state.reader, Reader::Link(_)) {
            return None;
        }
        state.settled = true;
        match state.take_reader() {
            Reader::Link(link) => Some(link),
            _ => None,
        }
    }

    /// Returns whether anybody will see the outcome.
    pub(crate) fn is_wanted(&self) -> bool {
        let state = self.state.borrow();
        !matches!(state.reader, Reader::Gone) || state.observers.is_some()
    }

    /// Marks a rejection as handled by somebody else.
    pub(crate) fn set_handled(&self) {
        self.state.borrow_mut().handled = true;
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Settlement<T, E>> {
        let waker = context.waker().clone();
        let mut state = self.state.borrow_mut();
        // Observers are called first.
        let ready = state.settled && !state.queued;
        let reader = if ready { Reader::Gone } else { Reader::Task(waker) };
        let before = std::mem::replace(&mut state.reader, reader);
        let outcome = if ready { state.outcome.take() } else { None };
        drop(state);
        drop(before);
        if ready { Poll::Ready(outcome.unwrap_or(Err(Rejected::Abandoned))) } else { Poll::Pending }
    }
}

impl<T: 'static, E: 'static> Drop for Core<T, E> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if matches!(state.reader, Reader::Link(_) | Reader::Promise(_)) || state.observers.is_some() {
            state.let_go().into_iter().flatten().for_each(drop_later);
        }
    }
}

impl<T: 'static, E: 'static> Promise<T, E> {
    pub(super) fn attach(self, link: Rc<dyn Read<T, E>>) {
        self.attach_reader(Reader::Link(link));
    }

    fn attach_reader(mut self, reader: Reader<T, E>) {
        let Some(source) = self.source.take() else { return };
        let mut state = source.core().state.borrow_mut();
        let settled = state.settled;
        let before = std::mem::replace(&mut state.reader, reader);
        drop(state);
        drop(before);
        if settled {
            advance(source, Queue::Behind);
        }
    }

    pub(super) fn attach_observer(&self, place: &'static Location<'static>, look: Look<T, E>) {
        let Some(source) = &self.source else { return };
        let mut state = source.core().state.borrow_mut();
        state.observers.get_or_insert_default().0.push_back(Observer { place, look });
        let settled = state.settled;
        drop(state);
        if settled {
            advance(source.clone(), Queue::Behind);
        }
    }
}

impl<T: 'static, E: 'static> Drop for Promise<T, E> {
    fn drop(&mut self) {
        // `None` after it was consumed.
        let Some(source) = self.source.take() else { return };
        let mut state = source.core().state.borrow_mut();
        let reader = state.take_reader();
        let settled = state.settled;
        let wanted = state.observers.is_some();
        drop(state);
        drop(reader);
        if settled {
            advance(source, Queue::Behind);
        } else if !wanted {
            source.unwanted();
        }
    }
}

/// Settles a promise. Returns the outcome if it was already settled.
pub(crate) fn settle<T: 'static, E: 'static>(
    source: Rc<dyn Source<T, E>>,
    outcome: Settlement<T, E>,
) -> Result<(), Settlement<T, E>> {
    let mut state = source.core().state.borrow_mut();
    if state.settled {
        return Err(outcome);
    }
    state.settled = true;
    state.outcome = Some(outcome);
    drop(state);
    advance(source, Queue::Behind);
    Ok(())
}

/// Settles `target` with the outcome of `promise`.
pub(crate) fn follow<T: 'static, E: 'static>(target: Rc<dyn Source<T, E>>, promise: Promise<T, E>) {
    let mut state = target.core().state.borrow_mut();
    let reader = match &state.reader {
        // Let its reader read the other promise directly. This way a chain that grows with every step, as in a loop
        // written with promises, does not get longer.
        Reader::Link(_) | Reader::Promise(_) if state.observers.is_none() => state.take_reader(),
        _ => Reader::Promise(target.clone()),
    };
    drop(state);
    promise.attach_reader(reader);
}

/// Where to queue the next tick of a promise.
enum Queue<'a> {
    Behind,
    /// The next callback was attached before everything in the queue.
    First(&'a mut Reactor),
}

/// Advances a settled promise as far as possible without calling anybody.
fn advance<T: 'static, E: 'static>(mut source: Rc<dyn Source<T, E>>, queue: Queue<'_>) {
    loop {
        let core = source.core();
        let mut state = core.state.borrow_mut();
        if state.queued {
            return;
        }
        if let Some(place) = state.next_call() {
            if core.continuations.is_closed() {
                let remains = state.let_go();
                drop(state);
                return remains.into_iter().flatten().for_each(drop_later);
            }
            state.queued = true;
            drop(state);
            let continuations = core.continuations.clone();
            let closure = Closure::new(move |reactor| deliver(source, reactor));
            return match queue {
                Queue::Behind => continuations.push(place, closure),
                Queue::First(reactor) => reactor.ticks.continue_first(place, closure),
            };
        }
        match state.take_reader() {
            Reader::Nobody | Reader::Link(_) => {
                state.reader = Reader::Nobody;
                return;
            }
            Reader::Task(waker) => {
                state.reader = Reader::Nobody;
                drop(state);
                return waker.wake();
            }
            Reader::Gone => {
                let (outcome, handled) = (state.outcome.take(), state.handled);
                drop(state);
                match outcome {
                    Some(Ok(value)) => source.untaken(value),
                    Some(Err(rejected)) if !handled => report(&*source, &rejected),
                    _ => {}
                }
                return;
            }
            Reader::Promise(next) => {
                let outcome = state.outcome.take();
                drop(state);
                let mut following = next.core().state.borrow_mut();
                if following.settled {
                    return;
                }
                following.settled = true;
                following.outcome = outcome;
                drop(following);
                source = next;
            }
        }
    }
}

/// Reports a rejection that nobody has handled.
#[cold]
fn report<T: 'static, E: 'static>(source: &dyn Source<T, E>, rejected: &Rejected<E>) {
    let message = match rejected {
        Rejected::Failed(error) => source.describe(error),
        // A loop that ends drops the deferreds of its promises.
        Rejected::Abandoned if source.core().continuations.is_closed() => return,
        Rejected::Abandoned => Rejected::<&str>::Abandoned.to_string(),
        Rejected::TimedOut(limit) => Rejected::<&str>::TimedOut(*limit).to_string(),
        // The panic has already been reported to the fault hook.
        Rejected::Panicked(_) => return,
    };
    let core = source.core();
    unhandled::report(&core.continuations, core.place, message);
}

/// Calls the next observer of a settled promise, or its reader.
fn deliver<T: 'static, E: 'static>(source: Rc<dyn Source<T, E>>, reactor: &mut Reactor) {
    let core = source.core();
    let mut state = core.state.borrow_mut();
    let Some(outcome) = state.outcome.take() else { return };
    if let Some(observer) = state.take_observer() {
        drop(state);
        let ended = catch(|| (observer.look)(reactor, &outcome));
        let mut state = core.state.borrow_mut();
        state.outcome = Some(outcome);
        state.queued = false;
        drop(state);
        advance(source, Queue::First(reactor));
        if let Err(panic) = ended {
            panic.resume();
        }
        return;
    }
    state.queued = false;
    match state.take_reader() {
        Reader::Link(link) => {
            drop(state);
            drop(source);
            link.read(reactor, outcome);
        }
        reader => {
            state.reader = reader;
            state.outcome = Some(outcome);
            drop(state);
            advance(source, Queue::Behind);
        }
    }
}
