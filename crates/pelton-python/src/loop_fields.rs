//! Attributes of a loop that both sides use: asyncio's methods in Python by name, and this crate as fields of the core.
//!
//! Also what would be surprising if it were missing: `_ready` and `_scheduled`, which tools look into. They are copies.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyGetSetDef, PyObject};

use crate::core::{self, Core};
use crate::object::{Owned, Raised, Result, or_none, pointer, raise, replace, status};
use crate::panic::guard;
use crate::timer_handle;

type Flag = unsafe fn(*mut Core) -> *mut bool;
type Reference = unsafe fn(*mut Core) -> *mut *mut PyObject;

/// A getter and a setter for a field of the core that is a `bool`.
macro_rules! flag {
    ($name:expr, $field:ident) => {{
        // SAFETY: the pointer is to the core of a live loop.
        const FIELD: Flag = |core| unsafe { &raw mut (*core).$field };
        unsafe extern "C" fn get(loop_: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live loop.
            unsafe {
                match core::core(loop_) {
                    Ok(core) => ffi::PyBool_FromLong((*FIELD(core)).into()),
                    Err(Raised) => null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(loop_: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            // SAFETY: Python calls it with a live loop, and a value unless it is to be deleted.
            guard(-1, || unsafe { status(set_flag(loop_, value, FIELD)) })
        }
        attribute($name, get, Some(set))
    }};
}

/// Likewise, where the field is a reference.
macro_rules! reference {
    ($name:expr, $field:ident) => {{
        // SAFETY: the pointer is to the core of a live loop.
        const FIELD: Reference = |core| unsafe { &raw mut (*core).$field };
        unsafe extern "C" fn get(loop_: *mut PyObject, _: *mut c_void) -> *mut PyObject {
            // SAFETY: Python calls it with a live loop.
            unsafe {
                match core::core(loop_) {
                    Ok(core) => or_none(*FIELD(core)),
                    Err(Raised) => null_mut(),
                }
            }
        }
        unsafe extern "C" fn set(loop_: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
            guard(-1, || {
                // SAFETY: Python calls it with a live loop; a deleted attribute is `None`.
                unsafe { status(core::core(loop_).map(|core| replace(FIELD(core), value))) }
            })
        }
        attribute($name, get, Some(set))
    }};
}

unsafe fn set_flag(loop_: *mut PyObject, value: *mut PyObject, field: Flag) -> Result<()> {
    // SAFETY: as the caller says.
    unsafe {
        let truth = if value.is_null() { 0 } else { ffi::PyObject_IsTrue(value) };
        if truth < 0 {
            return Err(Raised);
        }
        *field(core::core(loop_)?) = truth == 1;
        Ok(())
    }
}

const fn attribute(name: &'static CStr, get: ffi::getter, set: Option<ffi::setter>) -> PyGetSetDef {
    PyGetSetDef { name: name.as_ptr(), get: Some(get), set, doc: ptr::null(), closure: null_mut() }
}

/// All of them, for a type to keep.
pub(crate) fn attributes() -> *mut PyGetSetDef {
    let attributes = vec![
        flag!(c"_debug", debug),
        flag!(c"_closed", closed),
        flag!(c"_stopping", stopping),
        reference!(c"_thread_id", thread),
        reference!(c"_task_factory", task_factory),
        reference!(c"_current_handle", current_handle),
        attribute(c"_ready", get_ready, Some(set_queue)),
        attribute(c"_scheduled", get_scheduled, Some(set_queue)),
        PyGetSetDef { name: ptr::null(), get: None, set: None, doc: ptr::null(), closure: null_mut() },
    ];
    attributes.leak().as_mut_ptr()
}

/// A list of new references to these.
unsafe fn list(handles: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the handles are alive: they are in a queue, and nothing is called before each has got its reference.
    unsafe {
        for handle in handles {
            ffi::Py_INCREF(*handle);
        }
        let list = ffi::PyList_New(handles.len() as ffi::Py_ssize_t);
        for (index, handle) in handles.iter().enumerate() {
            if list.is_null() {
                ffi::Py_DECREF(*handle);
            } else {
                ffi::PyList_SET_ITEM(list, index as ffi::Py_ssize_t, *handle);
            }
        }
        Owned::returned(list)
    }
}

unsafe extern "C" fn get_ready(loop_: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop.
        pointer(unsafe {
            core::core(loop_).and_then(|core| {
                let handles: Vec<*mut PyObject> = (&(*core).ready).iter().copied().collect();
                list(&handles)
            })
        })
    })
}

unsafe extern "C" fn get_scheduled(loop_: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop, whose wheel has timer handles only.
        pointer(unsafe {
            core::core(loop_).and_then(|core| {
                let mut timers: Vec<*mut PyObject> = (&(*core).timers).iter().map(|(_, timer)| *timer).collect();
                timers.sort_by(|one, other| timer_handle::when(*one).total_cmp(&timer_handle::when(*other)));
                list(&timers)
            })
        })
    })
}

/// asyncio's constructor sets both to something empty. Whoever else sets them would be mistaken to think that it matters.
unsafe extern "C" fn set_queue(_: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    // SAFETY: Python calls it with a live value, or null to delete it.
    unsafe {
        if !value.is_null() && ffi::PyObject_Size(value) == 0 {
            return 0;
        }
        ffi::PyErr_Clear();
        raise(ffi::PyExc_AttributeError, c"the queues of a pelton.Loop are not in Python and cannot be replaced");
        -1
    }
}
