//! The Python class of shared state.

use pyo3::exceptions::{PyKeyError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use super::{State, StateError};
use crate::value::{Limits, Value};

/// A dictionary shared by Rust and all of Python. Values are copied in and out.
#[pyclass(frozen, name = "State", module = "pelton", mapping)]
pub(crate) struct StateDict(pub(crate) State);

impl From<StateError> for PyErr {
    fn from(error: StateError) -> PyErr {
        let text = error.to_string();
        match error {
            StateError::Overflow { .. } => PyOverflowError::new_err(text),
            _ => PyTypeError::new_err(text),
        }
    }
}

fn value_of(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    Ok(Value::from_python(object, &Limits::DEFAULT)?)
}

fn missing(key: &str) -> PyErr {
    PyKeyError::new_err(key.to_owned())
}

#[pymethods]
impl StateDict {
    #[new]
    fn new() -> StateDict {
        StateDict(State::new())
    }

    /// Return the value of a key, or the default.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.get(key) {
            Some(value) => Ok(Some(value.to_python(py)?)),
            None => Ok(default),
        }
    }

    /// Remove a key and return its value, or the default.
    #[pyo3(signature = (key, *default))]
    fn pop<'py>(&self, py: Python<'py>, key: &str, default: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        match self.0.remove(key) {
            Some(value) => Ok(value.to_python(py)?),
            None => default.into_iter().next().ok_or_else(|| missing(key)),
        }
    }

    /// Set the value of a key.
    fn set(&self, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.set(key, value_of(value)?)?;
        Ok(())
    }

    /// Add to a number, which starts at 0. Return the sum.
    #[pyo3(signature = (key, amount = 1))]
    fn add(&self, key: &str, amount: i64) -> PyResult<i64> {
        Ok(self.0.add(key, amount)?)
    }

    /// Set a value if the current one equals `expected`; None also matches a missing key. Return whether it was set.
    fn compare_and_swap(&self, key: &str, expected: &Bound<'_, PyAny>, new: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.0.compare_and_swap(key, &value_of(expected)?, value_of(new)?)?)
    }

    /// Return a list of all keys.
    fn keys(&self) -> Vec<String> {
        self.0.keys()
    }

    /// Return a consistent list of all keys and values.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        self.0.items().into_iter().map(|(key, value)| Ok((key, value.to_python(py)?))).collect()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.0.get(key).ok_or_else(|| missing(key))?.to_python(py)?)
    }

    fn __setitem__(&self, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set(key, value)
    }

    fn __delitem__(&self, key: &str) -> PyResult<()> {
        self.0.remove(key).map(drop).ok_or_else(|| missing(key))
    }

    fn __contains__(&self, key: &str) -> bool {
        self.0.contains(key)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.0.keys().into_pyobject(py)?.try_iter()?.into_any())
    }
}
