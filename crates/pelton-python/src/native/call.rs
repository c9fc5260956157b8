//! Calling Python right here.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::host::{Arguments, Exception, Keywords, Outcome, RefusalKind, TaskError};
use crate::value::{Limits, Object, Value};

/// Calls a Python function on this thread, and waits for it to return.
///
/// This is the way back into Python from a Rust function that Python has called: nothing has to wait for anything, since the
/// thread that calls is the one that runs. From elsewhere, where the interpreter lock may have to be waited for, tasks of a
/// [`Host`](crate::Host) are better. Coroutines cannot be awaited here; what one returns is an object.
///
/// The module is imported if it has not been; the function may lead through attributes. An exception is kept as it is, so that
/// `?` in a Rust function raises the very same. If Python is not running, because no host was started, the call is
/// [refused](RefusalKind::NotRunning).
pub fn call(module: &str, function: &str, args: impl Arguments, keywords: impl Into<Keywords>) -> Outcome {
    let (args, Keywords(keywords)) = (args.into_values(), keywords.into());
    let called = Python::try_attach(|py| {
        let args = args
            .iter()
            .enumerate()
            .map(|(index, value)| value.to_python(py).map_err(|error| error.within(format!("args[{index}]"))));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        let named = PyDict::new(py);
        for (name, value) in &keywords {
            let value = value.to_python(py).map_err(|error| error.within(name.to_string()))?;
            named.set_item(&**name, value).map_err(|error| raised(py, error))?;
        }
        let called = (|| {
            let mut object = py.import(module)?.into_any();
            for name in function.split('.') {
                object = object.getattr(name)?;
            }
            object.call(PyTuple::new(py, args)?, Some(&named).filter(|named| !named.is_empty()))
        })();
        let returned = called.map_err(|error| raised(py, error))?;
        Ok(Value::from_python(&returned, &Limits::DEFAULT).map_err(|error| error.within(format!("{function}()")))?)
    });
    called.unwrap_or(Err(TaskError::Refused(RefusalKind::NotRunning)))
}

#[cold]
fn raised(py: Python<'_>, error: PyErr) -> TaskError {
    let text =
        |object: &Bound<'_, PyAny>| object.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let kind = error.get_type(py);
    let name = |attribute| kind.getattr(attribute).map(|name| text(&name)).unwrap_or_default();
    let (module, class) = (name("__module__"), name("__qualname__"));
    let traceback =
        py.import("traceback").and_then(|traceback| traceback.call_method1("format_exception", (error.value(py),)));
    let traceback = traceback.and_then(|lines| lines.extract::<Vec<String>>()).unwrap_or_default().concat();
    TaskError::Raised(Box::new(Exception {
        type_name: if module == "builtins" { class } else { format!("{module}.{class}") },
        message: text(error.value(py)),
        traceback,
        object: Some(Object::new(error.value(py))),
    }))
}
