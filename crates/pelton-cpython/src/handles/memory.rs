//! The memory of handles of both types.
//!
//! Programs create millions of handles, so up to [`KEPT`] deallocated ones are kept for reuse. Handles that only a queue refers to are
//! not tracked by the garbage collector; the loop visits their references instead. When a queue drops its reference to a handle that
//! other objects refer to too, the handle is tracked like any other object.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::ptr::{self, null_mut};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use pelton::{Time, Wheel};
use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};
use pyo3::prelude::*;

use super::{CANCELLED, Fields, HANDLE_TYPE, Handle, QUEUED, Queued, SHARES_CONTEXT, TIMER_TYPE, TRACKED, is_ours};
use crate::call::returned;
use crate::object::Result;
use crate::panic::guard;
use crate::slot::{Collection, Slot, Traverse, Visitor};

/// Number of deallocated handles kept of each type: 100 KiB.
const KEPT: usize = 512;

/// Maximum depth of nested deallocations. Handles that refer to handles nest; beyond this depth they are deferred.
const DEEPEST: usize = 50;

/// Deallocated handles: those to reuse, by type, which keep the reference to their type; those that are deferred; and the current depth
/// of nested deallocations.
struct Freed {
    kept: [RefCell<Vec<*mut PyObject>>; 2],
    deferred: RefCell<Vec<(*mut PyObject, bool)>>,
    depth: Cell<usize>,
}

// SAFETY: it is only accessed with the interpreter lock held.
unsafe impl Sync for Freed {}

static FREED: Freed =
    Freed { kept: [const { RefCell::new(Vec::new()) }; 2], deferred: RefCell::new(Vec::new()), depth: Cell::new(0) };

// pyo3 does not declare these. CPython uses the first for its own free lists.
unsafe extern "C" {
    fn _Py_NewReference(object: *mut PyObject);
    static mut PyMethod_Type: PyTypeObject;
    fn PyMethod_Function(method: *mut PyObject) -> *mut PyObject;
    fn PyMethod_Self(method: *mut PyObject) -> *mut PyObject;
}

