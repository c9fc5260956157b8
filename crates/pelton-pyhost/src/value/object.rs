//! References to Python objects that any thread may drop.
//!
//! A reference count may only be changed with the interpreter lock held. A thread that drops the last [`Object`]
//! without the lock queues the reference, and a thread with the lock releases it later: the host's loops do so in
//! each batch.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

/// A reference to a Python object. Clones share one reference count, so cloning and dropping do not need the
/// interpreter lock.
///
/// Two are equal if they refer to the same object.
#[derive(Clone)]
pub struct Object(Arc<Reference>);

struct Reference(NonNull<PyObject>);

// SAFETY: only the address is shared. The object behind it is only accessed with the interpreter lock held.
unsafe impl Send for Reference {}
// SAFETY: as for `Send`.
unsafe impl Sync for Reference {}

/// A reference dropped without the lock.
struct Dropped(NonNull<PyObject>);

// SAFETY: as for `Reference`.
unsafe impl Send for Dropped {}

static DROPPED: SegQueue<Dropped> = SegQueue::new();

impl Object {
    /// Creates a reference to an object.
    pub fn new(object: &Bound<'_, PyAny>) -> Object {
        // SAFETY: `Bound` shows that the object is alive and that the lock is held.
        unsafe { Object::from_pointer(object.as_ptr()) }
    }

    /// Creates a new reference to an object.
    ///
    /// # Safety
    /// The object is alive, and the interpreter lock is held.
    pub(crate) unsafe fn from_pointer(object: *mut PyObject) -> Object {
        // SAFETY: the caller guarantees that the object is alive, so the pointer is not null.
        unsafe {
            ffi::Py_INCREF(object);
            Object(Arc::new(Reference(NonNull::new_unchecked(object))))
        }
    }

    /// Returns the object, for code that holds the interpreter lock.
    pub fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        // SAFETY: `py` shows that the lock is held, and the object lives as long as this value.
        unsafe { Bound::from_borrowed_ptr(py, self.as_ptr()) }
    }

    /// Returns the address. The object may be accessed with the interpreter lock held, while this value lives.
    pub(crate) fn as_ptr(&self) -> *mut PyObject {
        self.0.0.as_ptr()
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.0.0 == other.0.0
    }
}

impl Eq for Object {}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({:p})", self.0.0)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if has_lock() {
            // SAFETY: this value owns the reference, and the lock is held.
            unsafe { ffi::Py_DECREF(self.0.as_ptr()) };
        } else {
            DROPPED.push(Dropped(self.0));
        }
    }
}

/// Returns whether this thread holds the interpreter lock of the main interpreter.
///
/// `PyGILState_Check` returns true for every thread once a second interpreter has been created.
pub(crate) fn has_lock() -> bool {
    // SAFETY: these functions may be called at any time. A thread that holds the lock has a current state. Before
    // Python 3.12 the current state belongs to whichever thread holds the lock, so it is compared with this
    // thread's own.
    unsafe {
        if ffi::Py_IsInitialized() == 0 {
            return false;
        }
        let current = ffi::compat::PyThreadState_GetUnchecked();
        !current.is_null() && current == ffi::PyGILState_GetThisThreadState()
    }
}

/// Releases all objects that were dropped by threads without the interpreter lock, and returns their number. Hosts
/// call this themselves. A program that uses [`Object`] without a host has to call it now and then.
pub fn release_dropped(_: Python<'_>) -> usize {
    // SAFETY: `py` shows that the lock is held.
    unsafe { release() }
}

/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn release() -> usize {
    let mut released = 0;
    // Only as many as there are now, because finalizers may drop more.
    for _ in 0..DROPPED.len() {
        let Some(Dropped(object)) = DROPPED.pop() else { break };
        // SAFETY: the queue owned the reference, and the caller holds the lock.
        unsafe { ffi::Py_DECREF(object.as_ptr()) };
        released += 1;
    }
    released
}

/// Returns whether there is anything to release. Costs two loads.
#[allow(dead_code, reason = "only the host uses it")]
pub(crate) fn has_dropped() -> bool {
    !DROPPED.is_empty()
}
