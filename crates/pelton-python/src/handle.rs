//! `pelton.Handle`: a callback that waits to be called.
//!
//! It derives from `asyncio.Handle` and keeps its own fields behind those of that class, whose slots stay empty: the
//! attributes that tools read are computed from ours. What asyncio's methods in Python do with these attributes (`repr`,
//! `get_context`) therefore works as it is.
//!
//! **Memory.** Handles come and go by the million, so up to [`KEPT`] dead ones are kept, and they are hidden from the garbage
//! collector while only a queue has them. The loop shows the collector what such handles refer to. As soon as
//! the queue lets go of a handle that somebody else has too, it is [tracked](release) like any object.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject, visitproc};
use pyo3::prelude::*;

use crate::core;
use crate::known::known;
use crate::object::{Owned, Raised, Result, check, nothing, or_none};
use crate::panic::guard;
use crate::types::{self, attribute, without_arguments};

/// Arguments that a handle has room for; more are in a tuple.
const INLINE: usize = 3;

/// Dead handles that are kept of each type: 100 KiB.
const KEPT: usize = 512;

/// What a handle is beyond an `asyncio.Handle`. References are owned, or null.
#[repr(C)]
pub(crate) struct Fields {
    pub(crate) loop_: *mut PyObject,
    callback: *mut PyObject,
    pub(crate) context: *mut PyObject,
    /// The first is for whoever is called to use, by the rules of vectorcall.
    arguments: [*mut PyObject; 1 + INLINE],
    /// All arguments, if there are more than fit.
    tuple: *mut PyObject,
    pub(crate) source_traceback: *mut PyObject,
    repr: *mut PyObject,
    count: u32,
    flags: u32,
}

const CANCELLED: u32 = 1;
/// It is being called: what that takes must stay until it returns.
const RUNNING: u32 = 2;
/// The garbage collector knows it.
const TRACKED: u32 = 4;

/// Where our fields are in a handle: the same for both types, so that one need not ask which it is. It depends on the
/// version of Python alone.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Dead handles, each with its reference to its type.
pub(crate) struct Kept(UnsafeCell<Vec<*mut PyObject>>);

// SAFETY: only touched with the interpreter lock held.
unsafe impl Sync for Kept {}

impl Kept {
    pub(crate) const fn new() -> Kept {
        Kept(UnsafeCell::new(Vec::new()))
    }
}

static KEPT_HANDLES: Kept = Kept::new();

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

/// A handle with nothing in it.
///
/// # Safety
/// `its_type` is one of our two, and `kept` that type's.
#[inline]
pub(crate) unsafe fn allocate(its_type: *mut PyTypeObject, kept: &Kept) -> Result<Owned> {
    // SAFETY: the lock is held, and nothing is called while the list is borrowed. What comes from it is whole but for its
    // reference count. What comes from the allocator is zeroed, which all fields can be, and tracked, which it is not to be.
    unsafe {
        if let Some(handle) = (*kept.0.get()).pop() {
            _Py_NewReference(handle);
            return Owned::returned(handle);
        }
        let handle = ffi::PyType_GenericAlloc(its_type, 0);
        if handle.is_null() {
            return Err(Raised);
        }
        ffi::PyObject_GC_UnTrack(handle.cast());
        Owned::returned(handle)
    }
}

