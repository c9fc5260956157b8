//! Releases the lock of the interpreter around code that blocks.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

use pelton::Handle;

/// Ruby's flags: do not run the function if an interrupt is pending, and do not handle interrupts afterwards. Both would jump.
const FAIL_ON_INTERRUPT: c_int = 1;
/// The unblocking function is safe in a signal handler.
const UNBLOCK_IS_ASYNC_SAFE: c_int = 2;

/// What runs without the lock, and its outcome.
struct Work<F, T> {
    work: Option<F>,
    outcome: Option<std::thread::Result<T>>,
}

/// Calls `work` without the lock. Ruby wakes `loop_` if this thread has to handle an interrupt. Returns `None`, and does not
/// call it, if there is one already; the caller handles it with [`check_interrupts`](crate::call::check_interrupts).
///
/// `work` must not touch anything of Ruby.
pub(crate) fn without<T, F: FnOnce() -> T>(loop_: Option<&Handle>, work: F) -> Option<T> {
    unsafe extern "C" fn run<T, F: FnOnce() -> T>(argument: *mut c_void) -> *mut c_void {
        // SAFETY: `without` passes a pointer to a live `Work` that nothing else uses meanwhile.
        let this = unsafe { &mut *argument.cast::<Work<F, T>>() };
        if let Some(work) = this.work.take() {
            this.outcome = Some(catch_unwind(AssertUnwindSafe(work)));
        }
        null_mut()
    }
    unsafe extern "C" fn wake(handle: *mut c_void) {
        // SAFETY: `without` passes a handle that outlives the call. Waking writes to a descriptor, from any thread.
        unsafe { &*handle.cast::<Handle>() }.wake();
    }
    let mut this = Work { work: Some(work), outcome: None };
    let (unblock, handle): (rb_sys::rb_unblock_function_t, *mut c_void) = match loop_ {
        Some(handle) => (Some(wake), std::ptr::from_ref(handle).cast_mut().cast()),
        None => (None, null_mut()),
    };
    let flags = FAIL_ON_INTERRUPT | if loop_.is_some() { UNBLOCK_IS_ASYNC_SAFE } else { 0 };
    // SAFETY: the lock is held. With these flags, nothing jumps out of the call. `this` and the handle outlive it.
    unsafe { rb_sys::rb_nogvl(Some(run::<T, F>), (&raw mut this).cast(), unblock, handle, flags) };
    match this.outcome {
        Some(Ok(outcome)) => Some(outcome),
        Some(Err(panic)) => resume_unwind(panic),
        None => None,
    }
}
