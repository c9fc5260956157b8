//! Finding what is to be called.
//!
//! Python objects for the names of modules and functions are kept; what they stand for is not. It is asked of `sys.modules` and
//! of the module's dictionary for every call, by interned strings, which costs some 40 ns. So a module that was reloaded, a
//! function that was replaced, and a module that somebody has put in the place of another are seen by the next call.

use std::collections::HashMap;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::call::Name;
use super::interpreter::known;
use crate::object::{Owned, Raised, Result, raise_text};

/// How many names are kept. A program that makes names up as it goes would fill the memory otherwise.
const NAMES: usize = 4_096;

#[derive(Default)]
pub(crate) struct Callables {
    names: HashMap<Box<str>, Py<PyString>>,
    /// The last one that was found, which is often the next one too.
    last: [Option<(Box<str>, Py<PyString>)>; 2],
}

impl Callables {
    /// A Python string. Borrowed: it is alive until this is asked again for the same place.
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

    /// Finds a function in a module, or in the dictionary that stands for `__main__`.
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
        // SAFETY: the names live in here; what a dictionary lends gets a reference of our own before anything else is called.
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
            // Not imported yet, or being imported by another thread, for which importing it waits; or the function is
            // not simply in there.
            ffi::PyErr_Clear();
            let imported = Owned::returned(ffi::PyImport_Import(module_name))?;
            drop(imported);
            // Importing `a.b` returns `a`.
            let module = Owned::returned(ffi::PyImport_GetModule(module_name)).map_err(|Raised| missing(module))?;
            follow(module, function)
        }
    }
}

/// What a dictionary has under a name.
unsafe fn find_in(dictionary: *mut PyObject, name: *mut PyObject) -> Option<Owned> {
    // SAFETY: both are alive. The key is a string, so looking it up calls nothing unless somebody has put odd keys in there.
    unsafe {
        let found = ffi::PyDict_GetItemWithError(dictionary, name);
        if found.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Owned::new_reference(found))
    }
}

/// Follows a path of attributes: `Class.method`.
unsafe fn follow(from: Owned, path: &str) -> Result<Owned> {
    path.split('.').try_fold(from, |object, name| {
        Python::attach(|py| {
            let name = PyString::new(py, name);
            // SAFETY: both are alive.
            unsafe { Owned::returned(ffi::PyObject_GetAttr(object.as_ptr(), name.as_ptr())) }
        })
    })
}

/// Follows a path that starts in a dictionary, or among the built-in functions.
unsafe fn follow_in(dictionary: *mut PyObject, path: &str) -> Result<Owned> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    // SAFETY: the dictionaries are alive.
    let found = Python::attach(|py| unsafe {
        let name = PyString::new(py, first);
        find_in(dictionary, name.as_ptr()).or_else(|| find_in(known().builtins.as_ptr(), name.as_ptr()))
    });
    let Some(found) = found else {
        // SAFETY: the exception classes are there as long as the interpreter is.
        return Err(raise_text(unsafe { ffi::PyExc_NameError }, &format!("name '{first}' is not defined")));
    };
    match rest {
        None => Ok(found),
        // SAFETY: it is alive.
        Some(rest) => unsafe { follow(found, rest) },
    }
}

#[cold]
fn missing(module: &str) -> Raised {
    // SAFETY: as above.
    unsafe {
        ffi::PyErr_Clear();
        raise_text(ffi::PyExc_ModuleNotFoundError, &format!("{module} is not in sys.modules after it was imported"))
    }
}
