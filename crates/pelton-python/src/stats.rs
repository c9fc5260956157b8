//! What a loop counts.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::core::Core;

/// Counts since the loop was made.
#[derive(Default)]
pub(crate) struct Counters {
    /// Times around.
    pub(crate) turns: u64,
    /// Callbacks called.
    pub(crate) callbacks: u64,
    /// Of these, what timers were set for.
    pub(crate) timers: u64,
    /// Times a descriptor was ready.
    pub(crate) events: u64,
    /// Times the engine was asked what is ready, and of these, the times it slept.
    pub(crate) polls: u64,
    pub(crate) sleeps: u64,
    /// Callbacks that another thread has scheduled.
    pub(crate) posts: u64,
    /// Callbacks that waited at the same time, at most.
    pub(crate) most_ready: u64,
}

/// What `loop.stats()` answers.
///
/// # Safety
/// `core` is that of a live loop.
pub(crate) unsafe fn snapshot(py: Python<'_>, core: *mut Core) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: as the caller says. What is read is copied before anything is called.
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
        // The name alone: the engine may be lent to another thread that sleeps in it.
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
