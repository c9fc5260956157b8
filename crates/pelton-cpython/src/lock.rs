//! Releasing the interpreter lock.

use pelton::Sleep;
use pyo3::prelude::*;

/// Gives other threads the chance to take the lock.
pub fn yield_to_others(py: Python<'_>) {
    py.detach(|| ());
}

/// Calls a function without the lock, for the part of a reactor's turn that may sleep.
///
/// The function captures nothing. What it gets is not Python's: the sleep of a reactor, and a value that could be sent to another thread.
pub fn sleep<T: Send, R: Send>(
    py: Python<'_>,
    sleep: &mut Sleep<'_>,
    with: &mut T,
    f: fn(&mut Sleep<'_>, &mut T) -> R,
) -> R {
    struct Here<'a, 'b>(&'a mut Sleep<'b>);
    // SAFETY: it stays on its thread. PyO3 requires `Send` for what code without the lock uses, to keep Python's objects from it; a sleep
    // has none.
    unsafe impl Send for Here<'_, '_> {}
    let here = Here(sleep);
    py.detach(move || {
        let here = here;
        f(here.0, with)
    })
}

/// Returns the number by which Python knows this thread.
pub fn thread_number(_: Python<'_>) -> u64 {
    // SAFETY: this has no preconditions.
    unsafe { pyo3::ffi::PyThread_get_thread_ident() as u64 }
}

/// Returns the number of this thread's interpreter.
pub fn interpreter_number(_: Python<'_>) -> i64 {
    // SAFETY: the lock is held, so there is a current interpreter.
    unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) }
}

/// Calls a function that needs the lock, if this thread holds it. It is for callbacks of a reactor that is turned with the lock held, and
/// costs less than taking the lock again.
///
/// # Panics
///
/// Panics if this thread does not hold the lock.
#[inline]
pub fn held<R>(f: impl FnOnce(Python<'_>) -> R) -> R {
    // SAFETY: these may be called at any time. A thread that holds the lock has a current state. Before Python 3.12 that is the state of
    // whichever thread holds the lock, which the second function compares with this thread's own.
    let holds =
        unsafe { !pyo3::ffi::compat::PyThreadState_GetUnchecked().is_null() && pyo3::ffi::PyGILState_Check() != 0 };
    assert!(holds, "the loop's reactor is used without the interpreter lock");
    // SAFETY: this thread holds the lock, and `f` cannot keep what shows it.
    f(unsafe { Python::assume_attached() })
}

/// Calls `f` if this thread holds the lock of the main interpreter. Otherwise returns what it was to be called with.
pub fn if_held<T, R>(with: T, f: impl FnOnce(Python<'_>, T) -> R) -> Result<R, T> {
    use pyo3::ffi;
    // SAFETY: these functions may be called at any time. A thread that holds the lock has a current state. Before Python 3.12 the current
    // state belongs to whichever thread holds the lock, so it is compared with this thread's own. `PyGILState_Check` would return true for
    // every thread once a second interpreter has been created.
    let holds = unsafe {
        ffi::Py_IsInitialized() != 0 && {
            let current = ffi::compat::PyThreadState_GetUnchecked();
            !current.is_null() && current == ffi::PyGILState_GetThisThreadState()
        }
    };
    // SAFETY: the lock is held.
    if holds { Ok(f(unsafe { Python::assume_attached() }, with)) } else { Err(with) }
}
