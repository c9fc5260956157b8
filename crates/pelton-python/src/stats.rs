//! The counters of a loop.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::core::Core;

/// Counters since the loop was created.
#[derive(Default)]
pub(crate) struct Counters {
    /// Turns, as asyncio counts them: batches of callbacks, and turns without one.
    pub(crate) turns: u64,
    /// Callbacks that were called.
    pub(crate) callbacks: u64,
    /// How many of these were timers.
    pub(crate) timers: u64,
    /// Reports of ready descriptors.
    pub(crate) events: u64,
    /// Polls of the engine, and how many of these slept.
    pub(crate) polls: u64,
    pub(crate) sleeps: u64,
    /// Calls to `call_soon_threadsafe`.
    pub(crate) posts: u64,
    /// The largest number of callbacks in a batch.
    pub(crate) most_ready: u64,
}

/// Returns the result of `loop.stats()`.
///
/// # Safety
/// `core` belongs to a live loop.
pub(crate) unsafe fn snapshot(py: Python<'_>, core: *mut Core) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: the caller guarantees it. Everything is copied before Python code can run.
    let (counts, engine, debug) = unsafe {
        let counters = &(*core).counters;
        let counts = [
            ("turns", counters.turns),
            ("callbacks", counters.callbacks),
            ("timers", counters.timers),
            ("events", counters.events),
            ("polls", counters.polls),
            ("sleeps", counters.sleeps),
            ("posts", counters.posts),
            ("most_ready", counters.most_ready),
            ("ready", (*core).ready.len() as u64),
            ("timers_waiting", (*core).timers.len() as u64),
            ("descriptors", (*core).readers.len() as u64),
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
