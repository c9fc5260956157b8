//! Attributes of a loop that asyncio's methods use too. They include `_ready` and `_scheduled`, copies of the
//! queues, because tools read them.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::event_loop::state::Loop;
use pelton_cpython::arguments::Argument;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise};
use pelton_cpython::class::{Attribute, This};
use pelton_cpython::object::Result;
use pelton_cpython::{accessed, flag_field, number_field, slot_field};

/// Returns the attributes.
pub(crate) fn attributes() -> Vec<Attribute<Loop>> {
    vec![
        flag_field!(Loop, c"_debug", debug),
        flag_field!(Loop, c"_closed", closed),
        flag_field!(Loop, c"_stopping", stopping),
        number_field!(Loop, c"_internal_fds", internal_descriptors),
        slot_field!(Loop, c"_thread_id", thread),
        slot_field!(Loop, c"_task_factory", task_factory),
        slot_field!(Loop, c"_current_handle", current_handle),
        accessed!(Loop, c"_transports_by_descriptor", get_transports, set_transports),
        accessed!(Loop, c"_ready", get_ready, set_queue),
        accessed!(Loop, c"_scheduled", get_scheduled, set_queue),
    ]
}

fn get_transports<'py>(this: This<'_, 'py, Loop>) -> Result<Option<Bound<'py, PyAny>>> {
    this.state().map(|state| state.transports.get(this.py()))
}

/// Accepts only a dictionary, because it is used as one.
fn set_transports<'py>(this: This<'_, 'py, Loop>, value: Option<Argument<'_, 'py>>) -> Result<()> {
    let state = this.state()?;
    if value.is_some_and(|value| !value.is_none() && !value.is_instance_of::<PyDict>()) {
        return Err(raise::<PyTypeError>(this.py(), "the transports of a pelton.Loop must be a dict"));
    }
    state.transports.assign(this.py(), value);
    Ok(())
}

fn get_ready<'py>(this: This<'_, 'py, Loop>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let handles: Vec<_> = this.state()?.ready.borrow().iter().map(|handle| handle.object(py).to_owned()).collect();
    PyList::new(py, handles).or_raise(py).map(Bound::into_any)
}

fn get_scheduled<'py>(this: This<'_, 'py, Loop>) -> Result<Bound<'py, PyAny>> {
    let py = this.py();
    let when = |timer: &pelton_cpython::handles::Queued| timer.ours(py).map_or(0.0, |timer| timer.when());
    let mut timers: Vec<_> = {
        let timers = this.state()?.timers.borrow();
        timers.iter().map(|(_, timer)| (when(timer), timer.object(py).to_owned())).collect()
    };
    timers.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    PyList::new(py, timers.into_iter().map(|(_, timer)| timer)).or_raise(py).map(Bound::into_any)
}

/// asyncio's constructor sets both to empty collections, which is ignored. Other assignments raise, because they
/// would have no effect.
fn set_queue<'py>(this: This<'_, 'py, Loop>, value: Option<Argument<'_, 'py>>) -> Result<()> {
    if value.is_some_and(|value| matches!(value.length(), Ok(0))) {
        return Ok(());
    }
    clear_raised(this.py());
    Err(raise::<PyAttributeError>(this.py(), "the queues of a pelton.Loop cannot be replaced"))
}
