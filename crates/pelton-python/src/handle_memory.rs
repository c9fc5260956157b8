//! The memory of handles, of both types.
//!
//! Handles come and go by the million, so up to [`KEPT`] dead ones are kept, and they are hidden from the garbage collector while
//! only a queue has them. The loop [shows](visit_queued) the collector what such handles refer to. As soon as the queue lets
//! go of a handle that somebody else has too, it is [tracked](release) like any object.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::handle::{CANCELLED, Fields, SHARES_CONTEXT, TRACKED, fields, forget_call, is_ours};
use crate::object::{Owned, Raised, Result};
use crate::panic::guard;
use crate::timer_handle;

/// Dead handles that are kept of each type: 100 KiB.
const KEPT: usize = 512;

/// Dead handles, each with its reference to its type.
pub(crate) struct Kept(UnsafeCell<Vec<*mut PyObject>>);

// SAFETY: only touched with the interpreter lock held.
unsafe impl Sync for Kept {}

impl Kept {
    pub(crate) const fn new() -> Kept {
        Kept(UnsafeCell::new(Vec::new()))
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
        let Fields { loop_, callback, context, tuple, source_traceback, repr, .. } = *fields;
        let when = timer_handle::when_object(handle);
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
    // SAFETY: the collector calls it with a live handle of ours. Its type lives for ever and needs no visit.
    unsafe { visit_fields(handle, visit, argument) }
}

pub(crate) unsafe extern "C" fn clear(handle: *mut PyObject) -> c_int {
    // SAFETY: the collector calls it with a live handle of ours; each field is emptied before it is let go of.
    guard(0, || unsafe {
        forget_call(handle);
        let fields = fields(handle);
        (*fields).flags = (*fields).flags & !SHARES_CONTEXT | CANCELLED;
        for field in [&raw mut (*fields).context, &raw mut (*fields).source_traceback] {
            ffi::Py_XDECREF(ptr::replace(field, null_mut()));
        }
        ffi::Py_XDECREF(timer_handle::take_when_object(handle));
        0
    })
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
        let when = timer_handle::take_when_object(handle);
        ptr::write_bytes(fields, 0, 1);
        for reference in [callback, first, second, third, context, loop_, tuple, source_traceback, repr, when] {
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
