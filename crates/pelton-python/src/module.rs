//! The module `pelton._pelton`.

use pyo3::ffi::{PyObject, PyTypeObject};
use pyo3::prelude::*;

use crate::known::Known;
use crate::object::Raised;
use crate::panic::guard;
use crate::transports::stream;
use crate::{core, handle_type, loop_type, timer_handle};

/// The part of the package `pelton` that is compiled.
#[pymodule(gil_used = true)]
pub fn _pelton(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let raised = |Raised| PyErr::fetch(py);
    let base = py.import("pelton._loop")?;
    let asyncio = py.import("asyncio")?;
    let handle_base = asyncio.getattr("Handle")?;
    let timer_base = asyncio.getattr("TimerHandle")?;
    let loop_base = base.getattr("BaseLoop")?;
    let stream_base = py.import("pelton._transports")?.getattr("BaseStreamTransport")?;
    let as_type = |class: &Bound<'_, PyAny>| class.as_ptr().cast::<PyTypeObject>();

    // SAFETY: the bases are what the functions ask for, and all are classes. Types are made in the order in which they need
    // each other; nobody can reach any of their methods before `look_up` is done.
    let types = unsafe {
        let handle_type = handle_type::make_type(as_type(&handle_base), as_type(&timer_base)).map_err(raised)?;
        let timer_type = timer_handle::make_type(as_type(&timer_base)).map_err(raised)?;
        [handle_type, timer_type, core::make_type().map_err(raised)?]
    };
    Known::look_up(py, &base, types)?;
    // SAFETY: as above.
    let (loop_type, stream_type) = unsafe {
        let stream_type = stream::make_type(as_type(&stream_base)).map_err(raised)?;
        (loop_type::make_type(as_type(&loop_base)).map_err(raised)?, stream_type)
    };

    let classes =
        [("Handle", types[0]), ("TimerHandle", types[1]), ("StreamTransport", stream_type), ("Loop", loop_type)];
    for (name, class) in classes {
        // SAFETY: types are objects, and these live for ever.
        module.add(name, unsafe { Bound::<PyAny>::from_borrowed_ptr(py, class.cast::<PyObject>()) })?;
    }
    module.add_function(pyo3::wrap_pyfunction!(_panic, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

/// Panics, for the test that what Python sees of it is an exception.
#[pyfunction]
fn _panic() -> PyResult<()> {
    guard(Err(Raised), || panic!("on purpose")).map_err(|Raised| Python::attach(PyErr::fetch))
}
