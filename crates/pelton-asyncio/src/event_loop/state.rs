//! The state of a loop: its queue, timers, descriptors, and the reactor that waits for them.
//!
//! All of it is in cells and slots: any Python code may run, and use the loop, between two lines here.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pelton::{EngineKind, EventLoop, PanicPolicy, Reactor, Time, TimerKey, Wheel};
use pelton_os::{clock, fork};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::event_loop::guest;
use crate::event_loop::intake::Intake;
use crate::event_loop::reactor_errors::raise_error;
use crate::event_loop::slow::Slow;
use crate::event_loop::stats::Counters;
use crate::readers::Readers;
use crate::sockets::operations::Waiting;
use pelton_cpython::call::raise;
use pelton_cpython::class::{self, State, This};
use pelton_cpython::handles::context::SharedContexts;
use pelton_cpython::handles::{Home, Queued};
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::slot::{Shared, Slot};

/// The state of a loop.
pub(crate) struct LoopState {
    /// `None` once closed, and during a turn: the thread that turns the reactor then has it on its stack.
    event_loop: RefCell<Option<Box<EventLoop>>>,
    pub(crate) engine_name: &'static str,
    /// Reaches the reactor during a turn, and wakes it.
    pub(crate) handle: pelton::Handle,
    /// The thread that the loop belongs to, once Rust code may have registered something with its reactor.
    thread_of_reactor: Cell<Option<ThreadId>>,
    /// The loop whose state this is, during a turn.
    pub(crate) turning: Slot,
    /// An exception has ended the turn. It is set.
    pub(crate) raised: Cell<bool>,
    /// The handles to call, in order.
    pub(crate) ready: RefCell<VecDeque<Queued>>,
    /// The timer handles.
    pub(crate) timers: RefCell<Wheel<Queued>>,
    pub(crate) readers: Readers,
    /// How many watched descriptors belong to the loop itself, as asyncio counts them: the one by which signals wake it.
    pub(crate) internal_descriptors: Cell<i64>,
    pub(crate) debug: Cell<bool>,
    pub(crate) closed: Cell<bool>,
    pub(crate) stopping: Cell<bool>,
    /// Whether the thread that turns the loop has released the lock.
    pub(crate) parked: Cell<bool>,
    /// Whether a run has just begun. Its first turn always polls: programs that run a loop for one turn rely on it.
    pub(crate) run_begins: Cell<bool>,
    /// Whether the lock was released since the last batch.
    pub(crate) was_parked: Cell<bool>,
    /// When the lock was last released.
    pub(crate) unlocked: Cell<Time>,
    /// How often to release it while there is work.
    pub(crate) unlock_every: Cell<Duration>,
    /// When a sleeping loop must check again for sockets that were closed.
    pub(crate) check_again: Cell<Option<Time>>,
    pub(crate) thread: Slot,
    pub(crate) task_factory: Slot,
    pub(crate) current_handle: Slot,
    /// `{"loop": loop}`, the keywords for creating futures and tasks.
    pub(crate) loop_keyword: Slot,
    /// The dictionary in `loop._transports`.
    pub(crate) transports: Slot,
    pub(crate) waiting: Waiting,
    pub(crate) contexts: SharedContexts,
    pub(crate) slow: Slow,
    pub(crate) counters: Counters,
    /// Work from outside of Python, if the loop belongs to a host. Only the thread that runs the loop uses it.
    pub(crate) intake: RefCell<Option<Box<dyn Intake>>>,
    /// Whether a thread with the lock has woken the loop since it fell asleep.
    pub(crate) posted: Arc<AtomicBool>,
    /// Whether the last wait was short enough for spinning to pay off.
    pub(crate) spin_pays: Cell<bool>,
    /// Identifies the process that the reactor belongs to, as a number of forks.
    forks: Cell<u64>,
}

pelton_cpython::owns!(LoopState {
    turning,
    ready,
    timers,
    readers,
    thread,
    task_factory,
    current_handle,
    loop_keyword,
    transports,
    waiting,
    contexts,
    slow,
});

/// What a loop object has: its state, which the guest and the watches of its reactor share.
pub(crate) struct Loop {
    shared: Shared<LoopState>,
}

pelton_cpython::state!(Loop, c"pelton._pelton.LoopState", { shared });

