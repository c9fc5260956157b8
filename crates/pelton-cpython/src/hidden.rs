//! Rust state behind a Python object, in a separate object that CPython deallocates like any other. The Python
//! object refers to it through one field that Python code cannot see.
//!
//! The Python object is an instance of a class made in Python, with a dictionary, weak references and possibly
//! `__del__`; see [`types::make_with_hidden_field`]. The state object has its own type, which supports garbage
//! collection.
//!
//! While a method runs, its caller holds a reference to the object, so the collector does not clear the object's
//! field. A state therefore lives at least as long as any call on its object.

use std::ffi::{CStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::interned;
use crate::object::{Owned, Raised, Result, pointer, raise};
use crate::panic::guard;
use crate::types::{self, Slot};

/// How to find the states of one kind.
pub struct Layout {
    /// Offset of the object's reference to its state.
    offset: AtomicUsize,
    state_type: AtomicPtr<PyTypeObject>,
    object_type: AtomicPtr<PyTypeObject>,
}

impl Layout {
    /// Creates the layout of a kind whose types are not made yet.
    pub const fn new() -> Layout {
        Layout {
            offset: AtomicUsize::new(0),
            state_type: AtomicPtr::new(null_mut()),
            object_type: AtomicPtr::new(null_mut()),
        }
    }
}

/// A kind of state. It is accessed through raw pointers, and no Rust reference into it lives across a call that may
/// run Python.
///
/// # Safety
/// `references` returns every field that owns a reference to an object that the garbage collector may have to visit.
pub unsafe trait Hidden: Sized + 'static {
    /// The name of the state's type, which programs do not use.
    const NAME: &'static CStr;
    /// An array of pointers to fields that own a reference or are null.
    type References: IntoIterator<Item = *mut *mut PyObject>;

    /// Returns the layout of this kind.
    fn layout() -> &'static Layout;

    /// Creates an empty state.
    fn empty() -> Self;

    /// Returns pointers to the fields that own references.
    ///
    /// # Safety
    /// `this` is a live state.
    unsafe fn references(this: *mut Self) -> Self::References;

    /// Moves out the remaining references when the state is cleared; the caller drops them.
    ///
    /// # Safety
    /// `this` is a live state.
    unsafe fn take_rest(_this: *mut Self) -> Vec<*mut PyObject> {
        Vec::new()
    }
}

#[repr(C)]
struct StateObject<T> {
    head: PyObject,
    state: ManuallyDrop<T>,
}

/// Returns the state object of `object` as a borrowed reference.
///
/// # Safety
/// `object` is alive, and of a type made by [`make_type`] for this kind of state.
#[inline]
pub unsafe fn state_object<T: Hidden>(object: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: the caller guarantees that the type has the field. Objects of such types have a reference or null at
    // this offset, which only `tp_new` sets and only the collector clears.
    unsafe {
        let state = *object.byte_add(T::layout().offset.load(Ordering::Relaxed)).cast::<*mut PyObject>();
        if state.is_null() { Err(taken_apart()) } else { Ok(state) }
    }
}

#[cold]
fn taken_apart() -> Raised {
    // SAFETY: exception classes live as long as the interpreter.
    raise(unsafe { ffi::PyExc_RuntimeError }, c"the transport has been cleared by the garbage collector")
}

/// Returns whether the type of `object` is exactly the one with such a state, not a derived one.
///
/// # Safety
/// `object` is alive.
#[inline]
pub unsafe fn is_exactly<T: Hidden>(object: *mut PyObject) -> bool {
    // SAFETY: the caller guarantees that the object is alive.
    unsafe { ffi::Py_TYPE(object) == object_type::<T>() }
}

/// Returns the type of objects with such a state.
pub fn object_type<T: Hidden>() -> *mut PyTypeObject {
    T::layout().object_type.load(Ordering::Relaxed)
}

/// Returns the state of `object`.
///
/// # Safety
/// As for [`state_object`].
#[inline]
pub unsafe fn state<T: Hidden>(object: *mut PyObject) -> Result<*mut T> {
    // SAFETY: the caller guarantees that the object is alive and of such a type.
    unsafe { Ok(inside(state_object::<T>(object)?)) }
}