// What CPython's own lists of dead objects use; pyo3 does not declare it.
unsafe extern "C" {
    fn _Py_NewReference(object: *mut PyObject);
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
        (*fields).context = if context.is_null() { ffi::PyContext_CopyCurrent() } else { ffi::Py_NewRef(context) };
        if (*fields).context.is_null() {
            return Err(Raised);
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
unsafe fn tuple(items: &[*mut PyObject]) -> Result<Owned> {
    // SAFETY: the items are alive; the tuple takes over a new reference to each.
    unsafe {
        let tuple = Owned::returned(ffi::PyTuple_New(items.len() as Py_ssize_t))?;
        for (index, item) in items.iter().enumerate() {
            ffi::PyTuple_SET_ITEM(tuple.as_ptr(), index as Py_ssize_t, ffi::Py_NewRef(*item));
        }
        Ok(tuple)
    }
}

/// A queue's reference is given up. If others have the handle too, the garbage collector is told of it from now on.
///
/// # Safety
/// The reference is the caller's to give away. No Rust reference into a loop's state is held.
#[inline]
pub(crate) unsafe fn release(handle: *mut PyObject) {
    // SAFETY: it is alive as long as there is that reference.
    unsafe {
        if ffi::Py_REFCNT(handle) > 1 && is_ours(handle) {
            track(handle);
        }
        ffi::Py_DECREF(handle);
    }
}

/// Tells the garbage collector of a handle.
///
/// # Safety
/// `handle` is a live handle of ours.
pub(crate) unsafe fn track(handle: *mut PyObject) {
    // SAFETY: our fields are always fit to be traversed; and it is not tracked twice.
    unsafe {
        let fields = fields(handle);
        if (*fields).flags & TRACKED == 0 {
            (*fields).flags |= TRACKED;
            ffi::PyObject_GC_Track(handle.cast());
        }
    }
}

/// Shows the garbage collector what a queue has: the handle, or if it is hidden what it refers to. If somebody else has a
/// hidden handle, it is not for the queue alone to say that these references are garbage; so they are not shown.
///
/// # Safety
/// Called from a traverse function, with its arguments; the queue's reference is to a live object.
pub(crate) unsafe fn visit_queued(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if !is_ours(handle) || (*fields(handle)).flags & TRACKED != 0 {
            return visit(handle, argument);
        }
        if ffi::Py_REFCNT(handle) == 1 { visit_fields(handle, visit, argument) } else { 0 }
    }
}

unsafe fn visit_fields(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: every field is null or an owned reference.
    unsafe {
        let fields = fields(handle);
        let [_, first, second, third] = (*fields).arguments;
        let Fields { loop_, callback, context, tuple, source_traceback, .. } = *fields;
        for reference in [loop_, callback, context, first, second, third, tuple, source_traceback] {
            if !reference.is_null() {
                let status = visit(reference, argument);
                if status != 0 {
                    return status;
                }
            }
        }
        0
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

/// Calls the callback, in the context that is current. What it raises stays raised.
///
/// # Safety
/// `handle` is a handle of ours that is not cancelled, and the caller has a reference to it.
#[inline]
pub(crate) unsafe fn call(handle: *mut PyObject) -> Result<()> {
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
        let result = Owned::returned(result);
        if (*fields).flags & CANCELLED != 0 {
            forget_call(handle);
        }
        result.map(drop)
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
unsafe fn forget_call(handle: *mut PyObject) {
    // SAFETY: the fields are emptied before anything is let go of.
    unsafe {
        let fields = fields(handle);
        let callback = ptr::replace(&raw mut (*fields).callback, null_mut());
        let [_, first, second, third] = ptr::replace(&raw mut (*fields).arguments, [null_mut(); 1 + INLINE]);
        let tuple = ptr::replace(&raw mut (*fields).tuple, null_mut());
        (*fields).count = 0;
        for reference in [callback, first, second, third, tuple] {
            ffi::Py_XDECREF(reference);
        }
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
            // With callback and arguments gone, nobody could tell any more what it was.
            (*fields).flags |= RUNNING;
            let repr = Owned::returned(ffi::PyObject_Repr(handle));
            (*fields).flags &= !RUNNING;
            ffi::Py_XDECREF(ptr::replace(&raw mut (*fields).repr, repr?.into_ptr()));
        }
        if (*fields).flags & RUNNING == 0 {
            forget_call(handle);
        }
        Ok(())
    }
}

unsafe extern "C" fn run_method(handle: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    guard(null_mut(), || nothing(unsafe { run_alone(handle) }))
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
        let context = Owned::new_reference((*fields(handle)).context);
        let outcome = check(ffi::PyContext_Enter(context.as_ptr())).and_then(|()| {
            let outcome = call(handle);
            check(ffi::PyContext_Exit(context.as_ptr())).and(outcome)
        });
        outcome.or_else(|Raised| report(handle))
    }
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

unsafe extern "C" fn get_callback(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { or_none((*fields(handle)).callback) }
}

unsafe extern "C" fn get_arguments(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    guard(null_mut(), || {
        // SAFETY: Python calls it with a live handle of ours. As many arguments are set as `count` says, unless there is a
        // tuple of them.
        unsafe {
            let fields = fields(handle);
            if (*fields).callback.is_null() || !(*fields).tuple.is_null() {
                return or_none((*fields).tuple);
            }
            let arguments = (*fields).arguments;
            crate::object::pointer(tuple(&arguments[1..=(*fields).count as usize]))
        }
    })
}

unsafe extern "C" fn get_context(handle: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with a live handle of ours.
    unsafe { or_none((*fields(handle)).context) }
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

pub(crate) unsafe extern "C" fn traverse(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with a live handle of ours. Its type lives for ever and needs no visit.
    unsafe { visit_fields(handle, visit, argument) }
}

pub(crate) unsafe extern "C" fn clear(handle: *mut PyObject) -> c_int {
    // SAFETY: the collector calls it with a live handle of ours; each field is emptied before it is let go of.
    guard(0, || unsafe {
        forget_call(handle);
        let fields = fields(handle);
        (*fields).flags |= CANCELLED;
        for field in [&raw mut (*fields).context, &raw mut (*fields).source_traceback] {
            ffi::Py_XDECREF(ptr::replace(field, null_mut()));
        }
        0
    })
}

unsafe extern "C" fn dealloc(handle: *mut PyObject) {
    // SAFETY: Python calls it with a handle that nobody has any more; it is of the type whose dead these are.
    guard((), || unsafe { bury(handle, &KEPT_HANDLES) });
}

/// Handles that refer to handles that refer to handles: deeper than this, the next one waits for its turn.
const DEEPEST: usize = 50;

/// Dead handles whose turn has not come, and how many are being buried inside each other.
struct Graveyard {
    waiting: UnsafeCell<Vec<(*mut PyObject, &'static Kept)>>,
    depth: UnsafeCell<usize>,
}

// SAFETY: only touched with the interpreter lock held.
unsafe impl Sync for Graveyard {}

static GRAVEYARD: Graveyard = Graveyard { waiting: UnsafeCell::new(Vec::new()), depth: UnsafeCell::new(0) };

/// Ends a handle: lets go of all that it refers to, then keeps its memory or frees it.
///
/// # Safety
/// Called from `tp_dealloc` of the type that `kept` is for.
pub(crate) unsafe fn bury(handle: *mut PyObject, kept: &'static Kept) {
    // SAFETY: nobody has the handle. Nothing is called while either cell is borrowed. From here on neither the collector nor a
    // weak reference leads to it, so it can wait.
    unsafe {
        if (*fields(handle)).flags & TRACKED != 0 {
            ffi::PyObject_GC_UnTrack(handle.cast());
        }
        if !(*weak_references(handle)).is_null() {
            ffi::PyObject_ClearWeakRefs(handle);
        }
        let depth = GRAVEYARD.depth.get();
        if *depth >= DEEPEST {
            (*GRAVEYARD.waiting.get()).push((handle, kept));
            return;
        }
        *depth += 1;
        bury_one(handle, kept);
        *depth -= 1;
        while *depth == 0
            && let Some((handle, kept)) = (*GRAVEYARD.waiting.get()).pop()
        {
            *depth += 1;
            bury_one(handle, kept);
            *depth -= 1;
        }
    }
}

/// Where an object has its list of weak references.
unsafe fn weak_references(handle: *mut PyObject) -> *mut *mut PyObject {
    // SAFETY: the type says where; in some versions, before the object's head.
    unsafe { handle.byte_offset((*ffi::Py_TYPE(handle)).tp_weaklistoffset).cast() }
}

unsafe fn bury_one(handle: *mut PyObject, kept: &Kept) {
    // SAFETY: nobody has the handle, so its fields are ours to empty. What they referred to may run anything when it goes,
    // but nothing finds the handle, which goes to the list last.
    unsafe {
        let fields = fields(handle);
        let Fields { loop_, callback, context, tuple, source_traceback, repr, .. } = *fields;
        let [_, first, second, third] = (*fields).arguments;
        ptr::write_bytes(fields, 0, 1);
        for reference in [callback, first, second, third, context, loop_, tuple, source_traceback, repr] {
            ffi::Py_XDECREF(reference);
        }
        empty_inherited_slots(handle);
        let kept = &mut *kept.0.get();
        if kept.len() < KEPT {
            kept.push(handle);
        } else {
            let its_type = ffi::Py_TYPE(handle);
            ffi::PyObject_GC_Del(handle.cast());
            ffi::Py_DECREF(its_type.cast());
        }
    }
}

/// Empties the slots of `asyncio.Handle`. They are always empty, except by somebody who went past our attributes to write there.
unsafe fn empty_inherited_slots(handle: *mut PyObject) {
    // SAFETY: between an object's head and our fields there are the base classes' slots, references or null, and in some
    // versions the list of weak references, which is not ours to touch.
    unsafe {
        let mut slot = handle.add(1).cast::<*mut PyObject>();
        let end = fields(handle).cast::<*mut PyObject>();
        let weak_references = weak_references(handle);
        while slot < end {
            if slot != weak_references && !(*slot).is_null() {
                ffi::Py_DECREF(ptr::replace(slot, null_mut()));
            }
            slot = slot.add(1);
        }
    }
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
