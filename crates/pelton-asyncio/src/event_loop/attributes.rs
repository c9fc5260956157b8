//! Attributes of a loop that asyncio's methods use too. They include `_ready` and `_scheduled`, copies of the
//! queues, because tools read them.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::ffi::{self, PyObject};

use crate::event_loop::state::of;
use crate::handles::timer;
use pelton_cpython::object::{Owned, Result, or_none, pointer, raise, replace, status};
use pelton_cpython::panic::guard;
use pelton_cpython::types::{attribute, attributes as table};
use pelton_cpython::{flag, number, reference};

/// Returns the table of attributes.
pub(crate) fn attributes() -> *mut c_void {
    table(vec![
        flag!(c"_debug", of, debug),
        flag!(c"_closed", of, closed),
        flag!(c"_stopping", of, stopping),
        number!(c"_internal_fds", of, internal_descriptors),
        reference!(c"_thread_id", of, thread),
        reference!(c"_task_factory", of, task_factory),
        reference!(c"_current_handle", of, current_handle),
        attribute(c"_transports_by_descriptor", get_transports, Some(set_transports)),
        attribute(c"_ready", get_ready, Some(set_queue)),
        attribute(c"_scheduled", get_scheduled, Some(set_queue)),
    ])
}

unsafe extern "C" fn get_transports(loop_: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live loop.
    unsafe { of(loop_).map_or(null_mut(), |core| or_none((*core).transports)) }
}

/// Accepts only a dictionary, because it is used as one.
unsafe extern "C" fn set_transports(loop_: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    guard(-1, || {
        // SAFETY: Python calls it with a live loop, and with a live value or null to delete the attribute.
        status(unsafe {
            of(loop_).and_then(|core| {
                if !value.is_null() && value != ffi::Py_None() && ffi::PyDict_Check(value) == 0 {
                    return Err(raise(ffi::PyExc_TypeError, c"the transports of a pelton.Loop must be a dict"));
                }
                replace(&raw mut (*core).transports, value);
                Ok(())
            })
        })
    })
}

/// Returns a list of new references to the handles.
unsafe fn list(handles: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the caller takes the handles from a queue that owns them. All references are created before anything
    // else is called.
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
            of(loop_).and_then(|core| {
                let handles: Vec<*mut PyObject> = (*core).ready.iter().copied().collect();
                list(&handles)
            })
        })
    })
}

unsafe extern "C" fn get_scheduled(loop_: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live loop, whose wheel has only timer handles.
        pointer(unsafe {
            of(loop_).and_then(|core| {
                let mut timers: Vec<*mut PyObject> = (*core).timers.iter().map(|(_, timer)| *timer).collect();
                timers.sort_by(|one, other| timer::when(*one).total_cmp(&timer::when(*other)));
                list(&timers)
            })
        })
    })
}

/// asyncio's constructor sets both to empty collections, which is ignored. Other assignments raise, because they
/// would have no effect.
unsafe extern "C" fn set_queue(_: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    // SAFETY: Python calls it with a live value, or null to delete the attribute.
    unsafe {
        if !value.is_null() && ffi::PyObject_Size(value) == 0 {
            return 0;
        }
        ffi::PyErr_Clear();
        raise(ffi::PyExc_AttributeError, c"the queues of a pelton.Loop cannot be replaced");
        -1
    }
}
