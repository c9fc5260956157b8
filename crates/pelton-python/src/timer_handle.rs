//! `pelton.TimerHandle`: a callback that waits for its time.
//!
//! While it waits it is in its loop's timer wheel, which has a reference to it. Cancelling takes it out of there at once.

use std::ffi::c_void;
use std::ptr::{self, null_mut};

use pelton::TimerKey;
use pyo3::ffi::{self, PyObject, PyTypeObject};

use crate::core;
use crate::handle::{self, Fields};
use crate::handle_memory::{self, Kept, bury};
use crate::handle_type;
use crate::known::known;
use crate::object::{Owned, Result, nothing};
use crate::panic::guard;
use crate::types;

#[repr(C)]
pub(crate) struct TimerFields {
    handle: Fields,
    /// Its time, on the loop's clock, in seconds.
    when: f64,
    /// Its time as it was given, if that was no float; owned, or null.
    when_object: *mut PyObject,
    /// Where it is in the wheel, while it is.
    key: Option<TimerKey>,
}

static KEPT_TIMERS: Kept = Kept::new();

/// The fields of a timer handle.
///
/// # Safety
/// `timer` is a live `pelton.TimerHandle`.
#[inline]
unsafe fn fields(timer: *mut PyObject) -> *mut TimerFields {
    // SAFETY: in a timer handle, the fields of any handle are the first of its own.
    unsafe { handle::fields(timer).cast() }
}

/// A new timer handle that is not in the wheel yet. `when_object` may be null, then the time reads as the float `when`.
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
    // SAFETY: as the caller says, and `KEPT_TIMERS` keeps handles of this type only.
    unsafe {
        let timer = handle_memory::allocate(known().timer_type, &KEPT_TIMERS)?;
        let own = fields(timer.as_ptr());
        (*own).when = when;
        ffi::Py_XINCREF(when_object);
        (*own).when_object = when_object;
        ptr::write(&raw mut (*own).key, None);
        handle::fill(timer.as_ptr(), loop_, callback, arguments, context)?;
        Ok(timer)
    }
}

/// Notes down where in the wheel it is.
///
/// # Safety
/// `timer` is a live `pelton.TimerHandle`.
#[inline]
pub(crate) unsafe fn set_key(timer: *mut PyObject, key: Option<TimerKey>) {
    // SAFETY: as the caller says.
    unsafe { (*fields(timer)).key = key };
}

/// Its time, in seconds.
///
/// # Safety
/// `timer` is a live `pelton.TimerHandle`.
pub(crate) unsafe fn when(timer: *mut PyObject) -> f64 {
    // SAFETY: as the caller says.
    unsafe { (*fields(timer)).when }
}

/// The time of a handle as it was given: a borrowed reference, or null if that was a float, or if it is no timer.
///
/// # Safety
/// `handle` is a handle of ours, of either type.
#[inline]
pub(crate) unsafe fn when_object(handle: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe { if ffi::Py_TYPE(handle) == known().timer_type { (*fields(handle)).when_object } else { null_mut() } }
}

/// Takes out what [`when_object`] answers: the handle's reference, which is the caller's now. From then on its time is a float.
///
/// # Safety
/// As for [`when_object`].
#[inline]
pub(crate) unsafe fn take_when_object(handle: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe {
        let is_timer = ffi::Py_TYPE(handle) == known().timer_type;
        if is_timer { ptr::replace(&raw mut (*fields(handle)).when_object, null_mut()) } else { null_mut() }
    }
}

unsafe extern "C" fn cancel_method(timer: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live timer handle. It is let go of by the wheel after it has been marked, and the
        // caller has a reference of its own.
        unsafe {
            let own = fields(timer);
            let waiting = (*own).key.take().and_then(|key| core::take_timer((*own).handle.loop_, key));
            let outcome = handle::cancel(timer);
            if let Some(timer) = waiting {
                handle_memory::release(timer);
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
    // SAFETY: Python calls it with a handle that nobody has any more, so it is in no wheel.
    guard((), || unsafe { bury(timer, &KEPT_TIMERS) });
}

/// Makes the type.
///
/// # Safety
/// `base` is `asyncio.TimerHandle`, and [`handle_type::make_type`] has been called.
pub(crate) unsafe fn make_type(base: *mut PyTypeObject) -> Result<*mut PyTypeObject> {
    let mut attributes = handle_type::attributes();
    attributes.push(types::attribute(c"_when", get_when, None));
    attributes.push(types::attribute(c"_scheduled", get_scheduled, None));
    let mut methods = handle_type::methods(cancel_method);
    let doc = c"Return the time at which it is called, on the loop's clock.";
    methods.push(types::without_arguments(c"when", when_method, doc));
    let slots = [
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, handle_memory::traverse as *mut c_void),
        (ffi::Py_tp_clear, handle_memory::clear as *mut c_void),
        (ffi::Py_tp_methods, types::methods(methods)),
        (ffi::Py_tp_getset, types::attributes(attributes)),
        (ffi::Py_tp_doc, c"A callback that waits for its time.".as_ptr() as *mut c_void),
    ];
    // SAFETY: as the caller says.
    unsafe { handle_type::derive(c"pelton.TimerHandle", base, size_of::<TimerFields>(), &slots) }
}
