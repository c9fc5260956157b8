//! The types `pelton.Handle` and `pelton.TimerHandle`.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use pelton::TimerKey;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use super::memory::{clear, dealloc, traverse};
use super::{FORGOTTEN, Fields, HANDLE_TYPE, HOOKS, Handle, OFFSET, Queued, TIMER_TYPE, TimerFields};
use crate::call::{OrRaise, raise};
use crate::class::Answer;
use crate::object::Result;
use crate::panic::guard;
use crate::types;

/// Calls a function with every handle in a queue.
pub type EachQueued = fn(Python<'_>, &mut dyn FnMut(&Queued));

/// What handles need of their loops.
pub struct Hooks {
    /// Returns whether a loop is in debug mode.
    pub is_debug: fn(&Bound<'_, PyAny>) -> bool,
    /// Removes a timer from its loop's wheel.
    pub take_timer: fn(&Bound<'_, PyAny>, TimerKey) -> Option<Queued>,
    /// Calls a function with every handle in a queue.
    pub each_queued: EachQueued,
    /// `asyncio.format_helpers.extract_stack`
    pub extract_stack: Py<PyAny>,
    /// Called with a handle and the exception of its callback.
    pub callback_failed: Py<PyAny>,
}

/// A method or attribute.
trait Member {
    fn call(handle: Handle<'_, '_>) -> Answer;
}

unsafe extern "C" fn method<M: Member>(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with one of our handles, and with the lock held.
    guard(null_mut(), || M::call(unsafe { Handle(Borrowed::from_ptr(Python::assume_attached(), handle)) }).0)
}

unsafe extern "C" fn attribute<M: Member>(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: as for a method.
    unsafe { method::<M>(handle, null_mut()) }
}

/// Defines members.
macro_rules! members {
    ($($name:ident($handle:ident, $py:ident, $fields:ident) $body:expr;)*) => {$(
        struct $name;
        impl Member for $name {
            fn call($handle: Handle<'_, '_>) -> Answer {
                let ($py, $fields) = ($handle.py(), $handle.fields());
                let _ = $fields;
                Answer::new($py, $body)
            }
        }
    )*};
}

members! {
    Run(handle, py, fields) handle.run_alone();
    Cancel(handle, py, fields) handle.cancel();
    CancelTimer(handle, py, fields) {
        let key = handle.timer().and_then(|timer| timer.key.take());
        let its_loop = fields.its_loop.get(py);
        let waiting = key.zip(its_loop).and_then(|(key, its_loop)| (super::hooks().take_timer)(&its_loop, key));
        let outcome = handle.cancel();
        // The wheel's reference is dropped after the handle was marked, and the caller has its own.
        if let Some(timer) = waiting {
            timer.release(py);
        }
        outcome
    };
    Cancelled(handle, py, fields) Ok(handle.is_cancelled());
    When(handle, py, fields) Ok(match handle.timer().and_then(|timer| timer.when_object.get(py)) {
        Some(when) => when,
        None => handle.when().into_pyobject(py).map_or_else(|error: std::convert::Infallible| match error {}, Bound::into_any),
    });
    Scheduled(handle, py, fields) Ok(handle.timer().is_some_and(|timer| timer.key.get().is_some()));
    Callback(handle, py, fields) Ok(if fields.has(FORGOTTEN) { None } else { fields.callback.get(py) });
    Arguments(handle, py, fields) {
        if fields.has(FORGOTTEN) {
            Ok(None)
        } else if fields.callback.is_empty() || !fields.tuple.is_empty() {
            Ok(fields.tuple.get(py))
        } else {
            let arguments = fields.arguments[..fields.count.get() as usize].iter().filter_map(|slot| slot.get(py));
            PyTuple::new(py, arguments.collect::<Vec<_>>()).or_raise(py).map(|tuple| Some(tuple.into_any()))
        }
    };
    Context(handle, py, fields) handle.context();
    Loop(handle, py, fields) Ok(fields.its_loop.get(py));
    SourceTraceback(handle, py, fields) Ok(fields.source_traceback.get(py));
    Repr(handle, py, fields) Ok(fields.repr.get(py));
}

/// Makes both types, derived from `asyncio.Handle` and `asyncio.TimerHandle`.
pub fn make_types<'py>(
    base: &Bound<'py, PyType>,
    timer_base: &Bound<'py, PyType>,
    hooks: Hooks,
) -> Result<[Bound<'py, PyType>; 2]> {
    let py = base.py();
    if HOOKS.set(hooks).is_err() {
        return Err(raise::<PyRuntimeError>(py, "the types of handles are made once"));
    }
    // SAFETY: both are types, whose size is set when they are created; for classes with slots it is a multiple of the size of a pointer.
    let (size, timer_size) = unsafe { ((*base.as_type_ptr()).tp_basicsize, (*timer_base.as_type_ptr()).tp_basicsize) };
    // The larger of the two bases determines the offset of our fields.
    OFFSET.store(size.max(timer_size) as usize, Ordering::Relaxed);
    let methods = |cancel: ffi::PyCFunction| {
        vec![
            types::without_arguments(c"cancel", cancel, c"Cancel the callback."),
            types::without_arguments(c"cancelled", method::<Cancelled>, c"Return True if the callback was cancelled."),
            types::without_arguments(c"_run", method::<Run>, c"Call the callback in its context."),
        ]
    };
    // They are private in asyncio, but its own tests and debuggers read them.
    let attributes = || {
        vec![
            types::attribute(c"_callback", attribute::<Callback>, None),
            types::attribute(c"_args", attribute::<Arguments>, None),
            types::attribute(c"_context", attribute::<Context>, None),
            types::attribute(c"_loop", attribute::<Loop>, None),
            types::attribute(c"_cancelled", attribute::<Cancelled>, None),
            types::attribute(c"_source_traceback", attribute::<SourceTraceback>, None),
            types::attribute(c"_repr", attribute::<Repr>, None),
        ]
    };
    let mut timer_methods = methods(method::<CancelTimer>);
    let doc = c"Return the time at which it is called, on the loop's clock.";
    timer_methods.push(types::without_arguments(c"when", method::<When>, doc));
    let mut timer_attributes = attributes();
    timer_attributes.push(types::attribute(c"_when", attribute::<When>, None));
    timer_attributes.push(types::attribute(c"_scheduled", attribute::<Scheduled>, None));
    let parts = |dealloc, methods, attributes, doc: &CStr| {
        [
            (ffi::Py_tp_dealloc, dealloc),
            (ffi::Py_tp_traverse, traverse as *mut c_void),
            (ffi::Py_tp_clear, clear as *mut c_void),
            (ffi::Py_tp_methods, types::methods(methods)),
            (ffi::Py_tp_getset, types::attributes(attributes)),
            (ffi::Py_tp_doc, doc.as_ptr() as *mut c_void),
        ]
    };
    let plain =
        parts(dealloc::<false> as *mut c_void, methods(method::<Cancel>), attributes(), c"A scheduled callback.");
    let timed =
        parts(dealloc::<true> as *mut c_void, timer_methods, timer_attributes, c"A callback that waits for its time.");
    let room = OFFSET.load(Ordering::Relaxed);
    // SAFETY: both have room for the fields that the functions use, after those of their bases.
    unsafe {
        let handle = types::make(c"pelton.Handle", base.as_type_ptr(), room + size_of::<Fields>(), &plain)?;
        let timer =
            types::make(c"pelton.TimerHandle", timer_base.as_type_ptr(), room + size_of::<TimerFields>(), &timed)?;
        HANDLE_TYPE.store(handle, Ordering::Relaxed);
        TIMER_TYPE.store(timer, Ordering::Relaxed);
        Ok([handle, timer].map(|its_type| Bound::from_borrowed_ptr(py, its_type.cast()).cast_into_unchecked()))
    }
}
