//! Conversion of descriptor arguments: an integer, or an object with `fileno()`.

use std::os::fd::RawFd;

use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};

use crate::event_loop::state::LoopState;
use crate::known::name;
use pelton_cpython::call::{Call, OrRaise, clear_raised, raise, raised_a};
use pelton_cpython::object::{Raised, Result};

/// Raises if a transport uses the descriptor, as asyncio does.
///
/// `loop._transports` is a dictionary of weak references by descriptor. If it has this descriptor, or if the argument is not an integer,
/// asyncio's own method decides.
pub(crate) fn refuse_transports<'py>(
    its_loop: &Bound<'py, PyAny>,
    state: &LoopState,
    fd: &Bound<'py, PyAny>,
) -> Result<()> {
    let py = its_loop.py();
    if fd.is_exact_instance_of::<PyInt>()
        && let Some(transports) = state.transports.get(py)
        && let Ok(transports) = transports.cast::<PyDict>()
        // Comparing with keys of a custom class may run code that replaces the dictionary.
        && !transports.contains(fd).or_raise(py)?
    {
        return Ok(());
    }
    its_loop.method_one(name!(py, _ensure_fd_no_transport), fd).map(drop)
}

/// Returns the descriptor given as an integer or as an object with `fileno()`.
pub(crate) fn descriptor(object: &Bound<'_, PyAny>) -> Result<RawFd> {
    let py = object.py();
    let number = if object.is_instance_of::<PyInt>() {
        object.whole()?
    } else {
        match object.method(name!(py, fileno)).and_then(|number| number.whole()) {
            Ok(number) => number,
            Err(Raised) => {
                let expected =
                    raised_a::<PyAttributeError>(py) || raised_a::<PyTypeError>(py) || raised_a::<PyValueError>(py);
                if !expected {
                    return Err(Raised);
                }
                clear_raised(py);
                let text = object.repr().map(|repr| repr.to_string()).unwrap_or_default();
                return Err(raise::<PyValueError>(py, &format!("Invalid file object: {text}")));
            }
        }
    };
    match RawFd::try_from(number) {
        Ok(number) if number >= 0 => Ok(number),
        _ => Err(raise::<PyValueError>(py, &format!("Invalid file descriptor: {number}"))),
    }
}
