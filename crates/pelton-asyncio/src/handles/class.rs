//! Methods and attributes of both types of handles, and the type `Handle` itself.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use pyo3::ffi::{self, PyObject, PyTypeObject};

use crate::handles::handle::{
    CANCELLED, FORGOTTEN, Fields, KEPT_HANDLES, OFFSET, cancel, context, fields, run_alone, tuple,
};
use crate::handles::memory::{bury, clear, traverse};
use pelton_cpython::object::{Result, none, nothing, or_none, pointer};
use pelton_cpython::panic::guard;
use pelton_cpython::types::{self, attribute, without_arguments};

unsafe extern "C" fn run_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    guard(null_mut(), || nothing(unsafe { run_alone(handle) }))
}

unsafe extern "C" fn cancel_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    guard(null_mut(), || nothing(unsafe { cancel(handle) }))
}

unsafe extern "C" fn cancelled_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    unsafe { ffi::PyBool_FromLong(((*fields(handle)).flags & CANCELLED != 0).into()) }
}

unsafe extern "C" fn get_cancelled(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    unsafe { cancelled_method(handle, null_mut()) }
}

/// Returns whether it was cancelled and is hidden from Python until its call returns.
unsafe fn is_forgotten(handle: *mut PyObject) -> bool {
    // SAFETY: the caller guarantees that the handle is ours and alive.
    unsafe { (*fields(handle)).flags & FORGOTTEN != 0 }
}

unsafe extern "C" fn get_callback(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    unsafe { or_none(if is_forgotten(handle) { null_mut() } else { (*fields(handle)).callback }) }
}

unsafe extern "C" fn get_arguments(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with one of our handles, alive. Unless there is a tuple of them, `count`
        // arguments are set.
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
    // SAFETY: Python calls it with one of our handles, alive.
    guard(null_mut(), || unsafe { context(handle).map_or(null_mut(), |context| or_none(context)) })
}

unsafe extern "C" fn get_loop(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    unsafe { or_none((*fields(handle)).loop_) }
}

unsafe extern "C" fn get_source_traceback(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    unsafe { or_none((*fields(handle)).source_traceback) }
}

unsafe extern "C" fn get_repr(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, alive.
    unsafe { or_none((*fields(handle)).repr) }
}

unsafe extern "C" fn dealloc(handle: *mut PyObject) {
    // SAFETY: Python calls it with a handle of this type that has no references left.
    guard((), || unsafe { bury(handle, &KEPT_HANDLES) });
}

/// Creates the type. `asyncio.TimerHandle`, the larger of the two bases, determines the offset of our fields.
///
/// # Safety
/// `base` and `timer_base` are `asyncio.Handle` and `asyncio.TimerHandle`.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject, timer_base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    // SAFETY: the caller guarantees that both are types. A type's size is set when it is created, and for classes
    // with slots it is a multiple of the pointer size.
    unsafe {
        OFFSET.store((*timer_base).tp_basicsize as usize, Ordering::Relaxed);
        let slots = [
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_tp_traverse, traverse as *mut c_void),
            (ffi::Py_tp_clear, clear as *mut c_void),
            (ffi::Py_tp_methods, types::methods(methods(cancel_method))),
            (ffi::Py_tp_getset, types::attributes(attributes())),
            (ffi::Py_tp_doc, c"A scheduled callback.".as_ptr() as *mut c_void),
        ];
        derive(c"pelton.Handle", base, size_of::<Fields>(), &slots)
    }
}

/// Creates a type of handles with `size` bytes of its own fields.
///
/// # Safety
/// `base` is `asyncio.Handle` or a type derived from it, and the slots fit such a type.
pub(crate) unsafe fn derive(
    name: &'static CStr,
    base: *mut PyTypeObject,
    size: usize,
    slots: &[types::Slot],
) -> Result<*mut PyTypeObject> {
    // SAFETY: the caller guarantees that base and slots fit, and `size` is the size of the fields that they use.
    unsafe { types::make(name, base, OFFSET.load(Ordering::Relaxed) + size, slots) }
}

/// The methods of both types, which differ in `cancel`.
pub(crate) fn methods(cancel: ffi::PyCFunction) -> Vec<ffi::PyMethodDef> {
    vec![
        without_arguments(c"cancel", cancel, c"Cancel the callback."),
        without_arguments(c"cancelled", cancelled_method, c"Return True if the callback was cancelled."),
        without_arguments(c"_run", run_method, c"Call the callback in its context."),
    ]
}

/// The attributes of both types. They are private in asyncio, but its own tests and debuggers read them.
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
