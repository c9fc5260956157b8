//! The module `pelton._pelton`.

use std::sync::atomic::{AtomicI64, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::event_loop::{class as loop_class, state};
use crate::known::Known;
use crate::transports::{stream, tls};
use pelton_cpython::handles::{self, Hooks, context};
use pelton_cpython::object::Raised;
use pelton_cpython::panic::guard;
use pelton_cpython::{interned, lock};

/// The classes by name.
type Classes = [(&'static str, Py<PyType>); 6];

/// The interpreter that imported the module.
static INTERPRETER: AtomicI64 = AtomicI64::new(-1);

/// The classes, which are created once per process.
static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

/// Fills the compiled module of the package `pelton`. It can be imported in one interpreter only.
pub fn fill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let interpreter = lock::interpreter_number(py);
    let first = INTERPRETER.compare_exchange(-1, interpreter, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|first| first != interpreter) {
        return Err(PyImportError::new_err("pelton can be imported in only one interpreter per process"));
    }
    // A free-threaded build enables the lock for this module unless it was started with the lock disabled.
    let asked = py.import("sys")?.getattr_opt("_is_gil_enabled")?;
    if let Some(asked) = asked
        && !asked.call0()?.is_truthy()?
    {
        return Err(PyImportError::new_err(
            "pelton requires the interpreter lock, which PYTHON_GIL=0 or -X gil=0 disables",
        ));
    }
    // The program may have removed the module from `sys.modules`, and import it again.
    for (name, class) in CLASSES.get_or_try_init(py, || make_classes(py))? {
        module.add(*name, class.bind(py))?;
    }
    module.add_function(pyo3::wrap_pyfunction!(_panic, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

/// Makes the classes, in the order in which they need each other. No Python code can call their methods before `look_up` is done.
fn make_classes(py: Python<'_>) -> PyResult<Classes> {
    interned::look_up(py);
    let base = py.import("pelton._loop")?;
    let asyncio = py.import("asyncio")?;
    let tls_base = py.import("pelton._tls")?;
    context::look_up(py)?;
    Known::look_up(py, &base)?;
    let hooks = Hooks {
        is_debug: state::is_in_debug_mode,
        take_timer: state::take_timer,
        each_queued: state::each_queued,
        extract_stack: py.import("asyncio.format_helpers")?.getattr("extract_stack")?.unbind(),
        callback_failed: base.getattr("callback_failed")?.unbind(),
    };
    let [handle, timer] = handles::make_types(&class(&asyncio, "Handle")?, &class(&asyncio, "TimerHandle")?, hooks)?;
    let stream = stream::make(&class(&py.import("pelton._transports")?, "BaseStreamTransport")?)?;
    let event_loop = loop_class::make(&class(&base, "BaseLoop")?)?;
    let tls_protocol = tls::make_protocol(&class(&tls_base, "BaseSSLProtocol")?)?;
    let tls_transport = tls::make_transport(&class(&tls_base, "BaseSSLTransport")?)?;
    Ok([
        ("Handle", handle.unbind()),
        ("TimerHandle", timer.unbind()),
        ("StreamTransport", stream.unbind()),
        ("SSLProtocol", tls_protocol.unbind()),
        ("SSLTransport", tls_transport.unbind()),
        ("Loop", event_loop.unbind()),
    ])
}

fn class<'py>(module: &Bound<'py, PyModule>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(module.getattr(name)?.cast_into::<PyType>()?)
}

/// Panics, so that a test can check that Python sees an exception.
#[pyfunction]
fn _panic() -> PyResult<()> {
    Ok(guard(Err(Raised), || panic!("on purpose"))?)
}
