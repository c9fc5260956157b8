//! The state of an object that CPython takes down like any other: it hangs off the object by one reference, in a field that
//! Python code cannot see.
//!
//! The object is an instance of a class made in Python, with a dictionary, weak references and perhaps `__del__`; see
//! [`types::make_with_hidden_field`]. The state is an object of a type of its own, which the garbage collector knows.

use std::ffi::{CStr, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::ffi::{self, PyObject, PyTypeObject, visitproc};

use crate::known::known;
use crate::object::{Owned, Raised, Result, pointer, raise};
use crate::panic::guard;
use crate::types::{self, Slot};

/// Where states of one kind are found.
pub(crate) struct Place {
    /// Where an object has the reference to its state.
    offset: AtomicUsize,
    state_type: AtomicPtr<PyTypeObject>,
    object_type: AtomicPtr<PyTypeObject>,
}

impl Place {
    pub(crate) const fn new() -> Place {
        Place {
            offset: AtomicUsize::new(0),
            state_type: AtomicPtr::new(null_mut()),
            object_type: AtomicPtr::new(null_mut()),
        }
    }
}

/// A kind of state. It is reached through raw pointers, and no Rust reference into it lives across a call that could come back.
///
/// # Safety
/// `references` are all fields that own a reference to an object which the garbage collector may have to know of.
pub(crate) unsafe trait Hidden: Sized + 'static {
    /// The name of the type of the state itself, which programs have no use for.
    const NAME: &'static CStr;
    /// Fields that own a reference, or are null: an array of pointers to them.
    type References: IntoIterator<Item = *mut *mut PyObject>;

    fn place() -> &'static Place;

    /// A state with nothing in it.
    fn empty() -> Self;

    /// Where the references are.
    ///
    /// # Safety
    /// `this` is a live state.
    unsafe fn references(this: *mut Self) -> Self::References;

    /// Takes out what else it owns, for the caller to let go of, when the state is given up.
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

/// The object that the state of `object` is in, a borrowed reference.
///
/// # Safety
/// `object` is alive, and of a type made by [`make_type`] for this kind of state.
#[inline]
pub(crate) unsafe fn state_object<T: Hidden>(object: *mut PyObject) -> Result<*mut PyObject> {
    // SAFETY: such objects have a reference at this offset, which only `tp_new` sets and only the collector clears.
    unsafe {
        let state = *object.byte_add(T::place().offset.load(Ordering::Relaxed)).cast::<*mut PyObject>();
        if state.is_null() { Err(taken_apart()) } else { Ok(state) }
    }
}

#[cold]
fn taken_apart() -> Raised {
    // SAFETY: the exception classes are there as long as the interpreter is.
    raise(unsafe { ffi::PyExc_RuntimeError }, c"the transport has been taken apart by the garbage collector")
}

/// Whether `object` is of the type with such a state, and not of one derived from it.
///
/// # Safety
/// `object` is alive.
#[inline]
pub(crate) unsafe fn is_exactly<T: Hidden>(object: *mut PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe { ffi::Py_TYPE(object) == object_type::<T>() }
}

/// The type with such a state.
pub(crate) fn object_type<T: Hidden>() -> *mut PyTypeObject {
    T::place().object_type.load(Ordering::Relaxed)
}

/// The state of `object`.
///
/// # Safety
/// As for [`state_object`].
#[inline]
pub(crate) unsafe fn state<T: Hidden>(object: *mut PyObject) -> Result<*mut T> {
    // SAFETY: as the caller says.
    unsafe { Ok(inside(state_object::<T>(object)?)) }
}

/// The state in a state object.
///
/// # Safety
/// `state` is a live object of the type of such states.
#[inline]
pub(crate) unsafe fn inside<T: Hidden>(state: *mut PyObject) -> *mut T {
    // SAFETY: as the caller says.
    unsafe { (&raw mut (*state.cast::<StateObject<T>>()).state).cast() }
}

unsafe extern "C" fn new<T: Hidden>(its_type: *mut PyTypeObject, _: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with our type or one derived from it.
    guard(null_mut(), || pointer(unsafe { allocate::<T>(its_type) }))
}

/// A new object with an empty state, which `__init__` has not seen.
///
/// # Safety
/// `its_type` was made by [`make_type`] for this kind of state, or is derived from such a type.
pub(crate) unsafe fn allocate<T: Hidden>(its_type: *mut PyTypeObject) -> Result<Owned> {
    // SAFETY: the field is null in a new object, and takes over the reference to the state, which is written before anything
    // else is allocated.
    unsafe {
        let state = Owned::returned(ffi::PyType_GenericAlloc(T::place().state_type.load(Ordering::Relaxed), 0))?;
        ptr::write(inside::<T>(state.as_ptr()), T::empty());
        let make = ffi::PyBaseObject_Type.tp_new.ok_or(Raised)?;
        let object = Owned::returned(make(its_type, known().empty, null_mut()))?;
        *object.as_ptr().byte_add(T::place().offset.load(Ordering::Relaxed)).cast() = state.into_ptr();
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
        // SAFETY: the collector calls it with a live state. A reference is out of its field before it is let go of.
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
        // SAFETY: Python calls it with a state that nobody has any more. After `clear` there are no references left in it.
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

/// Makes the type of objects with such a state, and the type of the state.
///
/// # Safety
/// `base` is a class made in Python. `slots` are right for a type derived from it, `state_slots` for the state.
pub(crate) unsafe fn make_type<T: Hidden>(
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
    // SAFETY: as the caller says, and the functions are for states of this size.
    unsafe {
        let state_type = types::make(T::NAME, null_mut(), size_of::<StateObject<T>>(), &own)?;
        T::place().state_type.store(state_type, Ordering::Relaxed);
        let (its_type, offset) = types::make_with_hidden_field(name, base, &slots)?;
        T::place().offset.store(offset, Ordering::Relaxed);
        T::place().object_type.store(its_type, Ordering::Relaxed);
        Ok(its_type)
    }
}
