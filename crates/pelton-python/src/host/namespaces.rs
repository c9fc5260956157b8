//! Namespaces: one dictionary for each [`Process`](super::Process), in the place of `__main__`'s.
//!
//! They belong to a loop's thread, so nothing guards them but the interpreter lock. A namespace is made when it is first used.
//! When its handle is dropped the loop is told, through its queue, behind the tasks that were submitted before. What still
//! runs then keeps what it needs alive by itself, as everywhere in Python.

use std::collections::HashMap;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::interpreter::known;
use crate::object::{Raised, Result, check};

#[derive(Default)]
pub(crate) struct Namespaces {
    /// By number, which are given out once.
    dictionaries: HashMap<u64, Py<PyDict>>,
}

impl Namespaces {
    /// The dictionary of a namespace, which is made if there is none yet; null for number 0. Borrowed.
    ///
    /// # Safety
    /// The lock is held.
    pub(crate) unsafe fn get(&mut self, py: Python<'_>, number: u64) -> Result<*mut PyObject> {
        if number == 0 {
            return Ok(std::ptr::null_mut());
        }
        if let Some(dictionary) = self.dictionaries.get(&number) {
            return Ok(dictionary.as_ptr());
        }
        let dictionary = make(py)?;
        Ok(self.dictionaries.entry(number).or_insert(dictionary).as_ptr())
    }

    /// The same, but for number 0 it is that of `__main__`.
    ///
    /// # Safety
    /// The lock is held.
    pub(crate) unsafe fn get_or_main(&mut self, py: Python<'_>, number: u64) -> Result<*mut PyObject> {
        // SAFETY: the lock is held; `__main__` is there as long as the interpreter is.
        unsafe {
            if number != 0 {
                return self.get(py, number);
            }
            let main = ffi::PyImport_AddModule(c"__main__".as_ptr());
            if main.is_null() { Err(Raised) } else { Ok(ffi::PyModule_GetDict(main)) }
        }
    }

    /// Lets go of a namespace.
    pub(crate) fn forget(&mut self, py: Python<'_>, number: u64) {
        let Some(dictionary) = self.dictionaries.remove(&number) else { return };
        let dictionary = dictionary.into_bound(py);
        // Functions refer to the namespace that they were defined in, and it to them. If nothing else refers to any of
        // them, emptying it frees all at once; otherwise the garbage collector does when that is so.
        if is_alone(&dictionary) {
            dictionary.clear();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.dictionaries.len()
    }
}

fn make(py: Python<'_>) -> Result<Py<PyDict>> {
    // SAFETY: all are alive.
    unsafe {
        let dictionary = PyDict::new(py);
        let name = pyo3::intern!(py, "__main__");
        check(ffi::PyDict_SetItemString(dictionary.as_ptr(), c"__name__".as_ptr(), name.as_ptr()))?;
        check(ffi::PyDict_SetItemString(dictionary.as_ptr(), c"__builtins__".as_ptr(), known().builtins.as_ptr()))?;
        Ok(dictionary.unbind())
    }
}

/// Whether all references to a namespace are ours and its own functions', and these functions have no others.
fn is_alone(namespace: &Bound<'_, PyDict>) -> bool {
    // SAFETY: what a dictionary lends is alive while nothing is called, and nothing is.
    unsafe {
        let mut from_functions = 0;
        let (mut position, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
        while ffi::PyDict_Next(namespace.as_ptr(), &mut position, &mut key, &mut value) != 0 {
            if ffi::PyFunction_Check(value) != 0 && ffi::PyFunction_GetGlobals(value) == namespace.as_ptr() {
                if ffi::Py_REFCNT(value) != 1 {
                    return false;
                }
                from_functions += 1;
            }
        }
        ffi::Py_REFCNT(namespace.as_ptr()) == 1 + from_functions
    }
}
