//! Turns the loop: the reactor's turn, with Python as its [guest](crate::event_loop::guest).

use std::rc::Rc;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::event_loop::reactor_errors::raise_error;
use crate::event_loop::state::{Loop, LoopState, Taken};
use crate::event_loop::{class, guest};
use crate::known::name;
use pelton_cpython::call::{Call, OrRaise, raise};
use pelton_cpython::class::This;
use pelton_cpython::object::{Raised, Result};
use pelton_cpython::thread_exit::Suspended;

/// The shortest interval at which the lock is released under load, however short the interpreter's own interval is.
const UNLOCK_AT_MOST_EVERY: Duration = Duration::from_millis(1);

/// Turns the loop until it is stopped.
#[inline(never)]
pub(crate) fn until_stopped(this: This<'_, '_, Loop>) -> Result<()> {
    let state: &Rc<LoopState> = this.state()?;
    let _suspended = Suspended::instead_of_exit();
    state.run_begins.set(true);
    state.unlock_every.set(unlock_every(this.py())?);
    // Programs may replace the turn, as asyncio's own tests do.
    let own_turn = class::has_own_turn(&this)?;
    loop {
        if own_turn {
            turn_while(&this, state, || !state.stopping.get())?;
        } else {
            this.method(name!(this.py(), _run_once))?;
        }
        if state.stopping.get() {
            return Ok(());
        }
    }
}

/// Returns how often to release the lock under load.
///
/// A thread that waits for the lock requests it when it has not become free for `sys.getswitchinterval()`. Only then is it certain to
/// get the lock at the next release. A release wakes waiting threads, and a thread that is too slow to take the lock starts a new
/// interval. So a loop that releases the lock once per interval, or more often, could starve them.
fn unlock_every(py: Python<'_>) -> Result<Duration> {
    let ask = py.import("sys").and_then(|sys| sys.getattr_opt("getswitchinterval")).or_raise(py)?;
    let Some(ask) = ask else { return Ok(UNLOCK_AT_MOST_EVERY) };
    let interval = ask.call_none()?.number()?;
    Ok(Duration::try_from_secs_f64(interval * 1.5).unwrap_or(Duration::MAX).max(UNLOCK_AT_MOST_EVERY))
}

/// `_run_once()`: runs one turn.
pub(crate) fn once(this: This<'_, '_, Loop>) -> Result<()> {
    let state: &Rc<LoopState> = this.state()?;
    state.check_open(this.py())?;
    turn_while(&this, state, || false)
}

/// Runs a turn, and others while `goes_on` returns `true`. Inside a callback of the same loop, it runs one turn.
fn turn_while(its_loop: &Bound<'_, PyAny>, state: &Rc<LoopState>, goes_on: impl Fn() -> bool) -> Result<()> {
    match Taken::out_of(its_loop, state)? {
        Some(mut taken) => taken.turn_while(goes_on),
        None => turn_inside(its_loop.py(), state),
    }
}

/// Runs a turn inside a callback of the same loop, as programs do that patch asyncio.
#[cold]
fn turn_inside(py: Python<'_>, state: &Rc<LoopState>) -> Result<()> {
    state.check_open(py)?;
    let before = state.counters.turns.get();
    let turned = state.handle.with_reactor(|reactor| {
        state.follow_fork(py, reactor)?;
        guest::host(state, reactor);
        Ok(reactor.turn_inside(None))
    });
    match turned {
        None | Some(Ok(Err(pelton::Error::Nested))) => {
            Err(raise::<PyRuntimeError>(py, "This event loop is already running"))
        }
        Some(turned) => {
            state.counters.turns.set(state.counters.turns.get().max(before + 1));
            if state.raised.take() { Err(Raised) } else { turned?.map_err(|error| raise_error(py, error)) }
        }
    }
}
