//! Looking up functions by name.
//!
//! The string objects for the names of modules and functions are cached, the functions themselves are not. Every
//! call looks them up in `sys.modules` and in the module's dictionary, by interned strings, which takes about 40
//! ns. So the next call sees a module that was reloaded, a function that was replaced, and an entry of
//! `sys.modules` that was changed.

use std::collections::HashMap;

use pyo3::exceptions::{PyModuleNotFoundError, PyNameError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::call::Name;
use super::interpreter::known;
use pelton_cpython::object::{Owned, Raised, Result};
use pelton_cpython::{call, lock};

/// Maximum number of cached names, so that programs that generate names do not leak memory.
const NAMES: usize = 4_096;

#[derive(Default)]
pub(crate) struct Callables {
    names: HashMap<Box<str>, Py<PyString>>,
    /// The names that were used last, which are often used again.
    last: [Option<(Box<str>, Py<PyString>)>; 2],
}

impl Callables {
    /// Returns a string object, borrowed until the next call with the same `place`.
    fn name(&mut self, py: Python<'_>, place: usize, name: &Name) -> *mut PyObject {
        if let Some((last, string)) = &self.last[place]
            && **last == **name
        {
            return string.as_ptr();
        }
        let string = match self.names.get(&**name) {
            Some(string) => string.clone_ref(py),
            None => {
                let string = PyString::intern(py, name).unbind();
                if self.names.len() < NAMES {
                    self.names.insert((**name).into(), string.clone_ref(py));
                }
                string
            }
        };
        self.last[place].insert(((**name).into(), string)).1.as_ptr()
    }

    /// Finds a function in a module, or in the dictionary that replaces that of `__main__`.
    ///
    /// # Safety
    /// The lock is held; `namespace` is null or a live dictionary.
    pub(crate) unsafe fn find(
        &mut self,
        py: Python<'_>,
        module: &Name,
        function: &Name,
        namespace: *mut PyObject,
    ) -> Result<Owned> {
        let function_name = self.name(py, 1, function);
        // SAFETY: the caller holds the lock and keeps the namespace alive. The names are owned by `self`. Borrowed
        // references from a dictionary become owned ones before anything else is called.
        unsafe {
            if !namespace.is_null() && module == "__main__" {
                return find_in(namespace, function_name).map_or_else(|| follow_in(namespace, function), Ok);
            }
            let module_name = self.name(py, 0, module);
            let found = ffi::PyDict_GetItemWithError(known().modules.as_ptr(), module_name);
            if !found.is_null()
                && ffi::PyModule_CheckExact(found) != 0
                && let Some(function) = find_in(ffi::PyModule_GetDict(found), function_name)
            {
                return Ok(function);
            }
            // The module is not imported yet, or another thread is importing it, which the import below waits for.
            // Or the function is not directly in the module's dictionary.
            ffi::PyErr_Clear();
            let imported = Owned::returned(ffi::PyImport_Import(module_name))?;
            drop(imported);
            // Importing `a.b` returns `a`.
            let module = Owned::returned(ffi::PyImport_GetModule(module_name)).map_err(|Raised| missing(module))?;
            follow(module, function)
        }
    }
}

/// Returns the value under a name in a dictionary.
unsafe fn find_in(dictionary: *mut PyObject, name: *mut PyObject) -> Option<Owned> {
    // SAFETY: the callers keep both alive. Unless the program added keys of its own classes, looking up a string
    // runs no code, and the dictionary keeps the value alive until a reference is taken.
    unsafe {
        let found = ffi::PyDict_GetItemWithError(dictionary, name);
        if found.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Owned::new_reference(found))
    }
}

/// Resolves a path of attributes: `Class.method`.
unsafe fn follow(from: Owned, path: &str) -> Result<Owned> {
    path.split('.').try_fold(from, |object, name| {
        Python::attach(|py| {
            let name = PyString::new(py, name);
            // SAFETY: both are owned references.
            unsafe { Owned::returned(ffi::PyObject_GetAttr(object.as_ptr(), name.as_ptr())) }
        })
    })
}

/// Resolves a path that starts in a dictionary or in `builtins`.
unsafe fn follow_in(dictionary: *mut PyObject, path: &str) -> Result<Owned> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    // SAFETY: the caller keeps the dictionary alive, and `builtins` is never freed.
    let found = Python::attach(|py| unsafe {
        let name = PyString::new(py, first);
        find_in(dictionary, name.as_ptr()).or_else(|| find_in(known().builtins.as_ptr(), name.as_ptr()))
    });
    let Some(found) = found else {
        let message = format!("name '{first}' is not defined");
        return Err(lock::held(|py| call::raise::<PyNameError>(py, &message)));
    };
    match rest {
        None => Ok(found),
        // SAFETY: `found` is an owned reference, and the lock is held.
        Some(rest) => unsafe { follow(found, rest) },
    }
}

#[cold]
fn missing(module: &str) -> Raised {
    lock::held(|py| {
        call::clear_raised(py);
        call::raise::<PyModuleNotFoundError>(py, &format!("{module} is not in sys.modules after its import"))
    })
}
