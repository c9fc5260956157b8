//! References to Python objects that any thread may drop.
//!
//! A reference count may only be changed with the interpreter lock held. A thread that drops the last [`Object`] without it
//! puts the reference into a queue, and whoever has the lock next lets go of what is in there: the host's loops do so
//! in each batch.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

/// A Python object. Copies of this share one reference, so that neither copying nor dropping needs the interpreter lock.
///
/// It is equal to another if both are the same object.
#[derive(Clone)]
pub struct Object(Arc<Reference>);

struct Reference(NonNull<PyObject>);

// SAFETY: the address may be known everywhere; what it points at is touched with the interpreter lock held only.
unsafe impl Send for Reference {}
// SAFETY: as above.
unsafe impl Sync for Reference {}

/// A reference whose owner had not got the lock.
struct Dropped(NonNull<PyObject>);

// SAFETY: as for `Reference`.
unsafe impl Send for Dropped {}

static DROPPED: SegQueue<Dropped> = SegQueue::new();

impl Object {
    /// A reference to an object.
    pub fn new(object: &Bound<'_, PyAny>) -> Object {
        // SAFETY: it is alive, and the lock is held, as its lifetime shows.
        unsafe { Object::from_pointer(object.as_ptr()) }
    }

    /// A new reference to an object.
    ///
    /// # Safety
    /// It is alive, and the interpreter lock is held.
    pub(crate) unsafe fn from_pointer(object: *mut PyObject) -> Object {
        // SAFETY: it is alive, so it is not null.
        unsafe {
            ffi::Py_INCREF(object);
            Object(Arc::new(Reference(NonNull::new_unchecked(object))))
        }
    }

    /// The object, for code that has the interpreter lock.
    pub fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        // SAFETY: it is alive as long as this is.
        unsafe { Bound::from_borrowed_ptr(py, self.as_ptr()) }
    }

    /// Where it is. To be touched with the interpreter lock held, while this lives.
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
            // SAFETY: the reference is ours, and the lock is held.
            unsafe { ffi::Py_DECREF(self.0.as_ptr()) };
        } else {
            DROPPED.push(Dropped(self.0));
        }
    }
}

/// Whether this thread has the interpreter lock, as a thread of the main interpreter.
///
/// `PyGILState_Check` says yes to every thread as soon as there has been a second interpreter.
fn has_lock() -> bool {
    // SAFETY: these may be asked at any time while there is an interpreter. A thread that holds the lock has a current state; before Python 3.12
    // that is the state of whichever thread has the lock, and so is compared with this thread's own.
    unsafe {
        if ffi::Py_IsInitialized() == 0 {
            return false;
        }
        let current = ffi::compat::PyThreadState_GetUnchecked();
        !current.is_null() && current == ffi::PyGILState_GetThisThreadState()
    }
}

/// Lets go of all objects that were dropped by threads without the interpreter lock, and says how many these were. Hosts do
/// so by themselves; a program that uses [`Object`] without one has to now and then.
pub fn release_dropped(_: Python<'_>) -> usize {
    // SAFETY: the lock is held.
    unsafe { release() }
}

/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn release() -> usize {
    let mut released = 0;
    // As many as there are now: a finalizer may well drop more.
    for _ in 0..DROPPED.len() {
        let Some(Dropped(object)) = DROPPED.pop() else { break };
        // SAFETY: the queue owned the reference, and the lock is held.
        unsafe { ffi::Py_DECREF(object.as_ptr()) };
        released += 1;
    }
    released
}

/// Whether there is anything to let go of. Costs two loads.
#[allow(dead_code, reason = "for the host")]
pub(crate) fn has_dropped() -> bool {
    !DROPPED.is_empty()
}
