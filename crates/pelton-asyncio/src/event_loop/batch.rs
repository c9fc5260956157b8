//! One batch: queues due timers, and calls the handles that are in the queue when it begins.

use std::ptr::null_mut;
use std::time::Duration;

use pelton::Time;
use pelton_os::clock;
use pyo3::ffi::{self, PyObject};

use crate::event_loop::slow;
use crate::event_loop::state::LoopState;
use crate::handles::contexts::Entered;
use crate::handles::{handle, memory, timer};
use crate::known::known;
use pelton_cpython::object::{Owned, Raised, Result, replace};

/// Queues the handles of due timers.
///
/// # Safety
/// `core` belongs to a live loop.
#[inline]
pub(crate) unsafe fn queue_timers(core: *mut LoopState, now: Time) {
    // SAFETY: nothing here calls Python. The wheel's references become the queue's.
    unsafe {
        let timers = &mut (*core).timers;
        if timers.is_empty() {
            return;
        }
        timers.expire(now);
        while let Some(due) = timers.next_due() {
            let Some(timer) = timers.cancel(due.key) else { continue };
            timer::set_key(timer, None);
            (*core).ready.push_back(timer);
            (*core).counters.timers += 1;
        }
    }
}

/// Calls the handles that are in the queue now.
///
/// # Safety
/// `core` belongs to `loop_`, which is alive; no Rust reference into it is held.
pub(crate) unsafe fn call_queued(loop_: *mut PyObject, core: *mut LoopState) -> Result<()> {
    // SAFETY: each handle is taken out of the queue, with the queue's reference to it, before it is called.
    unsafe {
        let count = (*core).ready.len();
        (*core).counters.most_ready = (*core).counters.most_ready.max(count as u64);
        let mut entered = Entered::NONE;
        for _ in 0..count {
            let Some(handle) = (*core).ready.pop_front() else { break };
            let called = call_one(loop_, core, handle, &mut entered);
            if !goes_silently(&called, handle) {
                entered.leave();
            }
            let outcome = called.map(drop);
            memory::release(handle);
            if outcome.is_err() {
                // The rest stays queued for the next run.
                entered.leave();
                return outcome;
            }
        }
        entered.leave();
        Ok(())
    }
}

/// Returns whether the result of a callback and its handle can be dropped without running any code. If not, they must be dropped
/// outside the callback's context, as in asyncio: a finalizer would see the context's variables, and could not enter it.
#[inline]
unsafe fn goes_silently(called: &Result<Option<Owned>>, handle: *mut PyObject) -> bool {
    // SAFETY: all are alive.
    unsafe {
        let Ok(result) = called else { return false };
        let result = result.as_ref().map_or(ffi::Py_None(), Owned::as_ptr);
        (ffi::Py_REFCNT(result) > 1 || memory::is_plain(result)) && memory::is_released_silently(handle)
    }
}

/// Calls one handle and returns the result of its callback. Only an exception that ends the run is an error.
#[inline]
unsafe fn call_one(
    loop_: *mut PyObject,
    core: *mut LoopState,
    handle: *mut PyObject,
    entered: &mut Entered,
) -> Result<Option<Owned>> {
    // SAFETY: the caller has a reference to the handle.
    unsafe {
        if (*core).debug || (*core).slow.watched || !handle::is_ours(handle) {
            entered.leave();
            return call_with_care(loop_, core, handle).map(|()| None);
        }
        if handle::is_cancelled(handle)? {
            return Ok(None);
        }
        let called = entered.enter(core, handle::fields(handle)).and_then(|()| {
            // Leaving the previous context may have run a finalizer that cancelled this handle.
            if handle::is_cancelled(handle)? {
                return Ok(None);
            }
            (*core).counters.callbacks += 1;
            handle::call(handle).map(Some)
        });
        match called {
            Ok(result) if handle::is_cancelled(handle)? => {
                entered.leave();
                handle::forget_if_cancelled(handle);
                drop(result);
                Ok(None)
            }
            Ok(result) => Ok(result),
            Err(Raised) => {
                // Leave the callback's context first, because the exception handler runs in it.
                entered.leave_keeping_exception();
                let outcome = handle::report(handle);
                handle::forget_if_cancelled(handle);
                outcome.map(|()| None)
            }
        }
    }
}

/// Calls a handle that may be of a foreign type, or must be timed.
#[cold]
unsafe fn call_with_care(loop_: *mut PyObject, core: *mut LoopState, handle: *mut PyObject) -> Result<()> {
    // SAFETY: the caller has a reference to the handle.
    unsafe {
        if handle::is_cancelled(handle)? {
            return Ok(());
        }
        (*core).counters.callbacks += 1;
        let debug = (*core).debug;
        if debug {
            replace(&raw mut (*core).current_handle, handle);
        }
        let watched = (*core).slow.watched;
        if watched {
            slow::begin(core, handle);
        }
        let start = if debug { clock::now() } else { Time::ZERO };
        let outcome = if handle::is_ours(handle) {
            handle::run_alone(handle)
        } else {
            Owned::returned(ffi::PyObject_CallMethodNoArgs(handle, known().names._run)).map(drop)
        };
        let took = if debug { clock::now() - start } else { Duration::ZERO };
        // Ends the watchdog's measurement first: the reports below are not the callback's fault.
        let slow = if watched { slow::end(core) } else { None };
        let outcome = outcome.and_then(|()| if debug { tell_if_slow(loop_, handle, took) } else { Ok(()) });
        if debug {
            replace(&raw mut (*core).current_handle, null_mut());
        }
        outcome?;
        match slow {
            Some(took) => slow::tell(core, handle, took).or_else(|Raised| handle::report(handle)),
            None => Ok(()),
        }
    }
}

/// Logs a callback that took longer than `loop.slow_callback_duration`. For debug mode.
unsafe fn tell_if_slow(loop_: *mut PyObject, handle: *mut PyObject, took: Duration) -> Result<()> {
    // SAFETY: all are alive.
    unsafe {
        let limit = Owned::returned(ffi::PyObject_GetAttr(loop_, known().names.slow_callback_duration))?;
        let limit = ffi::PyFloat_AsDouble(limit.as_ptr());
        if limit == -1.0 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        if took.as_secs_f64() < limit {
            return Ok(());
        }
        let seconds = Owned::returned(ffi::PyFloat_FromDouble(took.as_secs_f64()))?;
        let arguments = [handle, seconds.as_ptr()];
        let told = ffi::PyObject_Vectorcall(known().callback_was_slow, arguments.as_ptr(), 2, null_mut());
        Owned::returned(told).map(drop)
    }
}
