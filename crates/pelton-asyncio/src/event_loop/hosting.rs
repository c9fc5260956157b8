//! What a host needs of its loops.

use pelton::Handle;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::intake::Intake;
use super::state::{self, LoopState};
use pelton_cpython::object::Raised;

/// Gives a loop a source of work from outside of Python. Returns the handle that wakes the loop.
pub fn set_intake(its_loop: &Bound<'_, PyAny>, intake: Box<dyn Intake>) -> PyResult<Handle> {
    let state = state_of(its_loop)?;
    // SAFETY: the state is that of a live loop, and the lock is held. Neither line runs Python code.
    unsafe {
        (*state).intake = Some(intake);
        Ok((*state).handle.clone())
    }
}

/// Stops a loop after the turn under way.
pub fn stop(its_loop: &Bound<'_, PyAny>) {
    if let Ok(state) = state_of(its_loop) {
        // SAFETY: the state is that of a live loop, and the lock is held.
        unsafe { (*state).stopping = true };
    }
}

/// Returns whether the program has set a task factory.
pub fn has_task_factory(its_loop: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the state is that of a live loop, and the lock is held.
    state_of(its_loop).is_ok_and(|state| unsafe { !(*state).task_factory.is_null() })
}

fn state_of(its_loop: &Bound<'_, PyAny>) -> PyResult<*mut LoopState> {
    // SAFETY: the object is alive, the lock is held, and the type is checked.
    unsafe {
        if !state::is_loop(its_loop.as_ptr()) {
            return Err(PyTypeError::new_err("a pelton.Loop is required"));
        }
        state::of(its_loop.as_ptr()).map_err(|Raised| PyErr::fetch(its_loop.py()))
    }
}
