//! `pelton.Handle`: a scheduled callback.
//!
//! It derives from `asyncio.Handle` and has its own fields after those of that class, whose slots stay empty. The
//! attributes that tools read are computed from these fields, so asyncio's own methods that use them (`repr`,
//! `get_context`) work unchanged.

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use crate::event_loop::state;
use crate::handles::contexts;
use crate::handles::memory::{Kept, allocate};
use crate::known::known;
use pelton_cpython::object::{Owned, Raised, Result, check};

/// Number of arguments stored in the handle itself. More are stored in a tuple.
pub(crate) const INLINE: usize = 3;

/// The fields of a handle after those of `asyncio.Handle`. References are owned or null.
#[repr(C)]
pub(crate) struct Fields {
    pub(crate) loop_: *mut PyObject,
    pub(crate) callback: *mut PyObject,
    pub(crate) context: *mut PyObject,
    /// The first item is scratch space for the callee, as vectorcall allows.
    pub(crate) arguments: [*mut PyObject; 1 + INLINE],
    /// All arguments, if there are more than `INLINE`.
    pub(crate) tuple: *mut PyObject,
    pub(crate) source_traceback: *mut PyObject,
    pub(crate) repr: *mut PyObject,
    pub(crate) count: u32,
    pub(crate) flags: u32,
}

pub(crate) const CANCELLED: u32 = 1;
/// It is being called: callback and arguments must stay until the call returns.
const RUNNING: u32 = 2;
/// The garbage collector tracks it.
pub(crate) const TRACKED: u32 = 4;
/// Its context is still shared with other handles.
pub(crate) const SHARES_CONTEXT: u32 = 8;

/// It was cancelled, so Python code sees no callback and no arguments. They have been dropped unless it is [`RUNNING`].
pub(crate) const FORGOTTEN: u32 = 16;

/// Offset of our fields in a handle, set by [`handle_type`](crate::handles::class). It is the same for both types, so
/// the type need not be checked, and depends only on the version of Python.
pub(crate) static OFFSET: AtomicUsize = AtomicUsize::new(0);

pub(crate) static KEPT_HANDLES: Kept = Kept::new();

/// Returns the fields of one of our handles.
///
/// # Safety
/// `handle` is a live `pelton.Handle` or `pelton.TimerHandle`.
#[inline]
pub(crate) unsafe fn fields(handle: *mut PyObject) -> *mut Fields {
    // SAFETY: the caller guarantees the type. Both types were created with room for `Fields` at this offset.
    unsafe { handle.byte_add(OFFSET.load(Ordering::Relaxed)).cast() }
}

/// Returns whether a handle is of one of our types.
///
/// # Safety
/// `handle` is alive.
#[inline]
pub(crate) unsafe fn is_ours(handle: *mut PyObject) -> bool {
    // SAFETY: the caller guarantees that the handle is alive.
    let its_type = unsafe { ffi::Py_TYPE(handle) };
    its_type == known().handle_type || its_type == known().timer_type
}

/// Creates a handle for `callback(*arguments)`. The callback runs in `context`, or in a copy of the current one if
/// that is null.
///
/// # Safety
/// All pointers are live objects, `loop_` a `pelton.Loop`; `context` may be null.
#[inline]
pub(crate) unsafe fn new(
    loop_: *mut PyObject,
    callback: *mut PyObject,
    arguments: &[*mut PyObject],
    context: *mut PyObject,
) -> Result<Owned> {
    // SAFETY: the caller guarantees that all are alive. `KEPT_HANDLES` has only handles of this type.
    unsafe {
        let handle = allocate(known().handle_type, &KEPT_HANDLES)?;
        fill(handle.as_ptr(), loop_, callback, arguments, context)?;
        Ok(handle)
    }
}

