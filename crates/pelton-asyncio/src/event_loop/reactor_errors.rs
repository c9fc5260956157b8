//! Errors of the reactor, as exceptions.

use std::io;

use pelton::Error;
use pyo3::Python;

use pelton_cpython::call::raise_io;
use pelton_cpython::object::Raised;

/// The system's error, if it is one.
pub(crate) fn system_error(error: Error) -> io::Error {
    match error {
        Error::System { error, .. } => error,
        other => other.into(),
    }
}

/// Raises a reactor's error as an `OSError`.
#[cold]
pub(crate) fn raise_error(py: Python<'_>, error: Error) -> Raised {
    raise_io(py, &system_error(error))
}
