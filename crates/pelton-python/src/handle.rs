//! `pelton.Handle`: a callback that waits to be called.
//!
//! It derives from `asyncio.Handle` and keeps its own fields behind those of that class, whose slots stay empty: the
//! attributes that tools read are computed from ours. What asyncio's methods in Python do with these attributes (`repr`,
//! `get_context`) therefore works as it is.

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;

use crate::contexts;
use crate::core;
use crate::handle_memory::{Kept, allocate};
use crate::known::known;
use crate::object::{Owned, Raised, Result, check};

/// Arguments that a handle has room for; more are in a tuple.
pub(crate) const INLINE: usize = 3;

/// What a handle is beyond an `asyncio.Handle`. References are owned, or null.
#[repr(C)]
pub(crate) struct Fields {
    pub(crate) loop_: *mut PyObject,
    pub(crate) callback: *mut PyObject,
    pub(crate) context: *mut PyObject,
    /// The first is for whoever is called to use, by the rules of vectorcall.
    pub(crate) arguments: [*mut PyObject; 1 + INLINE],
    /// All arguments, if there are more than fit.
    pub(crate) tuple: *mut PyObject,
    pub(crate) source_traceback: *mut PyObject,
    pub(crate) repr: *mut PyObject,
    pub(crate) count: u32,
    pub(crate) flags: u32,
}

pub(crate) const CANCELLED: u32 = 1;
/// It is being called: what that takes must stay until it returns.
const RUNNING: u32 = 2;
/// The garbage collector knows it.
pub(crate) const TRACKED: u32 = 4;
/// Its context is not its own yet.
pub(crate) const SHARES_CONTEXT: u32 = 8;

/// It was cancelled, and to Python has no callback and no arguments any more. They are let go of unless it is [`RUNNING`].
pub(crate) const FORGOTTEN: u32 = 16;

/// Where our fields are in a handle, which [`handle_type`](crate::handle_type) sets: the same for both types, so that one need not ask which it is. It depends on the
/// version of Python alone.
pub(crate) static OFFSET: AtomicUsize = AtomicUsize::new(0);

pub(crate) static KEPT_HANDLES: Kept = Kept::new();

/// The fields of a handle of ours.
///
/// # Safety
/// `handle` is a live `pelton.Handle` or `pelton.TimerHandle`.
#[inline]
pub(crate) unsafe fn fields(handle: *mut PyObject) -> *mut Fields {
    // SAFETY: the types were made with room for `Fields` at this offset.
    unsafe { handle.byte_add(OFFSET.load(Ordering::Relaxed)).cast() }
}

/// Whether a handle is of one of our types.
///
/// # Safety
/// `handle` is alive.
#[inline]
pub(crate) unsafe fn is_ours(handle: *mut PyObject) -> bool {
    // SAFETY: as the caller says.
    let its_type = unsafe { ffi::Py_TYPE(handle) };
    its_type == known().handle_type || its_type == known().timer_type
}

/// A new handle for `callback(*arguments)`, which runs in `context`, or if that is null in a copy of the current one.
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
    // SAFETY: as the caller says, and `KEPT_HANDLES` keeps handles of this type only.
    unsafe {
        let handle = allocate(known().handle_type, &KEPT_HANDLES)?;
        fill(handle.as_ptr(), loop_, callback, arguments, context)?;
        Ok(handle)
    }
}

/// Sets all fields of a handle that is new.
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
    // SAFETY: all pointers are alive, and the fields have been empty so far. A handle of which some are set can be dropped.
    unsafe {
        let fields = fields(handle);
        if context.is_null() {
            contexts::copy_current(core::core_or_null(loop_), fields)?;
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
        if core::is_in_debug_mode(loop_) {
            (*fields).source_traceback = Owned::returned(ffi::PyObject_CallNoArgs(known().extract_stack))?.into_ptr();
        }
        Ok(())
    }
}

/// A new tuple of these.
pub(crate) unsafe fn tuple(items: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the items are alive; the tuple takes over a new reference to each.
    unsafe {
        let tuple = Owned::returned(ffi::PyTuple_New(items.len() as Py_ssize_t))?;
        for (index, item) in items.iter().enumerate() {
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as Py_ssize_t, ffi::Py_NewRef(*item));
        }
        Ok(tuple)
    }
}