/// Returns the state in a state object.
///
/// # Safety
/// `state` is a live object of the type of such states.
#[inline]
pub unsafe fn inside<T: Hidden>(state: *mut PyObject) -> *mut T {
    // SAFETY: the caller guarantees that the object is of the state's type, whose layout is `StateObject`.
    unsafe { (&raw mut (*state.cast::<StateObject<T>>()).state).cast() }
}

unsafe extern "C" fn new<T: Hidden>(its_type: *mut PyTypeObject, _: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls `tp_new` with our type or one derived from it.
    guard(null_mut(), || pointer(unsafe { allocate::<T>(its_type) }))
}

/// Creates an object with an empty state, without calling `__init__`.
///
/// # Safety
/// `its_type` was made by [`make_type`] for this kind of state, or is derived from such a type.
pub unsafe fn allocate<T: Hidden>(its_type: *mut PyTypeObject) -> Result<Owned> {
    // SAFETY: the caller guarantees the type. The state is initialized before anything else is allocated. The field
    // of a new object is null and takes over the reference to the state.
    unsafe {
        let state = Owned::returned(ffi::PyType_GenericAlloc(T::layout().state_type.load(Ordering::Relaxed), 0))?;
        ptr::write(inside::<T>(state.as_ptr()), T::empty());
        let make = ffi::PyBaseObject_Type.tp_new.ok_or(Raised)?;
        let object = Owned::returned(make(its_type, interned::empty_tuple(), null_mut()))?;
        *object.as_ptr().byte_add(T::layout().offset.load(Ordering::Relaxed)).cast() = state.into_ptr();
        Ok(object)
    }
}

unsafe extern "C" fn traverse<T: Hidden>(state: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with a live state.
    unsafe {
        for field in T::references(inside::<T>(state)) {
            let status = if (*field).is_null() { 0 } else { visit(*field, argument) };
            if status != 0 {
                return status;
            }
        }
        0
    }
}

unsafe extern "C" fn clear<T: Hidden>(state: *mut PyObject) -> c_int {
    guard(0, || {
        // SAFETY: the collector calls it with a live state. Each reference is moved out of its field before it is
        // dropped.
        unsafe {
            let rest = T::take_rest(inside::<T>(state));
            for field in T::references(inside::<T>(state)) {
                ffi::Py_XDECREF(ptr::replace(field, null_mut()));
            }
            for reference in rest {
                ffi::Py_XDECREF(reference);
            }
        }
        0
    })
}

unsafe extern "C" fn dealloc<T: Hidden>(state: *mut PyObject) {
    guard((), || {
        // SAFETY: Python calls it with a state that has no references left to it. After `clear` the state owns no
        // references.
        unsafe {
            ffi::PyObject_GC_UnTrack(state.cast());
            clear::<T>(state);
            ManuallyDrop::drop(&mut (*state.cast::<StateObject<T>>()).state);
            let its_type = ffi::Py_TYPE(state);
            ffi::PyObject_GC_Del(state.cast());
            ffi::Py_DECREF(its_type.cast());
        }
    });
}

/// Creates the type of objects with such a state, and the type of the state.
///
/// # Safety
/// `base` is a class made in Python. `slots` are suitable for a type derived from it, and `state_slots` for the
/// type of the state.
pub unsafe fn make_type<T: Hidden>(
    name: &'static CStr,
    base: *mut PyTypeObject,
    slots: &[Slot],
    state_slots: &[Slot],
) -> Result<*mut PyTypeObject> {
    let mut own = vec![
        (ffi::Py_tp_dealloc, dealloc::<T> as *mut c_void),
        (ffi::Py_tp_traverse, traverse::<T> as *mut c_void),
        (ffi::Py_tp_clear, clear::<T> as *mut c_void),
    ];
    own.extend(state_slots);
    let mut slots = slots.to_vec();
    slots.push((ffi::Py_tp_new, new::<T> as *mut c_void));
    // SAFETY: the caller guarantees that base and slots fit. The functions added here are for states of this size.
    unsafe {
        let state_type = types::make(T::NAME, null_mut(), size_of::<StateObject<T>>(), &own)?;
        T::layout().state_type.store(state_type, Ordering::Relaxed);
        let (its_type, offset) = types::make_with_hidden_field(name, base, &slots)?;
        T::layout().offset.store(offset, Ordering::Relaxed);
        T::layout().object_type.store(its_type, Ordering::Relaxed);
        Ok(its_type)
    }
}
