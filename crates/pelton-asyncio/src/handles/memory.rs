//! The memory of handles of both types.
//!
//! Programs create millions of handles, so up to [`KEPT`] deallocated ones are kept for reuse. Handles that only a
//! queue refers to are not tracked by the garbage collector; the loop [visits](visit_queued) their references
//! instead. When a queue drops its reference to a handle that other objects refer to too, the handle is
//! [tracked](release) like any other object.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::event_loop::state;
use crate::handles::handle::{CANCELLED, Fields, SHARES_CONTEXT, TRACKED, fields, forget_call, is_ours};
use crate::handles::timer;
use pelton_cpython::object::{Owned, Raised, Result};
use pelton_cpython::panic::guard;

/// Number of deallocated handles kept of each type: 100 KiB.
const KEPT: usize = 512;

/// Deallocated handles. Each keeps its reference to its type.
pub(crate) struct Kept(UnsafeCell<Vec<*mut PyObject>>);

// SAFETY: it is only accessed with the interpreter lock held.
unsafe impl Sync for Kept {}

impl Kept {
    pub(crate) const fn new() -> Kept {
        Kept(UnsafeCell::new(Vec::new()))
    }
}

/// Returns an empty handle.
///
/// # Safety
/// `its_type` is one of our two types, and `kept` is the list of that type.
#[inline]
pub(crate) unsafe fn allocate(its_type: *mut PyTypeObject, kept: &Kept) -> Result<Owned> {
    // SAFETY: the lock is held, and nothing is called while the list is borrowed. A handle from the list is
    // complete except for its reference count. Memory from the allocator is zeroed, which is valid for all fields,
    // and tracked, which is undone.
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

// pyo3 does not declare these. CPython uses the first for its own free lists.
unsafe extern "C" {
    fn _Py_NewReference(object: *mut PyObject);
    static mut PyMethod_Type: PyTypeObject;
    fn PyMethod_Function(method: *mut PyObject) -> *mut PyObject;
    fn PyMethod_Self(method: *mut PyObject) -> *mut PyObject;
}

/// Drops a queue's reference. If others refer to the handle too, the garbage collector tracks it from now on.
///
/// # Safety
/// The caller owns the reference and gives it away. No Rust reference into a loop's state is held.
#[inline]
pub(crate) unsafe fn release(handle: *mut PyObject) {
    // SAFETY: the caller's reference keeps the handle alive until the last line.
    unsafe {
        track_if_shared(handle);
        ffi::Py_DECREF(handle);
    }
}

/// Returns whether dropping a queue's reference to a handle that was called and not cancelled runs no code: no
/// finalizer and no weak reference callback. May return false in cases where none would run.
///
/// # Safety
/// `handle` is alive, and the caller has a reference to it.
#[inline]
pub(crate) unsafe fn is_released_silently(handle: *mut PyObject) -> bool {
    // SAFETY: the caller keeps the handle alive. Fields of our handles, and of a method, are null or owned references.
    unsafe {
        if ffi::Py_REFCNT(handle) > 1 {
            return true;
        }
        if !is_ours(handle) {
            return false;
        }
        let fields = fields(handle);
        let Fields { callback, context, tuple, source_traceback, repr, count, .. } = *fields;
        if !(tuple.is_null() && source_traceback.is_null() && repr.is_null())
            || (!context.is_null() && !stays(context, 1))
        {
            return false;
        }
        let when = timer::when_object(handle);
        if !when.is_null() && !stays(when, 1) {
            return false;
        }
        if count == 0 && !callback.is_null() && stays(callback, 1) {
            return true;
        }
        let [_, first, second, third] = (*fields).arguments;
        let mut given_up = [callback, first, second, third, null_mut()];
        if !callback.is_null() && ffi::Py_REFCNT(callback) == 1 {
            if ffi::Py_TYPE(callback) != &raw mut PyMethod_Type || !(*weak_references(callback)).is_null() {
                return false;
            }
            // The method is freed, which drops its function and its `self`.
            (given_up[0], given_up[4]) = (PyMethod_Function(callback), PyMethod_Self(callback));
        }
        let times = |object| given_up.iter().filter(|&&other| other == object).count() as ffi::Py_ssize_t;
        given_up.iter().all(|&object| object.is_null() || stays(object, times(object)))
    }
}

/// Returns whether an object survives, or is freed without running code, when `references` references to it are
/// dropped.
#[inline]
unsafe fn stays(object: *mut PyObject, references: ffi::Py_ssize_t) -> bool {
    // SAFETY: the caller guarantees that the object is alive.
    unsafe { ffi::Py_REFCNT(object) > references || is_plain(object) }
}

/// Returns whether an object is of a type that is freed without running code.
#[inline]
pub(crate) unsafe fn is_plain(object: *mut PyObject) -> bool {
    // SAFETY: the caller guarantees that the object is alive. The types live as long as the interpreter.
    unsafe {
        let its_type = ffi::Py_TYPE(object);
        its_type == &raw mut ffi::PyLong_Type
            || its_type == &raw mut ffi::PyFloat_Type
            || its_type == &raw mut ffi::PyUnicode_Type
            || its_type == &raw mut ffi::PyBytes_Type
    }
}

/// Lets the garbage collector track a queued handle if others refer to it too.
///
/// # Safety
/// `handle` is alive. The collector does not run.
pub(crate) unsafe fn track_if_shared(handle: *mut PyObject) {
    // SAFETY: the caller guarantees that the handle is alive.
    unsafe {
        if ffi::Py_REFCNT(handle) > 1 && is_ours(handle) {
            track(handle);
        }
    }
}

/// Lets the garbage collector track a handle.
///
/// # Safety
/// `handle` is one of our handles and alive.
pub(crate) unsafe fn track(handle: *mut PyObject) {
    // SAFETY: the caller guarantees that the handle is ours and alive. Its fields can be traversed at any time, and
    // the flag keeps it from being tracked twice.
    unsafe {
        let fields = fields(handle);
        if (*fields).flags & TRACKED == 0 {
            (*fields).flags |= TRACKED;
            ffi::PyObject_GC_Track(handle.cast());
        }
    }
}

/// Visits a queued handle for the garbage collector, or what it refers to if it is not tracked. If others refer to
/// an untracked handle, the queue cannot know whether its references are garbage, so they are not visited. Such a
/// handle is [tracked soon](state::track_shared_soon), and the next collection visits it.
///
/// # Safety
/// Called from a traverse function with its arguments. The queue owns a reference to the handle.
pub(crate) unsafe fn visit_queued(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that the handle is alive and passes the arguments of the traversal.
    unsafe {
        if !is_ours(handle) || (*fields(handle)).flags & TRACKED != 0 {
            return visit(handle, argument);
        }
        if ffi::Py_REFCNT(handle) == 1 {
            return visit_fields(handle, visit, argument);
        }
        state::track_shared_soon();
        0
    }
}

unsafe fn visit_fields(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the callers guarantee that the handle is ours and alive. Every field is null or an owned reference.
    unsafe {
        let fields = fields(handle);
        let [_, first, second, third] = (*fields).arguments;
        let Fields { loop_, callback, context, tuple, source_traceback, repr, .. } = *fields;
        let when = timer::when_object(handle);
        for reference in [loop_, callback, context, first, second, third, tuple, source_traceback, repr, when] {
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

pub(crate) unsafe extern "C" fn traverse(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with one of our handles, alive. Its type is never freed and needs no visit.
    unsafe { visit_fields(handle, visit, argument) }
}

pub(crate) unsafe extern "C" fn clear(handle: *mut PyObject) -> c_int {
    // SAFETY: the collector calls it with one of our handles, alive. Each field is emptied before its reference is
    // dropped.
    guard(0, || unsafe {
        forget_call(handle);
        let fields = fields(handle);
        (*fields).flags = (*fields).flags & !SHARES_CONTEXT | CANCELLED;
        for field in [&raw mut (*fields).context, &raw mut (*fields).source_traceback] {
            ffi::Py_XDECREF(ptr::replace(field, null_mut()));
        }
        ffi::Py_XDECREF(timer::take_when_object(handle));
        0
    })
}

/// Maximum depth of nested deallocations. Handles that refer to handles nest; beyond this depth they are deferred.
const DEEPEST: usize = 50;

/// Deferred handles, and the current depth of nested deallocations.
struct Graveyard {
    waiting: UnsafeCell<Vec<(*mut PyObject, &'static Kept)>>,
    depth: UnsafeCell<usize>,
}

// SAFETY: it is only accessed with the interpreter lock held.
unsafe impl Sync for Graveyard {}

static GRAVEYARD: Graveyard = Graveyard { waiting: UnsafeCell::new(Vec::new()), depth: UnsafeCell::new(0) };

/// Deallocates a handle: drops all its references, then keeps or frees its memory.
///
/// # Safety
/// Called from `tp_dealloc` of the type whose list is `kept`.
pub(crate) unsafe fn bury(handle: *mut PyObject, kept: &'static Kept) {
    // SAFETY: nothing refers to the handle. Nothing is called while either cell is borrowed. After this block
    // neither the collector nor a weak reference leads to the handle, so it can be deferred.
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

/// Returns the address of an object's list of weak references. Its type must support them.
unsafe fn weak_references(handle: *mut PyObject) -> *mut *mut PyObject {
    // SAFETY: the type has the offset; in some versions it is negative, before the object's header.
    unsafe { handle.byte_offset((*ffi::Py_TYPE(handle)).tp_weaklistoffset).cast() }
}

unsafe fn bury_one(handle: *mut PyObject, kept: &Kept) {
    // SAFETY: nothing refers to the handle, so its fields can be emptied. Dropping what they referred to may run
    // any code, but that code cannot find the handle, which is added to the list last.
    unsafe {
        let fields = fields(handle);
        let Fields { loop_, callback, context, tuple, source_traceback, repr, .. } = *fields;
        let [_, first, second, third] = (*fields).arguments;
        let when = timer::take_when_object(handle);
        ptr::write_bytes(fields, 0, 1);
        // The order in which CPython clears the slots of asyncio's own handles.
        for reference in [when, third, second, first, tuple, callback, context, loop_, repr, source_traceback] {
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

/// Empties the slots of `asyncio.Handle`. They are always empty unless the program wrote to them past our attributes.
unsafe fn empty_inherited_slots(handle: *mut PyObject) {
    // SAFETY: between the object's header and our fields are only the slots of the base classes, references or
    // null, and in some versions the list of weak references, which is skipped.
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
