//! Checks whether sockets may be used without calling their Python methods. They may not if a program replaced
//! these methods. Creating or connecting a socket must also go through Python if there are audit hooks.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::ffi::{self, PyObject, PyTypeObject};

use crate::known::known;
use pelton_cpython::object::{Owned, Result};

/// The version tag of `socket.socket` at which its methods were found to be the original ones; 0 if none.
static ORIGINAL: AtomicU32 = AtomicU32::new(0);

/// Returns whether all methods of `socket.socket` are the original ones.
///
/// CPython assigns a class a new version tag at the first use after a change. So this compares one number, and
/// looks at the methods only if the number differs.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub(crate) unsafe fn methods_are_original() -> Result<bool> {
    // SAFETY: the caller holds the lock, and the class is never freed.
    unsafe {
        let version = (*known().socket.cast::<PyTypeObject>()).tp_version_tag;
        if version != 0 && version == ORIGINAL.load(Ordering::Relaxed) {
            return Ok(true);
        }
        compare_methods()
    }
}

#[cold]
unsafe fn compare_methods() -> Result<bool> {
    let class = known().socket;
    // SAFETY: the caller holds the lock. The class and the dictionary of its original methods are never freed, and
    // nothing changes the dictionary.
    unsafe {
        let version = || (*class.cast::<PyTypeObject>()).tp_version_tag;
        let mut position = 0;
        let (mut name, mut original) = (null_mut(), null_mut());
        let mut before = None;
        while ffi::PyDict_Next(known().socket_methods, &mut position, &mut name, &mut original) != 0 {
            let method = Owned::returned(ffi::PyObject_GetAttr(class, name))?;
            if method.as_ptr() != original {
                return Ok(false);
            }
            // The first lookup gave the class a version tag. If it differs at the end, the class changed meanwhile.
            before.get_or_insert_with(version);
        }
        if before == Some(version()) {
            ORIGINAL.store(version(), Ordering::Relaxed);
        }
        Ok(true)
    }
}

unsafe extern "C" {
    // Part of the documented C API; pyo3 does not declare it.
    fn PySys_Audit(event: *const c_char, format: *const c_char, ...) -> c_int;
}

/// Converter for an event argument that always raises.
unsafe extern "C" fn no_argument(_: *mut c_void) -> *mut PyObject {
    // SAFETY: arguments are converted with the lock held.
    unsafe { ffi::PyErr_SetNone(ffi::PyExc_RuntimeError) };
    null_mut()
}

/// Returns whether there are audit hooks.
///
/// No function reports this. But the arguments of an event are converted only if there are hooks, and before any
/// hook is called. So this raises an event whose argument cannot be converted. It fails if there are hooks, and
/// calls none of them.
///
/// # Safety
/// The interpreter lock is held, and no exception is set.
pub(crate) unsafe fn is_audited() -> bool {
    let converter: unsafe extern "C" fn(*mut c_void) -> *mut PyObject = no_argument;
    // SAFETY: the caller holds the lock and has no exception set. "O&" takes a converter and its argument.
    unsafe {
        let outcome = PySys_Audit(c"pelton.probe".as_ptr(), c"O&".as_ptr(), converter, null_mut::<c_void>());
        if outcome != 0 {
            ffi::PyErr_Clear();
        }
        outcome != 0
    }
}

/// Returns whether methods are replaced or there are audit hooks.
///
/// # Safety
/// As for [`is_audited`].
pub(crate) unsafe fn is_guarded() -> Result<bool> {
    // SAFETY: the caller holds the lock and has no exception set.
    unsafe { Ok(!methods_are_original()? || is_audited()) }
}

/// `_sockets_are_guarded()`
///
/// # Safety
/// As for [`is_audited`].
pub(crate) unsafe fn are_guarded(_: *mut PyObject) -> Result<bool> {
    // SAFETY: the caller holds the lock and has no exception set.
    unsafe { is_guarded() }
}
