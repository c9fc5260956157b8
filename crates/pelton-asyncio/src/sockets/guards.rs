//! Checks whether sockets may be used without calling their Python methods. They may not if a program replaced
//! these methods. Creating or connecting a socket must also go through Python if there are audit hooks.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::event_loop::state::Loop;
use crate::known::known;
use pelton_cpython::audit;
pub(crate) use pelton_cpython::audit::is_audited;
use pelton_cpython::call::OrRaise;
use pelton_cpython::class::This;
use pelton_cpython::object::Result;

/// The version of `socket.socket` at which its methods were found to be the original ones; 0 if none.
static ORIGINAL: AtomicU32 = AtomicU32::new(0);

/// Returns whether all methods of `socket.socket` are the original ones. This compares one number, and looks at the methods only if the
/// number differs.
#[inline]
pub(crate) fn methods_are_original(py: Python<'_>) -> Result<bool> {
    let version = audit::version(known().socket.bind(py));
    if version != 0 && version == ORIGINAL.load(Ordering::Relaxed) {
        return Ok(true);
    }
    compare_methods(py).or_raise(py)
}

#[cold]
fn compare_methods(py: Python<'_>) -> PyResult<bool> {
    let class: &Bound<'_, PyType> = known().socket.bind(py);
    let mut before = None;
    for (name, original) in known().socket_methods.bind(py).cast::<PyDict>()?.iter() {
        if !class.getattr(name.cast::<pyo3::types::PyString>()?)?.is(&original) {
            return Ok(false);
        }
        // The first lookup gave the class a version. If it differs at the end, the class changed meanwhile.
        before.get_or_insert_with(|| audit::version(class));
    }
    if before == Some(audit::version(class)) {
        ORIGINAL.store(audit::version(class), Ordering::Relaxed);
    }
    Ok(true)
}

/// Returns whether methods are replaced or there are audit hooks.
pub(crate) fn is_guarded(py: Python<'_>) -> Result<bool> {
    Ok(!methods_are_original(py)? || is_audited(py))
}

/// `_sockets_are_guarded()`
pub(crate) fn are_guarded(this: This<'_, '_, Loop>) -> Result<bool> {
    is_guarded(this.py())
}