impl std::ops::Deref for Loop {
    type Target = Rc<LoopState>;

    #[inline]
    fn deref(&self) -> &Rc<LoopState> {
        self.shared.rc()
    }
}

impl State for Loop {
    const LISTED: bool = true;

    /// Creates a loop with the engine that `PELTON_ENGINE` names, or else the best available one.
    fn new(py: Python<'_>) -> Result<Loop> {
        EngineKind::from_environment()
            .map_err(|error| raise::<PyValueError>(py, &format!("{}: {error}", pelton::ENGINE_VARIABLE)))?;
        // Loops may run inside each other. A panic is propagated to the method that turns the loop, which raises it.
        let builder = Reactor::builder().nested(true).stats(false).panic_policy(PanicPolicy::Propagate);
        let event_loop = builder.build().map_err(|error| raise_error(py, error))?;
        let shared = Shared::new(LoopState::new(event_loop));
        let state = shared.rc();
        state.with_reactor(py, |reactor| guest::host(state, reactor))?;
        Ok(Loop { shared })
    }

    fn ending(&self, py: Python<'_>) {
        self.close(py);
    }
}

/// Returns the state of a loop. Raises if the object is no `pelton.Loop`.
#[inline]
pub(crate) fn of<'a>(its_loop: &'a Bound<'_, PyAny>) -> Result<&'a Rc<LoopState>> {
    match This::<Loop>::of(its_loop) {
        Some(this) => this.state().map(|state| &**state),
        None => Err(raise::<pyo3::exceptions::PyTypeError>(its_loop.py(), "expected a pelton.Loop")),
    }
}

/// Returns the state of a loop, if the object is a `pelton.Loop` that the garbage collector has not cleared.
#[inline]
pub(crate) fn of_or_none<'a>(its_loop: &'a Bound<'_, PyAny>) -> Option<&'a Rc<LoopState>> {
    This::<Loop>::of(its_loop)?.state_if_any().map(|state| &**state)
}

/// Returns whether an object is a `pelton.Loop`.
pub(crate) fn is_loop(object: &Bound<'_, PyAny>) -> bool {
    This::<Loop>::of(object).is_some()
}

/// Returns whether a loop is in debug mode.
pub(crate) fn is_in_debug_mode(its_loop: &Bound<'_, PyAny>) -> bool {
    of_or_none(its_loop).is_some_and(|state| state.debug.get())
}

/// Removes a timer from a loop's wheel.
pub(crate) fn take_timer(its_loop: &Bound<'_, PyAny>, key: TimerKey) -> Option<Queued> {
    of_or_none(its_loop)?.timers.borrow_mut().cancel(key)
}

/// Calls a function with every handle that waits in a queue.
pub(crate) fn each_queued(py: Python<'_>, f: &mut dyn FnMut(&Queued)) {
    class::each::<Loop>(py, |state| {
        state.ready.borrow().iter().for_each(&mut *f);
        state.timers.borrow().iter().for_each(|(_, timer)| f(timer));
    });
}

impl LoopState {
    fn new(event_loop: EventLoop) -> LoopState {
        let now = clock::now();
        LoopState {
            engine_name: event_loop.engine_name(),
            handle: event_loop.handle(),
            event_loop: RefCell::new(Some(Box::new(event_loop))),
            thread_of_reactor: Cell::new(None),
            turning: Slot::empty(),
            raised: Cell::new(false),
            ready: RefCell::default(),
            timers: RefCell::new(Wheel::new(now)),
            readers: Readers::default(),
            internal_descriptors: Cell::new(0),
            debug: Cell::new(false),
            closed: Cell::new(false),
            stopping: Cell::new(false),
            parked: Cell::new(false),
            run_begins: Cell::new(false),
            was_parked: Cell::new(false),
            unlocked: Cell::new(now),
            unlock_every: Cell::new(Duration::from_micros(7_500)),
            check_again: Cell::new(None),
            thread: Slot::empty(),
            task_factory: Slot::empty(),
            current_handle: Slot::empty(),
            loop_keyword: Slot::empty(),
            transports: Slot::empty(),
            waiting: Waiting::default(),
            contexts: SharedContexts::default(),
            slow: Slow::new(),
            counters: Counters::default(),
            intake: RefCell::new(None),
            posted: Arc::default(),
            spin_pays: Cell::new(false),
            forks: Cell::new(fork::count()),
        }
    }

