//! Errors of the reactor, as exceptions.

use std::io;

use pelton::Error;

use pelton_cpython::object::{Raised, raise_io};

/// The system's error, if it is one.
pub(crate) fn system_error(error: Error) -> io::Error {
    match error {
        Error::System { error, .. } => error,
        other => other.into(),
    }
}

/// Raises a reactor's error as an `OSError`.
#[cold]
pub(crate) fn raise_error(error: Error) -> Raised {
    raise_io(&system_error(error))
}
