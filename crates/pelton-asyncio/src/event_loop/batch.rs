//! One batch: queues due timers, and calls the handles that are in the queue when it begins.

use std::time::Duration;

use pelton::Time;
use pelton_os::clock;
use pyo3::prelude::*;

use crate::event_loop::slow;
use crate::event_loop::state::LoopState;
use crate::known::{known, name};
use pelton_cpython::call::{Call, OrRaise, keeping_exception};
use pelton_cpython::handles::context::Entered;
use pelton_cpython::handles::{Handle, Queued, goes_silently, report};
use pelton_cpython::object::{Raised, Result};

/// Queues the handles of due timers.
#[inline]
pub(crate) fn queue_timers(py: Python<'_>, state: &LoopState, now: Time) {
    let mut timers = state.timers.borrow_mut();
    if timers.is_empty() {
        return;
    }
    timers.expire(now);
    while let Some(due) = timers.next_due() {
        let Some(timer) = timers.cancel(due.key) else { continue };
        if let Some(timer) = timer.ours(py) {
            timer.set_key(None);
        }
        state.ready.borrow_mut().push_back(timer);
        state.counters.timers.set(state.counters.timers.get() + 1);
    }
}

/// Calls the handles that are in the queue now. Each is taken out, with the queue's reference to it, before it is called.
pub(crate) fn call_queued<'py>(its_loop: &Bound<'py, PyAny>, state: &LoopState) -> Result<()> {
    let py = its_loop.py();
    let count = state.ready.borrow().len();
    state.counters.most_ready.set(state.counters.most_ready.get().max(count as u64));
    let mut entered = Entered::NONE;
    for _ in 0..count {
        let Some(handle) = state.ready.borrow_mut().pop_front() else { break };
        let called = call_one(its_loop, state, &handle, &mut entered);
        let is_silent = called.as_ref().is_ok_and(|result| goes_silently(result.as_ref(), &handle));
        if !is_silent {
            entered.leave();
        }
        let outcome = called.map(drop);
        handle.release(py);
        if outcome.is_err() {
            // The rest stays queued for the next run.
            entered.leave();
            return outcome;
        }
    }
    entered.leave();
    Ok(())
}

/// Returns whether a handle, of any type, was cancelled.
#[inline]
pub(crate) fn is_cancelled(handle: &Bound<'_, PyAny>) -> Result<bool> {
    match Handle::of(handle) {
        Some(handle) => Ok(handle.is_cancelled()),
        None => handle.attribute(name!(handle.py(), _cancelled))?.truth(),
    }
}

/// Calls one handle and returns the result of its callback. Only an exception that ends the run is an error.
#[inline]
fn call_one<'py>(
    its_loop: &Bound<'py, PyAny>,
    state: &LoopState,
    queued: &Queued,
    entered: &mut Entered<'py>,
) -> Result<Option<Bound<'py, PyAny>>> {
    let py = its_loop.py();
    let handle = match queued.ours(py) {
        Some(handle) if !state.debug.get() && !state.slow.watched.get() => handle,
        _ => {
            entered.leave();
            return call_with_care(its_loop, state, &queued.object(py)).map(|()| None);
        }
    };
    if handle.is_cancelled() {
        return Ok(None);
    }
    let called = handle.enter(entered, &state.contexts).and_then(|()| {
        // Leaving the previous context may have run a finalizer that cancelled this handle.
        if handle.is_cancelled() {
            return Ok(None);
        }
        state.counters.callbacks.set(state.counters.callbacks.get() + 1);
        handle.call().map(Some)
    });
    match called {
        Ok(result) if handle.is_cancelled() => {
            entered.leave();
            handle.forget_if_cancelled();
            drop(result);
            Ok(None)
        }
        Ok(result) => Ok(result),
        Err(Raised) => {
            // Leave the callback's context first, because the exception handler runs in it.
            keeping_exception(py, || entered.leave());
            let outcome = report(py, &handle);
            handle.forget_if_cancelled();
            outcome.map(|()| None)
        }
    }
}

/// Calls a handle that may be of a foreign type, or must be timed.
#[cold]
fn call_with_care<'py>(its_loop: &Bound<'py, PyAny>, state: &LoopState, handle: &Bound<'py, PyAny>) -> Result<()> {
    let py = its_loop.py();
    if is_cancelled(handle)? {
        return Ok(());
    }
    state.counters.callbacks.set(state.counters.callbacks.get() + 1);
    let debug = state.debug.get();
    if debug {
        state.current_handle.set(handle.clone());
    }
    let watched = state.slow.watched.get();
    if watched {
        slow::begin(state, handle);
    }
    let start = if debug { clock::now() } else { Time::ZERO };
    let outcome = match Handle::of(handle) {
        Some(handle) => handle.run_alone(),
        None => handle.method(name!(py, _run)).map(drop),
    };
    let took = if debug { clock::now() - start } else { Duration::ZERO };
    // Ends the watchdog's measurement first: the reports below are not the callback's fault.
    let slow = if watched { slow::end(state) } else { None };
    let outcome = outcome.and_then(|()| if debug { tell_if_slow(its_loop, handle, took) } else { Ok(()) });
    if debug {
        drop(state.current_handle.take(py));
    }
    outcome?;
    match slow {
        Some(took) => slow::tell(state, handle, took).or_else(|Raised| report(py, handle)),
        None => Ok(()),
    }
}

/// Logs a callback that took longer than `loop.slow_callback_duration`. For debug mode.
fn tell_if_slow<'py>(its_loop: &Bound<'py, PyAny>, handle: &Bound<'py, PyAny>, took: Duration) -> Result<()> {
    let py = its_loop.py();
    if took.as_secs_f64() < its_loop.attribute(name!(py, slow_callback_duration))?.number()? {
        return Ok(());
    }
    known().callback_was_slow.bind(py).call1((handle, took.as_secs_f64())).or_raise(py).map(drop)
}
