//! What Python sees of handles: methods and attributes, of both types; and the type `Handle` itself.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use pyo3::ffi::{self, PyObject, PyTypeObject};

use crate::handle::{CANCELLED, FORGOTTEN, Fields, KEPT_HANDLES, OFFSET, cancel, context, fields, run_alone, tuple};
use crate::handle_memory::{bury, clear, traverse};
use crate::object::{Result, none, nothing, or_none, pointer};
use crate::panic::guard;
use crate::types::{self, attribute, without_arguments};

unsafe extern "C" fn run_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    guard(null_mut(), || nothing(unsafe { run_alone(handle) }))
}

unsafe extern "C" fn cancel_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    guard(null_mut(), || nothing(unsafe { cancel(handle) }))
}

unsafe extern "C" fn cancelled_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { ffi::PyBool_FromLong(((*fields(handle)).flags & CANCELLED != 0).into()) }
}

unsafe extern "C" fn get_cancelled(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { cancelled_method(handle, null_mut()) }
}

/// Whether it was cancelled, and is only kept because it is being called.
unsafe fn is_forgotten(handle: *mut PyObject) -> bool {
    // SAFETY: the caller's handle is alive and ours.
    unsafe { (*fields(handle)).flags & FORGOTTEN != 0 }
}

unsafe extern "C" fn get_callback(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { or_none(if is_forgotten(handle) { null_mut() } else { (*fields(handle)).callback }) }
}

unsafe extern "C" fn get_arguments(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live handle of ours. As many arguments are set as `count` says, unless there is a
        // tuple of them.
        unsafe {
            if is_forgotten(handle) {
                return none();
            }
            let fields = fields(handle);
            if (*fields).callback.is_null() || !(*fields).tuple.is_null() {
                return or_none((*fields).tuple);
            }
            let arguments = (*fields).arguments;
            pointer(tuple(&arguments[1..=(*fields).count as usize]))
        }
    })
}

unsafe extern "C" fn get_context(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    guard(null_mut(), || unsafe { context(handle).map_or(null_mut(), |context| or_none(context)) })
}

unsafe extern "C" fn get_loop(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { or_none((*fields(handle)).loop_) }
}

unsafe extern "C" fn get_source_traceback(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { or_none((*fields(handle)).source_traceback) }
}

unsafe extern "C" fn get_repr(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { or_none((*fields(handle)).repr) }
}

unsafe extern "C" fn dealloc(handle: *mut PyObject) {
    // SAFETY: Python calls it with a handle that nobody has any more; it is of the type whose dead these are.
    guard((), || unsafe { bury(handle, &KEPT_HANDLES) });
}

/// Makes the type. `asyncio.TimerHandle`, the larger of the two bases, decides where our fields are.
///
/// # Safety
/// `base` and `timer_base` are `asyncio.Handle` and `asyncio.TimerHandle`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject, timer_base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    // SAFETY: both are types; a type's size is set when it is made, and a multiple of a pointer's for classes with slots.
    unsafe {
        OFFSET.store((*timer_base).tp_basicsize as usize, Ordering::Relaxed);
        let slots = [
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_tp_traverse, traverse as *mut c_void),
            (ffi::Py_tp_clear, clear as *mut c_void),
            (ffi::Py_tp_methods, types::methods(methods(cancel_method))),
            (ffi::Py_tp_getset, types::attributes(attributes())),
            (ffi::Py_tp_doc, c"A callback that waits to be called.".as_ptr() as *mut c_void),
        ];
        derive(c"pelton.Handle", base, size_of::<Fields>(), &slots)
    }
}

/// Makes a type of handles with `size` bytes of fields of its own.
///
/// # Safety
/// `base` is `asyncio.Handle` or a type derived from it; the slots are right for a type like that.
pub(crate) unsafe fn derive(
    name: &'static CStr,
    base: *mut PyTypeObject,
    size: usize,
    slots: &[types::Slot],
) -> Result<*mut PyTypeObject> {
    // SAFETY: as the caller says.
    unsafe { types::make(name, base, OFFSET.load(Ordering::Relaxed) + size, slots) }
}

/// The methods of both types, which differ in `cancel`.
pub(crate) fn methods(cancel: ffi::PyCFunction) -> Vec<ffi::PyMethodDef> {
    vec![
        without_arguments(c"cancel", cancel, c"Cancel the callback."),
        without_arguments(c"cancelled", cancelled_method, c"Return True if the callback was cancelled."),
        without_arguments(c"_run", run_method, c"Call the callback, in its context."),
    ]
}

/// The attributes of both types: what is private in asyncio, and read all the same by its own tests and by debuggers.
pub(crate) fn attributes() -> Vec<ffi::PyGetSetDef> {
    vec![
        attribute(c"_callback", get_callback, None),
        attribute(c"_args", get_arguments, None),
        attribute(c"_context", get_context, None),
        attribute(c"_loop", get_loop, None),
        attribute(c"_cancelled", get_cancelled, None),
        attribute(c"_source_traceback", get_source_traceback, None),
        attribute(c"_repr", get_repr, None),
    ]
}
