//! `pelton.TimerHandle`: a callback that is called at a certain time.
//!
//! Until then it is in its loop's timer wheel, which owns a reference to it. Cancelling removes it from the wheel immediately.

use std::ffi::c_void;
use std::ptr::{self, null_mut};

use pelton::TimerKey;
use pyo3::ffi::{self, PyObject, PyTypeObject};

use crate::event_loop::state;
use crate::handles::class;
use crate::handles::handle::{self, Fields};
use crate::handles::memory::{self, Kept, bury};
use crate::known::known;
use pelton_cpython::object::{Owned, Result, nothing};
use pelton_cpython::panic::guard;
use pelton_cpython::types;

#[repr(C)]
pub(crate) struct TimerFields {
    handle: Fields,
    /// When it is called, on the loop's clock, in seconds.
    when: f64,
    /// The time as it was given, if it was not a float: an owned reference, or null.
    when_object: *mut PyObject,
    /// Its key in the wheel, if it is in the wheel.
    key: Option<TimerKey>,
}

static KEPT_TIMERS: Kept = Kept::new();

/// Returns the fields of a timer handle.
///
/// # Safety
/// `timer` is a live `pelton.TimerHandle`.
#[inline]
unsafe fn fields(timer: *mut PyObject) -> *mut TimerFields {
    // SAFETY: the fields of a timer handle begin with those of every handle.
    unsafe { handle::fields(timer).cast() }
}

/// Creates a timer handle that is not in the wheel yet. If `when_object` is null, the time reads as the float `when`.
///
/// # Safety
/// As for [`handle::new`].
#[inline]
pub(crate) unsafe fn new(
    loop_: *mut PyObject,
    when: f64,
    when_object: *mut PyObject,
    callback: *mut PyObject,
    arguments: &[*mut PyObject],
    context: *mut PyObject,
) -> Result<Owned> {
    // SAFETY: the caller guarantees it, and `KEPT_TIMERS` holds handles of this type only.
    unsafe {
        let timer = memory::allocate(known().timer_type, &KEPT_TIMERS)?;
        let own = fields(timer.as_ptr());
        (*own).when = when;
        ffi::Py_XINCREF(when_object);
        (*own).when_object = when_object;
        ptr::write(&raw mut (*own).key, None);
        handle::fill(timer.as_ptr(), loop_, callback, arguments, context)?;
        Ok(timer)
    }
}

/// Stores its key in the wheel.
///
/// # Safety
/// `timer` is a live `pelton.TimerHandle`.
#[inline]
pub(crate) unsafe fn set_key(timer: *mut PyObject, key: Option<TimerKey>) {
    // SAFETY: the caller guarantees it.
    unsafe { (*fields(timer)).key = key };
}

/// Returns when it is called, in seconds.
///
/// # Safety
/// `timer` is a live `pelton.TimerHandle`.
pub(crate) unsafe fn when(timer: *mut PyObject) -> f64 {
    // SAFETY: the caller guarantees it.
    unsafe { (*fields(timer)).when }
}

/// Returns the time of a handle as it was given: a borrowed reference, or null if it was a float or the handle is not a timer.
///
/// # Safety
/// `handle` is a `pelton.Handle` or `pelton.TimerHandle`.
#[inline]
pub(crate) unsafe fn when_object(handle: *mut PyObject) -> *mut PyObject {
    // SAFETY: the caller guarantees it.
    unsafe { if ffi::Py_TYPE(handle) == known().timer_type { (*fields(handle)).when_object } else { null_mut() } }
}

/// Takes the reference that [`when_object`] returns. From then on the time of the handle reads as a float.
///
/// # Safety
/// As for [`when_object`].
#[inline]
pub(crate) unsafe fn take_when_object(handle: *mut PyObject) -> *mut PyObject {
    // SAFETY: the caller guarantees it.
    unsafe {
        let is_timer = ffi::Py_TYPE(handle) == known().timer_type;
        if is_timer { ptr::replace(&raw mut (*fields(handle)).when_object, null_mut()) } else { null_mut() }
    }
}

unsafe extern "C" fn cancel_method(timer: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live timer handle. The wheel's reference is dropped after the handle was marked, and
        // the caller has its own.
        unsafe {
            let own = fields(timer);
            let waiting = (*own).key.take().and_then(|key| state::take_timer((*own).handle.loop_, key));
            let outcome = handle::cancel(timer);
            if let Some(timer) = waiting {
                memory::release(timer);
            }
            nothing(outcome)
        }
    })
}

unsafe extern "C" fn when_method(timer: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live timer handle.
    unsafe {
        let own = fields(timer);
        if (*own).when_object.is_null() {
            ffi::PyFloat_FromDouble((*own).when)
        } else {
            ffi::Py_NewRef((*own).when_object)
        }
    }
}

unsafe extern "C" fn get_when(timer: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live timer handle.
    unsafe { when_method(timer, null_mut()) }
}

unsafe extern "C" fn get_scheduled(timer: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live timer handle.
    unsafe { ffi::PyBool_FromLong((*fields(timer)).key.is_some().into()) }
}

unsafe extern "C" fn dealloc(timer: *mut PyObject) {
    // SAFETY: Python calls it when there is no reference to the handle, so it is not in a wheel.
    guard((), || unsafe { bury(timer, &KEPT_TIMERS) });
}

/// Creates the type.
///
/// # Safety
/// `base` is `asyncio.TimerHandle`, and [`class::make_type`] has been called.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let mut attributes = class::attributes();
    attributes.push(types::attribute(c"_when", get_when, None));
    attributes.push(types::attribute(c"_scheduled", get_scheduled, None));
    let mut methods = class::methods(cancel_method);
    let doc = c"Return the time at which it is called, on the loop's clock.";
    methods.push(types::without_arguments(c"when", when_method, doc));
    let slots = [
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, memory::traverse as *mut c_void),
        (ffi::Py_tp_clear, memory::clear as *mut c_void),
        (ffi::Py_tp_methods, types::methods(methods)),
        (ffi::Py_tp_getset, types::attributes(attributes)),
        (ffi::Py_tp_doc, c"A callback that waits for its time.".as_ptr() as *mut c_void),
    ];
    // SAFETY: the caller guarantees it.
    unsafe { class::derive(c"pelton.TimerHandle", base, size_of::<TimerFields>(), &slots) }
}