/// Sets all fields of a new handle.
///
/// # Safety
/// As for [`new`]; `handle` is from [`allocate`].
#[inline]
pub(crate) unsafe fn fill(
    handle: *mut PyObject,
    loop_: *mut PyObject,
    callback: *mut PyObject,
    arguments: &[*mut PyObject],
    context: *mut PyObject,
) -> Result<()> {
    // SAFETY: the caller guarantees that all pointers are alive. The fields are empty so far, and a partly filled
    // handle can be dropped.
    unsafe {
        let fields = fields(handle);
        if context.is_null() {
            contexts::copy_current(state::of_or_null(loop_), fields)?;
        } else {
            (*fields).context = ffi::Py_NewRef(context);
        }
        if arguments.len() <= INLINE {
            for (index, argument) in arguments.iter().enumerate() {
                (*fields).arguments[1 + index] = ffi::Py_NewRef(*argument);
            }
        } else {
            (*fields).tuple = tuple(arguments)?.into_ptr();
        }
        (*fields).count = arguments.len() as u32;
        (*fields).loop_ = ffi::Py_NewRef(loop_);
        (*fields).callback = ffi::Py_NewRef(callback);
        if state::is_in_debug_mode(loop_) {
            (*fields).source_traceback = Owned::returned(ffi::PyObject_CallNoArgs(known().extract_stack))?.into_ptr();
        }
        Ok(())
    }
}

/// Creates a tuple of the items.
pub(crate) unsafe fn tuple(items: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the caller guarantees that the items are alive. The tuple takes over a new reference to each.
    unsafe {
        let tuple = Owned::returned(ffi::PyTuple_New(items.len() as Py_ssize_t))?;
        for (index, item) in items.iter().enumerate() {
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as Py_ssize_t, ffi::Py_NewRef(*item));
        }
        Ok(tuple)
    }
}

/// Returns whether a handle, of any type, was cancelled.
///
/// # Safety
/// `handle` is alive.
#[inline]
pub(crate) unsafe fn is_cancelled(handle: *mut PyObject) -> Result<bool> {
    // SAFETY: the caller guarantees that the handle is alive.
    unsafe {
        if is_ours(handle) {
            return Ok((*fields(handle)).flags & CANCELLED != 0);
        }
        let cancelled = Owned::returned(ffi::PyObject_GetAttr(handle, known().names._cancelled))?;
        match ffi::PyObject_IsTrue(cancelled.as_ptr()) {
            -1 => Err(Raised),
            truth => Ok(truth == 1),
        }
    }
}

/// Calls the callback in the current context and returns its result. An exception stays set.
///
/// The caller leaves the context first, and only then drops the result and calls [`forget_if_cancelled`]. A
/// finalizer must not run inside the callback's context.
///
/// # Safety
/// `handle` is one of our handles, is not cancelled, and the caller has a reference to it.
#[inline]
pub(crate) unsafe fn call(handle: *mut PyObject) -> Result<Owned> {
    // SAFETY: while the handle is marked as running, `cancel` leaves callback and arguments in place, and nothing
    // else removes them. The item before the first argument is the scratch space that the vectorcall flag promises.
    unsafe {
        let fields = fields(handle);
        (*fields).flags |= RUNNING;
        let count = (*fields).count as usize;
        let result = if (*fields).tuple.is_null() {
            let arguments = (&raw const (*fields).arguments).cast::<*mut PyObject>().add(1);
            let flagged = count | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
            ffi::PyObject_Vectorcall((*fields).callback, arguments, flagged, null_mut())
        } else {
            ffi::PyObject_Call((*fields).callback, (*fields).tuple, null_mut())
        };
        (*fields).flags &= !RUNNING;
        Owned::returned(result)
    }
}

/// Drops callback and arguments if the handle was cancelled during its call, when they had to stay.
///
/// # Safety
/// `handle` is one of our handles and alive. No Rust reference into a loop's state is held.
#[inline]
pub(crate) unsafe fn forget_if_cancelled(handle: *mut PyObject) {
    // SAFETY: the caller guarantees that the handle is ours and alive.
    unsafe {
        if (*fields(handle)).flags & (FORGOTTEN | RUNNING) == FORGOTTEN {
            for reference in take_call(handle).into_iter().rev() {
                ffi::Py_XDECREF(reference);
            }
        }
    }
}

/// Returns the context that a handle's callback runs in, as a borrowed reference; null if the garbage collector has
/// cleared it.
///
/// # Safety
/// `handle` is one of our handles and alive.
pub(crate) unsafe fn context(handle: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: the caller guarantees that the handle is ours and alive.
    unsafe {
        let fields = fields(handle);
        if (*fields).flags & SHARES_CONTEXT != 0 {
            contexts::stop_sharing(null_mut(), fields, null_mut())?;
        }
        Ok((*fields).context)
    }
}

