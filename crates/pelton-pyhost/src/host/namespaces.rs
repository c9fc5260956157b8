//! A loop's table of namespaces: one dictionary for each [`Namespace`](super::Namespace), used instead of that of
//! `__main__`.
//!
//! They belong to a loop's thread, but calls on other threads may use them. A namespace is created when it is first
//! used. When its handle is dropped, the loop is notified through its queue, after all tasks that were
//! submitted before. Code that still runs then keeps what it needs alive, as everywhere in Python.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::interpreter::known;
use super::lock_order::{Rank, Ranked};
use pelton_cpython::object::{Raised, Result, check};

/// Clones are the same table: calls on other threads may use the namespaces of this one.
#[derive(Clone)]
pub(crate) struct Namespaces {
    /// The dictionaries by number. Numbers are never reused. Nothing of Python runs while the table is locked.
    dictionaries: Arc<Ranked<HashMap<u64, Py<PyDict>>>>,
}

impl Default for Namespaces {
    fn default() -> Namespaces {
        Namespaces { dictionaries: Arc::new(Ranked::new(Rank::Loop, HashMap::new())) }
    }
}

impl std::fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Namespaces")
    }
}

impl Namespaces {
    /// Returns the dictionary of a namespace as a borrowed reference, creating it if necessary; null for number 0.
    ///
    /// # Safety
    /// The lock is held.
    pub(crate) unsafe fn get(&self, py: Python<'_>, number: u64) -> Result<*mut PyObject> {
        if number == 0 {
            return Ok(std::ptr::null_mut());
        }
        if let Some(dictionary) = self.dictionaries.lock().get(&number) {
            return Ok(dictionary.as_ptr());
        }
        let dictionary = make(py)?;
        let mut dictionaries = self.dictionaries.lock();
        // Making it may have run a finalizer, which may have made it first. Ours is dropped after the lock.
        let (pointer, unused) = match dictionaries.entry(number) {
            Entry::Occupied(entry) => (entry.get().as_ptr(), Some(dictionary)),
            Entry::Vacant(entry) => (entry.insert(dictionary).as_ptr(), None),
        };
        drop(dictionaries);
        drop(unused);
        Ok(pointer)
    }

    /// Like `get`, but returns the dictionary of `__main__` for number 0.
    ///
    /// # Safety
    /// The lock is held.
    pub(crate) unsafe fn get_or_main(&self, py: Python<'_>, number: u64) -> Result<*mut PyObject> {
        // SAFETY: the caller holds the lock. `__main__` lives as long as the interpreter.
        unsafe {
            if number != 0 {
                return self.get(py, number);
            }
            let main = ffi::PyImport_AddModule(c"__main__".as_ptr());
            if main.is_null() { Err(Raised) } else { Ok(ffi::PyModule_GetDict(main)) }
        }
    }

    /// Drops a namespace.
    pub(crate) fn forget(&self, py: Python<'_>, number: u64) {
        let removed = self.dictionaries.lock().remove(&number);
        let Some(dictionary) = removed else { return };
        let dictionary = dictionary.into_bound(py);
        // Functions refer to the namespace that they were defined in, and the namespace to them. If nothing else refers
        // to any of them, clearing it frees everything at once. Otherwise the garbage collector frees it later.
        if is_alone(&dictionary) {
            dictionary.clear();
        }
    }

    /// Drops all of them. The interpreter lock is held.
    pub(crate) fn clear(&self) {
        let dictionaries = std::mem::take(&mut *self.dictionaries.lock());
        drop(dictionaries);
    }

    pub(crate) fn len(&self) -> usize {
        self.dictionaries.lock().len()
    }
}

fn make(py: Python<'_>) -> Result<Py<PyDict>> {
    // SAFETY: the lock is held, as `py` shows, and all objects are owned.
    unsafe {
        let dictionary = PyDict::new(py);
        let name = pyo3::intern!(py, "__main__");
        check(ffi::PyDict_SetItemString(dictionary.as_ptr(), c"__name__".as_ptr(), name.as_ptr()))?;
        check(ffi::PyDict_SetItemString(dictionary.as_ptr(), c"__builtins__".as_ptr(), known().builtins.as_ptr()))?;
        Ok(dictionary.unbind())
    }
}

/// Returns whether only we and the namespace's own functions refer to the namespace, and only the namespace to
/// these functions.
fn is_alone(namespace: &Bound<'_, PyDict>) -> bool {
    // SAFETY: the lock is held, as `Bound` shows. Nothing is called that could drop the borrowed references.
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
