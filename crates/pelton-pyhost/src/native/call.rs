//! Calling Python on the current thread.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::host::{Arguments, Exception, Keywords, Outcome, RefusalKind, TaskError};
use crate::value::{Limits, Object, Value};

/// Calls a Python function on this thread and waits for it to return.
///
/// Use this to call back into Python from a Rust function that Python called: the current thread already runs
/// Python, so the call does not have to wait. Elsewhere the call may wait for the interpreter lock: prefer the tasks of
/// a [`Host`](crate::Host). Coroutines cannot be awaited here; a coroutine is returned as an object.
///
/// Imports the module if necessary. The function may be a dotted attribute path. The exception object is kept, so `?`
/// in a Rust function raises the same exception. If Python is not running because no host was started, the call is
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