    /// Returns what creating a handle takes.
    #[inline]
    pub(crate) fn home<'a, 'py>(&'a self, its_loop: &'a Bound<'py, PyAny>) -> Home<'a, 'py> {
        Home { its_loop, contexts: &self.contexts, debug: self.debug.get() }
    }

    /// Raises the exception that asyncio raises for a closed loop, if the loop is closed.
    #[inline]
    pub(crate) fn check_open(&self, py: Python<'_>) -> Result<()> {
        if self.closed.get() { Err(raise::<PyRuntimeError>(py, "Event loop is closed")) } else { Ok(()) }
    }

    /// Queues a handle.
    #[inline]
    pub(crate) fn queue(&self, handle: Bound<'_, PyAny>) {
        self.ready.borrow_mut().push_back(Queued::new(handle));
    }

    /// Wakes the loop if it sleeps, or is about to. The lock is held, so that does not change meanwhile.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.parked.get() {
            self.posted.store(true, Ordering::Release);
            self.handle.wake();
        }
    }

    /// Calls `f` with the reactor of an open loop. Returns `None` if the reactor is out of reach: another thread turns the loop, or the
    /// reactor is in use further up the stack.
    ///
    /// In a forked child it first separates the reactor from the parent's. Otherwise the two would take events and registrations from
    /// each other.
    #[inline]
    pub(crate) fn with_reactor<T>(&self, py: Python<'_>, f: impl FnOnce(&mut Reactor) -> T) -> Result<Option<T>> {
        let f = |reactor: &mut Reactor| {
            self.follow_fork(py, reactor)?;
            Ok(f(reactor))
        };
        let Ok(mut event_loop) = self.event_loop.try_borrow_mut() else { return Ok(None) };
        match event_loop.as_deref_mut() {
            Some(event_loop) => f(event_loop).map(Some),
            None if self.closed.get() => Err(raise::<PyRuntimeError>(py, "Event loop is closed")),
            None => {
                drop(event_loop);
                self.handle.with_reactor(f).transpose()
            }
        }
    }

    /// Makes the reactor usable in a forked child.
    #[inline]
    pub(crate) fn follow_fork(&self, py: Python<'_>, reactor: &mut Reactor) -> Result<()> {
        if self.forks.get() != fork::count() {
            reactor.after_fork().map_err(|error| raise_error(py, error))?;
            self.forks.set(fork::count());
        }
        Ok(())
    }

    /// Binds a loop to this thread: closures registered with its reactor need not be `Send`. Fails if it is bound to another.
    pub(crate) fn bind_to_thread(&self, py: Python<'_>) -> Result<()> {
        let here = thread::current().id();
        let bound = self.thread_of_reactor.get().unwrap_or(here);
        self.thread_of_reactor.set(Some(bound));
        if bound == here {
            return Ok(());
        }
        Err(raise::<PyRuntimeError>(py, "Rust code has used this event loop on another thread, so it must stay there"))
    }

    /// Drops a reactor that was taken out, or leaks it if that would drop closures on a thread that they do not belong to.
    fn drop_reactor(&self, event_loop: Option<Box<EventLoop>>) {
        if self.thread_of_reactor.get().is_none_or(|thread| thread == thread::current().id()) {
            drop(event_loop);
        } else {
            std::mem::forget(event_loop);
        }
    }

    /// Returns whether the loop can be closed here: nobody turns it, or this thread does and is inside a callback.
    pub(crate) fn can_close(&self) -> bool {
        self.closed.get()
            || self.event_loop.try_borrow().is_ok_and(|event_loop| event_loop.is_some())
            || self.handle.with_reactor(|_| ()).is_some()
    }

    /// Drops everything that is queued, scheduled or watched. Everything is taken out before the first reference is dropped, so code that
    /// runs then finds a closed, empty loop.
    pub(crate) fn close(&self, py: Python<'_>) {
        self.closed.set(true);
        let ready = self.ready.take();
        let timers = take_timers(&mut self.timers.borrow_mut());
        let readers = self.readers.take();
        let waiting = self.waiting.take(py);
        let intake = self.intake.try_borrow_mut().ok().and_then(|mut intake| intake.take());
        let names = self.slow.take_names();
        // First, so that descriptors need not be removed one by one. During a turn, the reactor is dropped when the turn ends.
        let event_loop = self.event_loop.try_borrow_mut().ok().and_then(|mut event_loop| event_loop.take());
        self.drop_reactor(event_loop);
        let slots = [
            &self.thread,
            &self.task_factory,
            &self.current_handle,
            &self.loop_keyword,
            &self.transports,
            &self.slow.hook,
        ]
        .map(|slot| slot.take(py));
        for timer in &timers {
            if let Some(timer) = timer.ours(py) {
                timer.set_key(None);
            }
        }
        ready.into_iter().chain(timers).for_each(|handle| handle.release(py));
        let owners: Vec<_> = readers.into_iter().map(|entry| entry.release(py)).collect();
        drop((slots, owners, waiting));
        self.contexts.forget(py);
        drop(names);
        drop(intake);
    }
}

