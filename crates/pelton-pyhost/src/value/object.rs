//! References to Python objects that any thread may drop.
//!
//! A reference count may only be changed with the interpreter lock held. A thread that drops the last [`Object`]
//! without the lock queues the reference, and a thread with the lock releases it later: the host's loops do so in
//! each batch.

use std::fmt;
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use pelton_cpython::lock;

/// A reference to a Python object. Clones share one reference count, so cloning and dropping do not need the
/// interpreter lock.
///
/// Two are equal if they refer to the same object.
#[derive(Clone)]
pub struct Object(Arc<Reference>);

/// `None` only while it is being dropped.
struct Reference(Option<Py<PyAny>>);

/// References dropped without the lock.
static DROPPED: SegQueue<Py<PyAny>> = SegQueue::new();

impl Object {
    /// Creates a reference to an object.
    pub fn new(object: &Bound<'_, PyAny>) -> Object {
        Object(Arc::new(Reference(Some(object.clone().unbind()))))
    }

    /// Returns the object, for code that holds the interpreter lock.
    pub fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match &self.0.0 {
            Some(object) => object.bind(py).clone(),
            None => py.None().into_bound(py),
        }
    }

    /// Returns the address. The object may be accessed with the interpreter lock held, while this value lives.
    pub(crate) fn as_ptr(&self) -> *mut PyObject {
        self.0.0.as_ref().map_or(std::ptr::null_mut(), Py::as_ptr)
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.as_ptr() == other.as_ptr()
    }
}

impl Eq for Object {}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({:p})", self.as_ptr())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let Some(object) = self.0.take() else { return };
        // Of the main interpreter.
        if let Err(object) = lock::if_held(object, |py, object| drop(object.into_bound(py))) {
            DROPPED.push(object);
        }
    }
}

/// Releases all objects that were dropped by threads without the interpreter lock, and returns their number. Hosts
/// call this themselves. A program that uses [`Object`] without a host has to call it now and then.
pub fn release_dropped(py: Python<'_>) -> usize {
    let mut released = 0;
    // Only as many as there are now, because finalizers may drop more.
    for _ in 0..DROPPED.len() {
        let Some(object) = DROPPED.pop() else { break };
        drop(object.into_bound(py));
        released += 1;
    }
    released
}

/// Returns whether there is anything to release. Costs two loads.
pub(crate) fn has_dropped() -> bool {
    !DROPPED.is_empty()
}

/// Returns whether this thread holds the interpreter lock of the main interpreter.
pub(crate) fn has_lock() -> bool {
    lock::if_held((), |_, ()| ()).is_ok()
}
