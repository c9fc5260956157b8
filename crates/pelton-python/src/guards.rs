//! Whether sockets may be used without calling their methods: not if somebody has replaced these, and making or connecting one
//! not if somebody audits it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::ffi::{self, PyObject, PyTypeObject};

use crate::known::known;
use crate::object::{Owned, Result};

/// The version of `socket.socket` whose methods were found to be the original ones; 0 if there is none.
static ORIGINAL: AtomicU32 = AtomicU32::new(0);

/// Whether all methods of `socket.socket` are the original ones.
///
/// CPython gives a class a new version when it is first used after a change. So this compares a number, and looks at the methods
/// only when it differs.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub(crate) unsafe fn methods_are_original() -> Result<bool> {
    // SAFETY: the class lives for ever.
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
    // SAFETY: the class and the dictionary of its original methods live for ever, and nobody changes the latter.
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
            // Looking up a method has given the class a version. If that has changed in the end, somebody has been at it meanwhile.
            before.get_or_insert_with(version);
        }
        if before == Some(version()) {
            ORIGINAL.store(version(), Ordering::Relaxed);
        }
        Ok(true)
    }
}

unsafe extern "C" {
    // Part of the documented interface; pyo3 does not declare it.
    fn PySys_Audit(event: *const c_char, format: *const c_char, ...) -> c_int;
}

/// Makes no argument for an event: it is an error instead.
unsafe extern "C" fn no_argument(_: *mut c_void) -> *mut PyObject {
    // SAFETY: the lock is held wherever arguments are made.
    unsafe { ffi::PyErr_SetNone(ffi::PyExc_RuntimeError) };
    null_mut()
}

/// Whether there are hooks for auditing.
///
/// There is no function that says so. But the arguments of an event are made only if there are hooks, and before these are called.
/// So this raises an event whose argument cannot be made: it fails if there are hooks, and none of them is called.
///
/// # Safety
/// The interpreter lock is held, and no exception is set.
pub(crate) unsafe fn is_audited() -> bool {
    let converter: unsafe extern "C" fn(*mut c_void) -> *mut PyObject = no_argument;
    // SAFETY: "O&" takes a function and what to call it with.
    unsafe {
        let outcome = PySys_Audit(c"pelton.probe".as_ptr(), c"O&".as_ptr(), converter, null_mut::<c_void>());
        if outcome != 0 {
            ffi::PyErr_Clear();
        }
        outcome != 0
    }
}

/// Whether sockets are guarded in either way.
///
/// # Safety
/// As for [`is_audited`].
pub(crate) unsafe fn is_guarded() -> Result<bool> {
    // SAFETY: as the caller says.
    unsafe { Ok(!methods_are_original()? || is_audited()) }
}

/// `_sockets_are_guarded()`
///
/// # Safety
/// As for [`is_audited`].
pub(crate) unsafe fn are_guarded(_: *mut PyObject) -> Result<bool> {
    // SAFETY: as the caller says.
    unsafe { is_guarded() }
}