/// Whether a handle, ours or not, was cancelled.
///
/// # Safety
/// `handle` is alive.
#[inline]
pub(crate) unsafe fn is_cancelled(handle: *mut PyObject) -> Result<bool> {
    // SAFETY: as the caller says.
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

/// Calls the callback, in the context that is current, and returns its result. What it raises stays raised.
///
/// The caller leaves the context, and only then lets go of the result and calls [`forget_if_cancelled`]: a finalizer must not find
/// the callback's context entered.
///
/// # Safety
/// `handle` is a handle of ours that is not cancelled, and the caller has a reference to it.
#[inline]
pub(crate) unsafe fn call(handle: *mut PyObject) -> Result<Owned> {
    // SAFETY: while it is marked as running, `cancel` leaves callback and arguments in place, and nothing else takes them
    // out. The array has the room before its second item that the flag promises.
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

/// Lets go of callback and arguments if the handle was cancelled while it was being called, when they had to stay.
///
/// # Safety
/// `handle` is a live handle of ours. No Rust reference into a loop's state is held.
#[inline]
pub(crate) unsafe fn forget_if_cancelled(handle: *mut PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        if (*fields(handle)).flags & (FORGOTTEN | RUNNING) == FORGOTTEN {
            for reference in take_call(handle).into_iter().rev() {
                ffi::Py_XDECREF(reference);
            }
        }
    }
}

/// The context that a handle's callback runs in: a borrowed reference, or null if the garbage collector has taken it.
///
/// # Safety
/// `handle` is a live handle of ours.
pub(crate) unsafe fn context(handle: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: as the caller says.
    unsafe {
        let fields = fields(handle);
        if (*fields).flags & SHARES_CONTEXT != 0 {
            contexts::stop_sharing(null_mut(), fields, null_mut())?;
        }
        Ok((*fields).context)
    }
}

/// The first argument that a handle will call with: a borrowed reference, or null.
///
/// # Safety
/// `handle` is a live handle of ours.
pub(crate) unsafe fn first_argument(handle: *mut PyObject) -> *mut PyObject {
    // SAFETY: as the caller says.
    unsafe { (*fields(handle)).arguments[1] }
}

/// Reports what a callback has raised to the loop's exception handler; `SystemExit` and `KeyboardInterrupt` go on.
///
/// # Safety
/// `handle` is alive, of whatever type; an exception is set.
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
        // SAFETY: all are alive for the length of the call.
        unsafe {
            let arguments = [handle, error.value(py).as_ptr()];
            let called = ffi::PyObject_Vectorcall(known().callback_failed, arguments.as_ptr(), 2, null_mut());
            Owned::returned(called).map(drop)
        }
    })
}

/// Lets go of callback and arguments.
pub(crate) unsafe fn forget_call(handle: *mut PyObject) {
    // SAFETY: the fields are emptied before anything is let go of.
    unsafe {
        for reference in take_call(handle) {
            ffi::Py_XDECREF(reference);
        }
    }
}

/// Takes out callback and arguments, for the caller to let go of: in this order if the handle is cancelled, and the other way round if it
/// was being called meanwhile, as in asyncio.
unsafe fn take_call(handle: *mut PyObject) -> [*mut PyObject; 5] {
    // SAFETY: the caller's handle is alive and ours.
    unsafe {
        let fields = fields(handle);
        let callback = ptr::replace(&raw mut (*fields).callback, null_mut());
        let [_, first, second, third] = ptr::replace(&raw mut (*fields).arguments, [null_mut(); 1 + INLINE]);
        let tuple = ptr::replace(&raw mut (*fields).tuple, null_mut());
        (*fields).count = 0;
        [callback, tuple, first, second, third]
    }
}

/// Marks a handle as cancelled, and lets go of what it would have called.
///
/// # Safety
/// `handle` is a live handle of ours. No Rust reference into a loop's state is held.
pub(crate) unsafe fn cancel(handle: *mut PyObject) -> Result<()> {
    // SAFETY: as the caller says.
    unsafe {
        let fields = fields(handle);
        if (*fields).flags & CANCELLED != 0 {
            return Ok(());
        }
        (*fields).flags |= CANCELLED;
        if core::is_in_debug_mode((*fields).loop_) {
            // With callback and arguments gone, nobody could tell any more what it was. Whatever this calls finds the handle
            // cancelled, and leaves it alone.
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

/// What `handle._run()` does.
///
/// # Safety
/// `handle` is a live handle of ours.
pub(crate) unsafe fn run_alone(handle: *mut PyObject) -> Result<()> {
    // SAFETY: as the caller says; the context is kept by a reference of our own, and left if it was entered.
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
