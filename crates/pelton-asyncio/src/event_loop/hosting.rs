//! What a host needs of its loops.

use pelton::Handle;
use pyo3::prelude::*;

use super::intake::Intake;
use super::state;

/// Gives a loop a source of work from outside of Python. Returns the handle that wakes the loop.
pub fn set_intake(its_loop: &Bound<'_, PyAny>, intake: Box<dyn Intake>) -> PyResult<Handle> {
    let state = state::of(its_loop)?;
    *state.intake.borrow_mut() = Some(intake);
    Ok(state.handle.clone())
}

/// Stops a loop after the turn under way.
pub fn stop(its_loop: &Bound<'_, PyAny>) {
    if let Some(state) = state::of_or_none(its_loop) {
        state.stopping.set(true);
    }
}

/// Returns whether the program has set a task factory.
pub fn has_task_factory(its_loop: &Bound<'_, PyAny>) -> bool {
    state::of_or_none(its_loop).is_some_and(|state| !state.task_factory.is_empty())
}
