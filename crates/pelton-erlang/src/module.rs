//! The Python package `erlang`.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::callbacks;
use crate::opaque::{Atom, Pid, Ref};

const SOURCE: &str = include_str!("python/erlang.py");

/// Installs the package, or replaces that of the previous host.
pub(crate) fn install() -> PyResult<()> {
    Python::attach(|py| {
        let native = PyModule::new(py, "_erlang")?;
        native.add_class::<Pid>()?;
        native.add_class::<Ref>()?;
        native.add_class::<Atom>()?;
        native.add_function(pyo3::wrap_pyfunction!(callbacks::call, &native)?)?;
        native.add_function(pyo3::wrap_pyfunction!(callbacks::call_later, &native)?)?;
        native.add_function(pyo3::wrap_pyfunction!(callbacks::send, &native)?)?;
        native.add_function(pyo3::wrap_pyfunction!(callbacks::whereis, &native)?)?;
        native.add_function(pyo3::wrap_pyfunction!(callbacks::is_registered, &native)?)?;
        let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        modules.set_item("_erlang", &native)?;
        let source = std::ffi::CString::new(SOURCE)?;
        let module = PyModule::new(py, "erlang")?;
        module.setattr("__file__", "<embedded erlang>")?;
        modules.set_item("erlang", &module)?;
        let run = py.run(&source, Some(&module.dict()), None);
        if run.is_err() {
            modules.del_item("erlang")?;
        }
        run
    })
}
