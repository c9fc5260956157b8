//! Python exceptions for errors of Rust functions.

use std::borrow::Cow;
use std::fmt;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ConversionError;
use crate::host::TaskError;
use crate::value::Object;

/// An exception to raise in Python.
///
/// `?` converts an `io::Error` (to an `OSError`), a [`ConversionError`] (usually to a `TypeError`), a [`TaskError`]
/// (to the exception that Python raised, if its object was kept) and text (to a `RuntimeError`).
#[derive(Clone, Debug)]
pub struct Raise(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// A class by name, and its message.
    Named(Cow<'static, str>, String),
    /// An `OSError` with this number.
    System(i32, String),
    Object(Object),
}

impl Raise {
    /// Creates an exception of a class: a built-in one (`"ValueError"`), or one in a module (`"package.module.Error"`).
    pub fn new(class: impl Into<Cow<'static, str>>, message: impl fmt::Display) -> Raise {
        Raise(Kind::Named(class.into(), message.to_string()))
    }

    /// Raises an existing exception object.
    pub fn object(exception: Object) -> Raise {
        Raise(Kind::Object(exception))
    }

    pub(crate) fn type_error(message: String) -> Raise {
        Raise::new("TypeError", message)
    }

    pub(crate) fn into_error(self, py: Python<'_>) -> PyErr {
        match self.0 {
            Kind::Named(name, message) => match find(py, &name) {
                Ok(class) => class.call1((message,)).map_or_else(|error| error, PyErr::from_value),
                Err(_) => PyRuntimeError::new_err(format!("{name}: {message} (no such exception class)")),
            },
            Kind::System(number, message) => {
                // `OSError`'s constructor picks the subclass that matches the errno.
                let made = py.get_type::<pyo3::exceptions::PyOSError>().call1((number, message));
                made.map_or_else(|error| error, PyErr::from_value)
            }
            Kind::Object(exception) => PyErr::from_value(exception.bind(py)),
        }
    }
}

/// Finds an exception class by name.
fn find<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    let (module, class) = name.rsplit_once('.').unwrap_or(("builtins", name));
    let class = py.import(module)?.getattr(class)?.cast_into::<PyType>()?;
    if class.is_subclass_of::<pyo3::exceptions::PyBaseException>()? {
        return Ok(class);
    }
    Err(pyo3::exceptions::PyTypeError::new_err("not an exception class"))
}

impl fmt::Display for Raise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Named(name, message) => write!(f, "{name}: {message}"),
            Kind::System(number, message) => write!(f, "OSError {number}: {message}"),
            Kind::Object(exception) => write!(f, "{exception:?}"),
        }
    }
}

impl std::error::Error for Raise {}

impl From<ConversionError> for Raise {
    fn from(error: ConversionError) -> Raise {
        Raise::new(error.exception_class(), error)
    }
}

impl From<std::io::Error> for Raise {
    fn from(error: std::io::Error) -> Raise {
        match error.raw_os_error() {
            Some(number) => Raise(Kind::System(number, error.to_string())),
            None => Raise::new("OSError", error),
        }
    }
}

impl From<TaskError> for Raise {
    fn from(error: TaskError) -> Raise {
        match &error {
            TaskError::Raised(exception) => match exception.object() {
                Some(object) => Raise::object(object.clone()),
                None => Raise::new(exception.type_name().to_owned(), exception.message()),
            },
            TaskError::Conversion(error) => error.clone().into(),
            TaskError::Cancelled => Raise::new("asyncio.CancelledError", error),
            TaskError::TimedOut => Raise::new("TimeoutError", error),
            _ => Raise::new("RuntimeError", error),
        }
    }
}

impl From<String> for Raise {
    fn from(message: String) -> Raise {
        Raise::new("RuntimeError", message)
    }
}

impl From<&str> for Raise {
    fn from(message: &str) -> Raise {
        Raise::new("RuntimeError", message)
    }
}
