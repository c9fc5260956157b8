//! Pelton for Python.
//!
//! This crate only joins others. Their contents are here under the names that programs use:
//!
//! - with the feature `extension`, the module that Python imports as `pelton._pelton`;
//! - with the feature `embed`, hosting Python in a Rust program: `Host` and the modules beside it.
//!
//! | crate | contents |
//! |---|---|
//! | `pelton-cpython` | references, calls, types and arguments: everything that touches CPython's memory |
//! | `pelton-asyncio` | `pelton.Loop`, its handles, readers and transports; Rust and Python on one thread |
//! | `pelton-pyhost` | the host, Rust functions for Python, and values |

#![cfg(any(feature = "extension", feature = "embed"))]
#![forbid(unsafe_code)]

use pyo3::prelude::*;

#[cfg(feature = "embed")]
pub use pelton_pyhost::{ConversionError, Host, Object, Value, host, native, value};

/// The compiled part of the package `pelton`.
#[pymodule(gil_used = true)]
pub fn _pelton(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pelton_asyncio::fill_module(module)
}

pub mod same_thread {
    #![doc = "Rust and Python on one thread."]
    #[cfg(feature = "embed")]
    pub use pelton_pyhost::host::prepare;

    pub use pelton_asyncio::same_thread::*;
}
