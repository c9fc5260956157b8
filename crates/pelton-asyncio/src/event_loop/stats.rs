//! The counters of a loop.

use std::cell::Cell;

use pelton::Counts;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::event_loop::state::LoopState;

/// Counters since the loop was created.
#[derive(Default)]
pub(crate) struct Counters {
    /// Turns, as asyncio counts them: batches of callbacks, and turns without one.
    pub(crate) turns: Cell<u64>,
    /// Callbacks that were called.
    pub(crate) callbacks: Cell<u64>,
    /// How many of these the reactor knows of.
    counted: Cell<u64>,
    /// How many were timers.
    pub(crate) timers: Cell<u64>,
    /// Reports of ready descriptors.
    pub(crate) events: Cell<u64>,
    /// Those of the reactor, after the last turn.
    pub(crate) reactor: Cell<Counts>,
    /// Calls to `call_soon_threadsafe`.
    pub(crate) posts: Cell<u64>,
    /// The largest number of callbacks in a batch.
    pub(crate) most_ready: Cell<u64>,
}

impl Counters {
    /// Returns how many callbacks were called since the last call of this.
    #[inline]
    pub(crate) fn new_callbacks(&self) -> u64 {
        self.callbacks.get() - self.counted.replace(self.callbacks.get())
    }
}

/// Returns the result of `loop.stats()`.
pub(crate) fn snapshot<'py>(py: Python<'py>, state: &LoopState) -> PyResult<Bound<'py, PyDict>> {
    // If another thread turns the reactor, these are the numbers after its last turn.
    if !state.closed.get()
        && let Some(current) = state.with_reactor(py, |reactor| reactor.counts())?
    {
        state.counters.reactor.set(current);
    }
    let counters = &state.counters;
    let reactor = counters.reactor.get();
    let counts = [
        ("turns", counters.turns.get()),
        ("callbacks", counters.callbacks.get()),
        ("timers", counters.timers.get()),
        ("events", counters.events.get()),
        ("polls", reactor.polls),
        ("sleeps", reactor.sleeps),
        ("posts", counters.posts.get()),
        ("most_ready", counters.most_ready.get()),
        ("ready", state.ready.borrow().len() as u64),
        ("timers_waiting", state.timers.borrow().len() as u64),
        ("descriptors", state.readers.len() as u64),
        ("slow_callbacks", reactor.slow_callbacks),
        ("native_callbacks", reactor.callbacks),
    ];
    let stats = PyDict::new(py);
    // Only the name: another thread may be turning the reactor.
    stats.set_item("engine", state.engine_name)?;
    stats.set_item("debug", state.debug.get())?;
    for (name, count) in counts {
        stats.set_item(name, count)?;
    }
    Ok(stats)
}