/// Returns an empty handle.
#[inline]
pub(super) fn allocate<const TIMER: bool>(py: Python<'_>) -> Result<Bound<'_, PyAny>> {
    let kept = FREED.kept[usize::from(TIMER)].borrow_mut().pop();
    // SAFETY: the lock is held. A handle from the list is complete except for its reference count. Memory from the allocator is zeroed,
    // which is valid for all fields but the key, which is written here, and tracked, which is undone.
    unsafe {
        if let Some(handle) = kept {
            _Py_NewReference(handle);
            return returned(py, handle);
        }
        let its_type = if TIMER { &TIMER_TYPE } else { &HANDLE_TYPE }.load(Ordering::Relaxed);
        let handle = returned(py, ffi::PyType_GenericAlloc(its_type, 0))?;
        ffi::PyObject_GC_UnTrack(handle.as_ptr().cast());
        if TIMER {
            let fields = handle.as_ptr().byte_add(super::OFFSET.load(Ordering::Relaxed)).cast::<super::TimerFields>();
            ptr::write(&raw mut (*fields).key, Cell::new(None));
        }
        Ok(handle)
    }
}

/// Returns whether the result of a callback and its handle can be dropped without running any code: no finalizer and no weak reference
/// callback. May return false in cases where none would run. If not, they must be dropped outside the callback's context, as in asyncio:
/// a finalizer would see the context's variables, and could not enter it.
#[inline]
pub fn goes_silently(result: Option<&Bound<'_, PyAny>>, handle: &Queued) -> bool {
    result.is_none_or(|result| stays(result.as_ptr(), 1)) && is_released_silently(handle)
}

/// Does this for a handle that was called and not cancelled.
#[inline]
fn is_released_silently(queued: &Queued) -> bool {
    let handle = queued.0.as_ptr();
    // SAFETY: the queue has a reference to the handle, and the lock is held. Fields of our handles, and of a method, are null or owned
    // references.
    unsafe {
        if ffi::Py_REFCNT(handle) > 1 {
            return true;
        }
        let Some(handle) = queued.ours(Python::assume_attached()) else { return false };
        let fields = handle.fields();
        if !fields.tuple.is_empty()
            || !fields.source_traceback.is_empty()
            || !fields.repr.is_empty()
            || !stays(fields.context.pointer(), 1)
            || handle.timer().is_some_and(|timer| !stays(timer.when_object.pointer(), 1))
        {
            return false;
        }
        let callback = fields.callback.pointer();
        if fields.count.get() == 0 && !callback.is_null() && stays(callback, 1) {
            return true;
        }
        let [first, second, third] = [0, 1, 2].map(|index| fields.arguments[index].pointer());
        let mut given_up = [callback, first, second, third, null_mut()];
        if !callback.is_null() && ffi::Py_REFCNT(callback) == 1 {
            if ffi::Py_TYPE(callback) != &raw mut PyMethod_Type || !(*weak_references(callback)).is_null() {
                return false;
            }
            // The method is freed, which drops its function and its `self`.
            (given_up[0], given_up[4]) = (PyMethod_Function(callback), PyMethod_Self(callback));
        }
        let times = |object| given_up.iter().filter(|&&other| other == object).count() as ffi::Py_ssize_t;
        given_up.iter().all(|&object| stays(object, times(object)))
    }
}

/// Returns whether an object survives, or is freed without running code, when `references` references to it are dropped.
#[inline]
fn stays(object: *mut PyObject, references: ffi::Py_ssize_t) -> bool {
    // SAFETY: the callers have references to the object, or it is null.
    unsafe { object.is_null() || ffi::Py_REFCNT(object) > references || is_plain(ffi::Py_TYPE(object)) }
}

/// Returns whether objects of a type are freed without running code.
#[inline]
fn is_plain(its_type: *mut PyTypeObject) -> bool {
    its_type == &raw mut ffi::PyLong_Type
        || its_type == &raw mut ffi::PyFloat_Type
        || its_type == &raw mut ffi::PyUnicode_Type
        || its_type == &raw mut ffi::PyBytes_Type
}

/// Lets the garbage collector track a queued handle if others refer to it too.
#[inline]
pub(super) fn track_if_shared(queued: &Queued) {
    let handle = queued.0.as_ptr();
    // SAFETY: the queue has a reference to the handle, and the lock is held.
    unsafe {
        if ffi::Py_REFCNT(handle) > 1 && is_ours(handle) {
            track(Handle(Borrowed::from_ptr(Python::assume_attached(), handle)));
        }
    }
}

/// Lets the garbage collector track a handle.
pub(super) fn track(handle: Handle<'_, '_>) {
    let fields = handle.fields();
    if !fields.has(TRACKED) {
        fields.add(TRACKED);
        // SAFETY: the handle is alive and its fields can be traversed at any time. The flag keeps it from being tracked twice.
        unsafe { ffi::PyObject_GC_Track(handle.as_ptr().cast()) };
    }
}

// SAFETY: a queue owns one reference to the handle. It reports that, or, if the handle is not tracked and nothing else refers to it, the
// references of the handle in its place. If others refer to an untracked handle, the queue cannot know whether its references are
// garbage, so they are not reported. Such a handle is tracked soon, and the next collection visits it.
unsafe impl Traverse for Queued {
    fn traverse(&self, visitor: &mut Visitor<'_>) {
        let handle = self.0.as_ptr();
        // SAFETY: the collector runs with the lock held, and the queue has a reference to the handle.
        let (py, count) = unsafe { (Python::assume_attached(), ffi::Py_REFCNT(handle)) };
        match self.ours(py) {
            None => visitor.object(handle),
            Some(ours) if ours.fields().has(TRACKED) => visitor.object(handle),
            Some(ours) if count == 1 => visit_fields(ours, visitor),
            Some(_) => track_shared_soon(),
        }
    }

    fn clear(&self, _: Python<'_>) {
        // The owner of a queue takes it out and releases its handles.
    }
}

impl Collection for Wheel<Queued> {
    type Item = Queued;

    fn each(&self, f: &mut dyn FnMut(&Queued)) {
        self.iter().for_each(|(_, timer)| f(timer));
    }

    fn take_all(&mut self) -> Self {
        std::mem::replace(self, Wheel::new(Time::ZERO))
    }
}

fn visit_fields(handle: Handle<'_, '_>, visitor: &mut Visitor<'_>) {
    let Fields { its_loop, callback, context, arguments, tuple, source_traceback, repr, .. } = handle.fields();
    for slot in [its_loop, callback, context, tuple, source_traceback, repr] {
        slot.traverse(visitor);
    }
    arguments.traverse(visitor);
    if let Some(timer) = handle.timer() {
        timer.when_object.traverse(visitor);
    }
}

pub(super) unsafe extern "C" fn traverse(handle: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with one of our handles, and with its own arguments. Its type is never freed and needs no visit.
    unsafe {
        let handle = Handle(Borrowed::from_ptr(Python::assume_attached(), handle));
        Visitor::run(visit, argument, |visitor| visit_fields(handle, visitor))
    }
}

pub(super) unsafe extern "C" fn clear(handle: *mut PyObject) -> c_int {
    guard(0, || {
        // SAFETY: the collector calls it with one of our handles, and with the lock held.
        let handle = unsafe { Handle(Borrowed::from_ptr(Python::assume_attached(), handle)) };
        let (py, fields) = (handle.py(), handle.fields());
        fields.take_call(py).into_iter().for_each(drop);
        fields.remove(SHARES_CONTEXT);
        fields.add(CANCELLED);
        fields.context.clear(py);
        fields.source_traceback.clear(py);
        if let Some(timer) = handle.timer() {
            timer.when_object.clear(py);
        }
        0
    })
}

/// Deallocates a handle: drops all its references, then keeps or frees its memory.
pub(super) unsafe extern "C" fn dealloc<const TIMER: bool>(handle: *mut PyObject) {
    guard((), || {
        // SAFETY: Python calls it with a handle of this type to which there are no references, and with the lock held. After this
        // neither the collector nor a weak reference leads to the handle, so it can be deferred.
        unsafe {
            let flags = Handle(Borrowed::from_ptr(Python::assume_attached(), handle)).fields().flags.get();
            if flags & QUEUED != 0 {
                freed_in_queue();
            }
            if flags & TRACKED != 0 {
                ffi::PyObject_GC_UnTrack(handle.cast());
            }
            if !(*weak_references(handle)).is_null() {
                ffi::PyObject_ClearWeakRefs(handle);
            }
        }
        let depth = FREED.depth.get();
        if depth >= DEEPEST {
            FREED.deferred.borrow_mut().push((handle, TIMER));
            return;
        }
        FREED.depth.set(depth + 1);
        bury(handle, TIMER);
        if depth == 0 {
            bury_deferred();
        }
        FREED.depth.set(depth);
    });
}

/// Ends the process because someone has dropped a reference that it did not own: a queue would use freed memory.
#[cold]
fn freed_in_queue() -> ! {
    eprintln!(
        "pelton: a handle was freed while a queue refers to it; some code has released a reference that it did not own"
    );
    std::process::abort();
}

/// Deallocates the handles that were deferred.
fn bury_deferred() {
    loop {
        let Some((handle, timer)) = FREED.deferred.borrow_mut().pop() else { return };
        bury(handle, timer);
    }
}

/// Returns the address of an object's list of weak references. Its type must support them.
unsafe fn weak_references(handle: *mut PyObject) -> *mut *mut PyObject {
    // SAFETY: the type has the offset; in some versions it is negative, before the object's header.
    unsafe { handle.byte_offset((*ffi::Py_TYPE(handle)).tp_weaklistoffset).cast() }
}

/// Drops the references of a handle to which there are none. What that runs cannot find the handle, which is added to the list last.
fn bury(handle: *mut PyObject, timer: bool) {
    // SAFETY: the callers pass a handle that is being deallocated, and hold the lock. Its memory is still in place.
    let this = unsafe { Handle(Borrowed::from_ptr(Python::assume_attached(), handle)) };
    let (py, fields) = (this.py(), this.fields());
    fields.flags.set(0);
    // The order in which CPython clears the slots of asyncio's own handles.
    if let Some(timer) = this.timer() {
        timer.when_object.clear(py);
    }
    let [first, second, third] = &fields.arguments;
    if fields.count.replace(0) > 0 {
        third.clear(py);
        second.clear(py);
        first.clear(py);
        fields.tuple.clear(py);
    }
    fields.callback.clear(py);
    fields.context.clear(py);
    fields.its_loop.clear(py);
    // Only handles of a loop in debug mode have these.
    fields.repr.clear(py);
    fields.source_traceback.clear(py);
    empty_inherited_slots(handle, fields);
    let mut kept = FREED.kept[usize::from(timer)].borrow_mut();
    if kept.len() < KEPT {
        kept.push(handle);
        return;
    }
    drop(kept);
    // SAFETY: nothing refers to the handle, which owns no references but the one to its type.
    unsafe {
        let its_type = ffi::Py_TYPE(handle);
        ffi::PyObject_GC_Del(handle.cast());
        ffi::Py_DECREF(its_type.cast());
    }
}

/// Empties the slots of `asyncio.Handle`. They are always empty unless the program wrote to them past our attributes.
fn empty_inherited_slots(handle: *mut PyObject, fields: &Fields) {
    // SAFETY: between the object's header and our fields are only the slots of the base classes, references or null, and in some versions
    // the list of weak references, which is skipped.
    unsafe {
        let mut slot = handle.add(1).cast::<*mut PyObject>();
        let end = ptr::from_ref(fields).cast_mut().cast::<*mut PyObject>();
        let slots = slice::from_raw_parts(slot.cast::<usize>(), end.offset_from(slot) as usize);
        if slots.iter().fold(0, |any, slot| any | slot) == 0 {
            return;
        }
        let weak_references = weak_references(handle);
        while slot < end {
            if slot != weak_references && !(*slot).is_null() {
                ffi::Py_DECREF(ptr::replace(slot, null_mut()));
            }
            slot = slot.add(1);
        }
    }
}

/// Whether a call of the hook is pending.
static TRACKING: AtomicBool = AtomicBool::new(false);

/// Makes the main thread track the queued handles that are shared. Called when the garbage collector finds an untracked handle that has
/// other references than the queue's: the handle cannot be tracked while the collector runs.
pub fn track_shared_soon() {
    if !TRACKING.swap(true, Ordering::Relaxed) {
        // SAFETY: the function may be called at any time with the lock held. Adding it calls and allocates nothing.
        let queued = unsafe { ffi::Py_AddPendingCall(Some(track_shared), null_mut()) };
        // If too many calls are pending already, the next collection tries again.
        TRACKING.store(queued == 0, Ordering::Relaxed);
    }
}

extern "C" fn track_shared(_: *mut c_void) -> c_int {
    TRACKING.store(false, Ordering::Relaxed);
    // SAFETY: the main thread calls it between two instructions of Python, with the lock held. The collector does not run then.
    let py = unsafe { Python::assume_attached() };
    (super::hooks().each_queued)(py, &mut |queued| track_if_shared(queued));
    0
}

/// A slot, as far as this file is concerned.
const _: () = assert!(size_of::<Slot>() == size_of::<*mut PyObject>());
