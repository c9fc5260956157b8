//! The memory of handles, of both types.
//!
//! Handles come and go by the million, so up to [`KEPT`] dead ones are kept, and they are hidden from the garbage collector while
//! only a queue has them. The loop [shows](visit_queued) the collector what such handles refer to. As soon as the queue lets
//! go of a handle that somebody else has too, it is [tracked](release) like any object.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};

use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::core;
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

// pyo3 does not declare these. The first is what CPython's own lists of dead objects use.
unsafe extern "C" {
    fn _Py_NewReference(object: *mut PyObject);
    static mut PyMethod_Type: PyTypeObject;
    fn PyMethod_Function(method: *mut PyObject) -> *mut PyObject;
    fn PyMethod_Self(method: *mut PyObject) -> *mut PyObject;
}

/// A queue's reference is given up. If others have the handle too, the garbage collector is told of it from now on.
///
/// # Safety
/// The reference is the caller's to give away. No Rust reference into a loop's state is held.
#[inline]
pub(crate) unsafe fn release(handle: *mut PyObject) {
    // SAFETY: it is alive as long as there is that reference.
    unsafe {
        track_if_shared(handle);
        ffi::Py_DECREF(handle);
    }
}

/// Whether giving up a queue's reference to a handle that was called, and was not cancelled meanwhile, runs no code: no finalizer,
/// and no callback of a weak reference. It may say no where the answer is yes.
///
/// # Safety
/// `handle` is alive, and the caller has a reference to it.
#[inline]
pub(crate) unsafe fn is_released_silently(handle: *mut PyObject) -> bool {
    // SAFETY: fields of a handle of ours are null or owned references, as are those of a method.
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
        let when = timer_handle::when_object(handle);
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
            // The method goes, and what it refers to is given up in its place.
            (given_up[0], given_up[4]) = (PyMethod_Function(callback), PyMethod_Self(callback));
        }
        let times = |object| given_up.iter().filter(|&&other| other == object).count() as ffi::Py_ssize_t;
        given_up.iter().all(|&object| object.is_null() || stays(object, times(object)))
    }
}

/// Whether an object stays alive, or goes without any code being run, when so many references to it are given up.
#[inline]
unsafe fn stays(object: *mut PyObject, references: ffi::Py_ssize_t) -> bool {
    // SAFETY: as the caller says, it is alive.
    unsafe { ffi::Py_REFCNT(object) > references || is_plain(object) }
}

/// Whether an object is of a type whose objects can go without any code being run.
#[inline]
pub(crate) unsafe fn is_plain(object: *mut PyObject) -> bool {
    // SAFETY: as the caller says, it is alive; the types are there as long as the interpreter is.
    unsafe {
        let its_type = ffi::Py_TYPE(object);
        its_type == &raw mut ffi::PyLong_Type
            || its_type == &raw mut ffi::PyFloat_Type
            || its_type == &raw mut ffi::PyUnicode_Type
            || its_type == &raw mut ffi::PyBytes_Type
    }
}

/// Tells the garbage collector of a handle that a queue has, if somebody else has it too.
///
/// # Safety
/// `handle` is alive. The collector does not run.
pub(crate) unsafe fn track_if_shared(handle: *mut PyObject) {
    // SAFETY: as the caller says.
    unsafe {
        if ffi::Py_REFCNT(handle) > 1 && is_ours(handle) {
            track(handle);
        }
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
/// hidden handle, it is not for the queue alone to say that these references are garbage; so they are not shown. Such a handle
/// is [tracked soon](core::track_shared_soon), so that the next collection finds out.
///
/// # Safety
/// Called from a traverse function, with its arguments; the queue's reference is to a live object.
pub(crate) unsafe fn visit_queued(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if !is_ours(handle) || (*fields(handle)).flags & TRACKED != 0 {
            return visit(handle, argument);
        }
        if ffi::Py_REFCNT(handle) == 1 {
            return visit_fields(handle, visit, argument);
        }
        core::track_shared_soon();
        0
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

/// Where an object, of a type whose objects can be referred to weakly, has its list of weak references.
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
        // In the order in which CPython empties the slots of asyncio's own handles.
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