/// Takes all handles out of a wheel.
fn take_timers(timers: &mut Wheel<Queued>) -> Vec<Queued> {
    let keys: Vec<TimerKey> = timers.iter().map(|(key, _)| key).collect();
    keys.into_iter().filter_map(|key| timers.cancel(key)).collect()
}

/// A reactor that was taken out of its loop to be turned. Dropping this puts it back.
pub(crate) struct Taken<'a, 'py> {
    py: Python<'py>,
    state: &'a LoopState,
    event_loop: Option<Box<EventLoop>>,
}

impl<'a, 'py> Taken<'a, 'py> {
    /// Takes the reactor of a loop out of its state, to turn it. Returns `None` if that has been done already.
    pub(crate) fn out_of(its_loop: &Bound<'py, PyAny>, state: &'a Rc<LoopState>) -> Result<Option<Taken<'a, 'py>>> {
        let py = its_loop.py();
        if !state.event_loop.try_borrow().is_ok_and(|event_loop| event_loop.is_some()) {
            return Ok(None);
        }
        // In a program that hosts Python, callbacks in Rust reach the reactor by `Reactor::with_current`.
        if cfg!(feature = "embed") || state.thread_of_reactor.get().is_some() {
            state.bind_to_thread(py)?;
        }
        let Some(mut event_loop) = state.event_loop.take() else { return Ok(None) };
        let followed = state.follow_fork(py, &mut event_loop);
        state.turning.set(its_loop.clone());
        // A panic, which is a bug in this crate, has ended the guest.
        if !event_loop.has_guest() {
            guest::host(state, &mut event_loop);
        }
        let taken = Taken { py, state, event_loop: Some(event_loop) };
        followed.map(|()| Some(taken))
    }

    /// Calls `f` with the reactor.
    pub(crate) fn with_reactor<T>(&mut self, f: impl FnOnce(&mut Reactor) -> T) -> Option<T> {
        self.event_loop.as_deref_mut().map(|event_loop| f(event_loop))
    }

    /// Turns the reactor until `goes_on` returns `false` after a turn. An exception ends it too.
    pub(crate) fn turn_while(&mut self, goes_on: impl Fn() -> bool) -> Result<()> {
        let Some(event_loop) = &mut self.event_loop else { return Ok(()) };
        let (py, state) = (self.py, self.state);
        let counters = &state.counters;
        let mut followed = Ok(());
        let mut before = counters.turns.get();
        let turned = event_loop.turn_while(|reactor| {
            counters.reactor.set(reactor.counts());
            reactor.count_guest_callbacks(counters.new_callbacks());
            // Batches are counted as turns. A turn without a batch counts too.
            counters.turns.set(counters.turns.get().max(before + 1));
            before = counters.turns.get();
            if state.raised.get() || state.closed.get() || !goes_on() {
                return false;
            }
            // A callback may have forked.
            followed = state.follow_fork(py, reactor);
            followed.is_ok()
        });
        if state.raised.take() {
            return Err(Raised);
        }
        followed.and(turned.map_err(|error| raise_error(py, error)))
    }
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        let turning = self.state.turning.take(self.py);
        // A reactor refers to no Python objects but queued `bytes`, so dropping it runs no Python code.
        if self.state.closed.get() {
            drop(self.event_loop.take());
        } else {
            *self.state.event_loop.borrow_mut() = self.event_loop.take();
        }
        drop(turning);
    }
}
