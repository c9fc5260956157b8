//! Panics end at the boundary to Python, as exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::ffi;

use crate::object::raise_text;

/// Calls `body` on behalf of a C function. A panic in it, which would abort the process if it went on into the interpreter,
/// becomes a `RuntimeError`, and `failed` is what the C function answers.
#[inline]
pub(crate) fn guard<R>(failed: R, body: impl FnOnce() -> R) -> R {
    // What a panic leaves behind is a loop's state, whose parts are each whole between any two calls that can panic.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        report(&*payload);
        failed
    })
}

#[cold]
fn report(payload: &(dyn std::any::Any + Send)) {
    let message = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    // SAFETY: the exception classes are there as long as the interpreter is.
    let exception = unsafe { ffi::PyExc_RuntimeError };
    raise_text(exception, &format!("pelton panicked, which is a bug in it: {}", message.unwrap_or("no message")));
}
