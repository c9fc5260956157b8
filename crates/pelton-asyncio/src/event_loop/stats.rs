//! The counters of a loop.

use pelton::Counts;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::event_loop::state::{self, LoopState};
use pelton_cpython::object::Raised;

/// Counters since the loop was created.
#[derive(Default)]
pub(crate) struct Counters {
    /// Turns, as asyncio counts them: batches of callbacks, and turns without one.
    pub(crate) turns: u64,
    /// Callbacks that were called.
    pub(crate) callbacks: u64,
    /// How many of these the reactor knows of.
    counted: u64,
    /// How many were timers.
    pub(crate) timers: u64,
    /// Reports of ready descriptors.
    pub(crate) events: u64,
    /// Those of the reactor, after the last turn.
    pub(crate) reactor: Counts,
    /// Calls to `call_soon_threadsafe`.
    pub(crate) posts: u64,
    /// The largest number of callbacks in a batch.
    pub(crate) most_ready: u64,
}

impl Counters {
    /// Returns how many callbacks were called since the last call of this.
    #[inline]
    pub(crate) fn new_callbacks(&mut self) -> u64 {
        self.callbacks - std::mem::replace(&mut self.counted, self.callbacks)
    }
}

/// Returns the result of `loop.stats()`.
///
/// # Safety
/// `core` belongs to a live loop.
pub(crate) unsafe fn snapshot(py: Python<'_>, core: *mut LoopState) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: the caller guarantees it. Everything is copied before Python code can run.
    let (counts, engine, debug) = unsafe {
        // If another thread turns the reactor, these are the numbers after its last turn.
        if !(*core).closed {
            let current = state::with_reactor(core, |reactor| reactor.counts());
            if let Some(current) = current.map_err(|Raised| PyErr::fetch(py))? {
                (*core).counters.reactor = current;
            }
        }
        let counters = &(*core).counters;
        let counts = [
            ("turns", counters.turns),
            ("callbacks", counters.callbacks),
            ("timers", counters.timers),
            ("events", counters.events),
            ("polls", counters.reactor.polls),
            ("sleeps", counters.reactor.sleeps),
            ("posts", counters.posts),
            ("most_ready", counters.most_ready),
            ("ready", (*core).ready.len() as u64),
            ("timers_waiting", (*core).timers.len() as u64),
            ("descriptors", (*core).readers.len() as u64),
            ("slow_callbacks", counters.reactor.slow_callbacks),
            ("native_callbacks", counters.reactor.callbacks),
        ];
        // Only the name: another thread may be turning the reactor.
        (counts, (*core).engine_name, (*core).debug)
    };
    let stats = PyDict::new(py);
    stats.set_item("engine", engine)?;
    stats.set_item("debug", debug)?;
    for (name, count) in counts {
        stats.set_item(name, count)?;
    }
    Ok(stats)
}
