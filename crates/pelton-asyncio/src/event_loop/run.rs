//! Turns the loop: the reactor's turn, with Python as its [guest](crate::event_loop::guest).

use std::time::Duration;

use pyo3::ffi::{self, PyObject};

use crate::event_loop::class;
use crate::event_loop::guest;
use crate::event_loop::reactor_errors::raise_error;
use crate::event_loop::state::{self, LoopState, Taken};
use crate::known::known;
use pelton_cpython::object::{Owned, Raised, Result, raise};
use pelton_cpython::thread_exit::Suspended;

/// The shortest interval at which the lock is released under load, however short the interpreter's own interval is.
const UNLOCK_AT_MOST_EVERY: Duration = Duration::from_millis(1);

/// Turns the loop until it is stopped.
///
/// # Safety
/// `loop_` is a live `pelton.Loop` that runs on this thread.
pub(crate) unsafe fn until_stopped(loop_: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees it, and the caller keeps the loop alive, which keeps its core alive.
    unsafe {
        let core = state::of(loop_)?;
        let _suspended = Suspended::instead_of_exit();
        (*core).run_begins = true;
        (*core).unlock_every = unlock_every()?;
        // Programs may replace the turn, as asyncio's own tests do.
        let own_turn = class::has_own_turn(loop_)?;
        loop {
            if own_turn {
                turn_while(loop_, core, || !(*core).stopping)?;
            } else {
                drop(Owned::returned(ffi::PyObject_CallMethodNoArgs(loop_, known().names._run_once))?);
            }
            if (*core).stopping {
                return Ok(());
            }
        }
    }
}

/// Returns how often to release the lock under load.
///
/// A thread that waits for the lock requests it when it has not become free for `sys.getswitchinterval()`. Only then is it certain to
/// get the lock at the next release. A release wakes waiting threads, and a thread that is too slow to take the lock starts a new
/// interval. So a loop that releases the lock once per interval, or more often, could starve them.
unsafe fn unlock_every() -> Result<Duration> {
    // SAFETY: the lock is held. The function is borrowed from `sys` for the call; the other references are owned.
    unsafe {
        let ask = ffi::PySys_GetObject(c"getswitchinterval".as_ptr());
        if ask.is_null() {
            return Ok(UNLOCK_AT_MOST_EVERY);
        }
        let interval = Owned::returned(ffi::PyObject_CallNoArgs(ask))?;
        let interval = ffi::PyFloat_AsDouble(interval.as_ptr());
        if interval == -1.0 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        Ok(Duration::try_from_secs_f64(interval * 1.5).unwrap_or(Duration::MAX).max(UNLOCK_AT_MOST_EVERY))
    }
}

/// Runs one turn.
///
/// # Safety
/// `core` belongs to `loop_`, which is alive and open.
pub(crate) unsafe fn turn(loop_: *mut PyObject, core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it.
    unsafe { turn_while(loop_, core, || false) }
}

/// Runs a turn, and others while `goes_on` returns `true`. Inside a callback of the same loop, it runs one turn.
unsafe fn turn_while(loop_: *mut PyObject, core: *mut LoopState, goes_on: impl Fn() -> bool) -> Result<()> {
    // SAFETY: the caller guarantees it. The reactor is on this stack or was lent to it, and no Rust reference into the core is held.
    unsafe {
        match Taken::out_of(loop_, core)? {
            Some(mut taken) => taken.turn_while(goes_on),
            None => turn_inside(core),
        }
    }
}

/// Runs a turn inside a callback of the same loop, as programs do that patch asyncio.
#[cold]
unsafe fn turn_inside(core: *mut LoopState) -> Result<()> {
    // SAFETY: the caller guarantees it. The reactor can be reached only from Python code on the thread that turns it.
    unsafe {
        state::check_open(core)?;
        let before = (*core).counters.turns;
        let turned = (*core).handle.with_reactor(|reactor| {
            state::follow_fork(core, reactor)?;
            guest::host(core, reactor);
            Ok(reactor.turn_inside(None))
        });
        match turned {
            None | Some(Ok(Err(pelton::Error::Nested))) => {
                Err(raise(ffi::PyExc_RuntimeError, c"This event loop is already running"))
            }
            Some(turned) => {
                (*core).counters.turns = (*core).counters.turns.max(before + 1);
                if std::mem::take(&mut (*core).raised) { Err(Raised) } else { turned?.map_err(raise_error) }
            }
        }
    }
}
