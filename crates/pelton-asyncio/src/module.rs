//! The module `pelton._pelton`.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI64, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi::{self, PyObject, PyTypeObject};
use pyo3::prelude::*;

use crate::event_loop::{class as loop_class, state};
use crate::handles::{class as handle_class, timer};
use crate::known::Known;
use crate::transports::{stream, tls};
use pelton_cpython::object::Raised;
use pelton_cpython::panic::guard;

/// The classes by name. They are created once per process.
type Classes = [(&'static str, *mut PyTypeObject); 6];

/// The interpreter that imported the module, and the classes created then.
struct Imported {
    interpreter: AtomicI64,
    classes: UnsafeCell<Option<Classes>>,
}

// SAFETY: the classes are only accessed with the lock of one interpreter held, the one whose number is set.
unsafe impl Sync for Imported {}

static IMPORTED: Imported = Imported { interpreter: AtomicI64::new(-1), classes: UnsafeCell::new(None) };

/// Fills the compiled module of the package `pelton`. It can be imported in one interpreter only.
pub fn fill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    // SAFETY: the lock is held, as `py` shows, so there is a current interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    let first = IMPORTED.interpreter.compare_exchange(-1, interpreter, Ordering::Relaxed, Ordering::Relaxed);
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
    // SAFETY: the lock of the one importing interpreter is held, and creating the classes does not import this module.
    let classes = match unsafe { *IMPORTED.classes.get() } {
        // The program removed the module from `sys.modules` and imports it again.
        Some(classes) => classes,
        None => {
            let classes = make_classes(py)?;
            // SAFETY: as above: the lock is held, and no other reference to the cell exists.
            unsafe { *IMPORTED.classes.get() = Some(classes) };
            classes
        }
    };
    for (name, class) in classes {
        // SAFETY: types are objects, and these are never freed.
        module.add(name, unsafe { Bound::<PyAny>::from_borrowed_ptr(py, class.cast::<PyObject>()) })?;
    }
    module.add_function(pyo3::wrap_pyfunction!(_panic, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

fn make_classes(py: Python<'_>) -> PyResult<Classes> {
    pelton_cpython::interned::look_up(py);
    let raised = |Raised| PyErr::fetch(py);
    let base = py.import("pelton._loop")?;
    let asyncio = py.import("asyncio")?;
    let handle_base = asyncio.getattr("Handle")?;
    let timer_base = asyncio.getattr("TimerHandle")?;
    let loop_base = base.getattr("BaseLoop")?;
    let stream_base = py.import("pelton._transports")?.getattr("BaseStreamTransport")?;
    let tls_base = py.import("pelton._tls")?;
    let as_type = |class: &Bound<'_, PyAny>| class.as_ptr().cast::<PyTypeObject>();

    // SAFETY: the bases are classes, the ones that the functions require. Types are created in the order in which
    // they need each other. No Python code can call their methods before `look_up` is done.
    unsafe {
        let handle = handle_class::make_type(as_type(&handle_base), as_type(&timer_base)).map_err(raised)?;
        let timer = timer::make_type(as_type(&timer_base)).map_err(raised)?;
        Known::look_up(py, &base, [handle, timer, state::make_type().map_err(raised)?])?;
        let stream = stream::make_type(as_type(&stream_base)).map_err(raised)?;
        let event_loop = loop_class::make_type(as_type(&loop_base)).map_err(raised)?;
        let tls_protocol = tls::make_protocol_type(as_type(&tls_base.getattr("BaseSSLProtocol")?)).map_err(raised)?;
        let tls_transport =
            tls::make_transport_type(as_type(&tls_base.getattr("BaseSSLTransport")?)).map_err(raised)?;
        Ok([
            ("Handle", handle),
            ("TimerHandle", timer),
            ("StreamTransport", stream),
            ("SSLProtocol", tls_protocol),
            ("SSLTransport", tls_transport),
            ("Loop", event_loop),
        ])
    }
}

/// Panics, so that a test can check that Python sees an exception.
#[pyfunction]
fn _panic() -> PyResult<()> {
    guard(Err(Raised), || panic!("on purpose")).map_err(|Raised| Python::attach(PyErr::fetch))
}
