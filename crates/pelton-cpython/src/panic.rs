//! Turns panics into Python exceptions at the boundary to Python.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;

use crate::call::raise;
use crate::lock;

/// Calls `body` for a C function. A panic that unwound into the interpreter would abort the process, so it becomes
/// a `RuntimeError`, and the C function returns `failed`.
#[inline]
pub fn guard<R>(failed: R, body: impl FnOnce() -> R) -> R {
    // AssertUnwindSafe: a loop's state outlives the panic, but every part of it is consistent at each point where a call
    // can panic.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        report(&*payload);
        failed
    })
}

#[cold]
fn report(payload: &(dyn std::any::Any + Send)) {
    let message = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    let text = format!("pelton panicked, which is a bug in pelton: {}", message.unwrap_or("no message"));
    lock::held(|py| raise::<PyRuntimeError>(py, &text));
}