/// Returns the first argument of a handle's callback as a borrowed reference, or null.
///
/// # Safety
/// `handle` is one of our handles and alive.
pub(crate) unsafe fn first_argument(handle: *mut PyObject) -> *mut PyObject {
    // SAFETY: the caller guarantees that the handle is ours and alive.
    unsafe { (*fields(handle)).arguments[1] }
}

/// Reports an exception of a callback to the loop's exception handler. `SystemExit` and `KeyboardInterrupt` propagate.
///
/// # Safety
/// `handle` is alive and may be of any type; an exception is set.
#[cold]
pub(crate) unsafe fn report(handle: *mut PyObject) -> Result<()> {
    Python::attach(|py| {
        let Some(error) = PyErr::take(py) else { return Ok(()) };
        if error.is_instance_of::<pyo3::exceptions::PySystemExit>(py)
            || error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py)
        {
            error.restore(py);
            return Err(Raised);
        }
        // SAFETY: the caller keeps the handle alive, `error` owns the exception, and the function is never freed.
        unsafe {
            let arguments = [handle, error.value(py).as_ptr()];
            let called = ffi::PyObject_Vectorcall(known().callback_failed, arguments.as_ptr(), 2, null_mut());
            Owned::returned(called).map(drop)
        }
    })
}

/// Drops callback and arguments.
pub(crate) unsafe fn forget_call(handle: *mut PyObject) {
    // SAFETY: the callers guarantee that the handle is ours and alive. `take_call` empties the fields before
    // anything is dropped.
    unsafe {
        for reference in take_call(handle) {
            ffi::Py_XDECREF(reference);
        }
    }
}

/// Moves out callback and arguments; the caller drops them. A cancelled handle drops them in this order. One that
/// was cancelled during its call drops them in reverse, as in asyncio.
unsafe fn take_call(handle: *mut PyObject) -> [*mut PyObject; 5] {
    // SAFETY: the caller guarantees that the handle is ours and alive.
    unsafe {
        let fields = fields(handle);
        let callback = ptr::replace(&raw mut (*fields).callback, null_mut());
        let [_, first, second, third] = ptr::replace(&raw mut (*fields).arguments, [null_mut(); 1 + INLINE]);
        let tuple = ptr::replace(&raw mut (*fields).tuple, null_mut());
        (*fields).count = 0;
        [callback, tuple, first, second, third]
    }
}

/// Marks a handle as cancelled and drops its callback and arguments.
///
/// # Safety
/// `handle` is one of our handles and alive. No Rust reference into a loop's state is held.
pub(crate) unsafe fn cancel(handle: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the handle is ours and alive.
    unsafe {
        let fields = fields(handle);
        if (*fields).flags & CANCELLED != 0 {
            return Ok(());
        }
        (*fields).flags |= CANCELLED;
        if state::is_in_debug_mode((*fields).loop_) {
            // Without callback and arguments, the repr could no longer show them. Code that this runs finds the
            // handle cancelled and leaves it alone.
            let repr = Owned::returned(ffi::PyObject_Repr(handle))?;
            ffi::Py_XDECREF(ptr::replace(&raw mut (*fields).repr, repr.into_ptr()));
        }
        (*fields).flags |= FORGOTTEN;
        if (*fields).flags & RUNNING == 0 {
            forget_call(handle);
        }
        Ok(())
    }
}

/// Implements `handle._run()`.
///
/// # Safety
/// `handle` is one of our handles and alive.
pub(crate) unsafe fn run_alone(handle: *mut PyObject) -> Result<()> {
    // SAFETY: the caller guarantees that the handle is ours and alive. An owned reference keeps the context alive,
    // and it is left if it was entered.
    unsafe {
        let _kept = Owned::new_reference(handle);
        if is_cancelled(handle)? {
            return Ok(());
        }
        let context = Owned::new_reference(context(handle)?);
        let outcome = check(ffi::PyContext_Enter(context.as_ptr())).and_then(|()| {
            let outcome = call(handle);
            check(ffi::PyContext_Exit(context.as_ptr())).and(outcome)
        });
        match outcome {
            Ok(result) => {
                forget_if_cancelled(handle);
                drop(result);
                Ok(())
            }
            Err(Raised) => {
                let outcome = report(handle);
                forget_if_cancelled(handle);
                outcome
            }
        }
    }
}
