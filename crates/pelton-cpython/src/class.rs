//! Classes made at run time, with state in Rust.
//!
//! The instances are Python objects like any other, with a dictionary, weak references and possibly `__del__`: a class derives from one
//! that is written in Python. The state is in an object of its own, which supports garbage collection. The instance refers to it by
//! one field that Python code cannot see.
//!
//! A method gets its object as a [`This`], which shows that the object is alive, of the right class, and that the lock is held. The
//! caller of a method has a reference to the object, so the collector does not clear its field: the state lives at least as long as
//! a `This`.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi::{self, PyGetSetDef, PyMethodDef, PyObject, PyTypeObject, visitproc};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::arguments::Call;
use crate::call::{raise, returned, status};
use crate::object::{Raised, Result};
use crate::panic::guard;
use crate::slot::{Traverse, Visitor};
use crate::types::{self, Slot as TypeSlot};

/// Where the instances of a class have the reference to their state.
pub struct Class<T> {
    offset: AtomicUsize,
    state_type: AtomicPtr<PyTypeObject>,
    object_type: AtomicPtr<PyTypeObject>,
    /// All state objects, if the class keeps them.
    all: RefCell<Vec<*mut PyObject>>,
    state: PhantomData<fn(T)>,
}

// SAFETY: the list is only accessed with the interpreter lock held.
unsafe impl<T> Sync for Class<T> {}

impl<T> Class<T> {
    /// Describes a class that is not made yet.
    #[allow(clippy::new_without_default, reason = "it is a constant")]
    pub const fn new() -> Class<T> {
        let (offset, none) = (AtomicUsize::new(0), null_mut());
        let (state_type, object_type) = (AtomicPtr::new(none), AtomicPtr::new(none));
        Class { offset, state_type, object_type, all: RefCell::new(Vec::new()), state: PhantomData }
    }
}

/// A state that has a class. [`state!`](crate::state) implements it.
///
/// # Safety
/// `class` always returns the same value. The state may be used by any thread that holds the lock, and by none without it.
pub unsafe trait HasClass: Traverse + Sized + 'static {
    /// The name of the state's own type, which programs do not use.
    const STATE_NAME: &'static CStr;

    /// Returns the class.
    fn class() -> &'static Class<Self>;
}

/// The state of an instance.
pub trait State: HasClass {
    /// Whether [`each`] finds the states of all instances.
    const LISTED: bool = false;

    /// Creates the state of a new instance.
    fn new(py: Python<'_>) -> Result<Self>;

    /// Called before the references of the state are dropped, by the collector or at the end.
    fn ending(&self, _py: Python<'_>) {}
}

/// Implements [`HasClass`] and [`Traverse`] for a state, given the name of its type and the fields that own references.
#[macro_export]
macro_rules! state {
    ($type:ty, $name:expr, { $($field:ident),* $(,)? }) => {
        $crate::owns!($type { $($field),* });
        $crate::class!($type, $name);
    };
}

/// Implements [`HasClass`] for a state that implements [`Traverse`].
#[macro_export]
macro_rules! class {
    ($type:ty, $name:expr) => {
        // SAFETY: there is one class. States are reached through objects only, which takes the lock.
        unsafe impl $crate::class::HasClass for $type {
            const STATE_NAME: &'static std::ffi::CStr = $name;

            #[inline]
            fn class() -> &'static $crate::class::Class<$type> {
                static CLASS: $crate::class::Class<$type> = $crate::class::Class::new();
                &CLASS
            }
        }
    };
}

/// A reference to an instance of the class of `T`.
pub struct This<'a, 'py, T>(Borrowed<'a, 'py, PyAny>, PhantomData<fn(T)>);

impl<T> Clone for This<'_, '_, T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for This<'_, '_, T> {}

impl<'py, T> Deref for This<'_, 'py, T> {
    type Target = Bound<'py, PyAny>;

    #[inline]
    fn deref(&self) -> &Bound<'py, PyAny> {
        &self.0
    }
}

impl<'a, 'py, T: HasClass> This<'a, 'py, T> {
    /// # Safety
    /// The object is alive for `'a`, an instance of the class of `T`, and the lock is held.
    #[inline]
    unsafe fn assume(object: *mut PyObject) -> This<'a, 'py, T> {
        // SAFETY: the caller guarantees it.
        This(unsafe { Borrowed::from_ptr(Python::assume_attached(), object) }, PhantomData)
    }

    /// Returns the instance, if it is of this class or a derived one.
    #[inline]
    pub fn of(object: &'a Bound<'py, PyAny>) -> Option<This<'a, 'py, T>> {
        let class = T::class().object_type.load(Ordering::Relaxed);
        // SAFETY: the object is alive. The class is null, which is no object's type, or made and never freed.
        let is = unsafe { ffi::Py_TYPE(object.as_ptr()) == class }
            || (!class.is_null() && unsafe { ffi::PyObject_TypeCheck(object.as_ptr(), class) != 0 });
        is.then(|| This(object.as_borrowed(), PhantomData))
    }

    /// Returns the instance, if it is of exactly this class.
    #[inline]
    pub fn exactly(object: &'a Bound<'py, PyAny>) -> Option<This<'a, 'py, T>> {
        // SAFETY: the object is alive, so it has a type.
        let its_type = unsafe { ffi::Py_TYPE(object.as_ptr()) };
        (its_type == T::class().object_type.load(Ordering::Relaxed)).then(|| This(object.as_borrowed(), PhantomData))
    }

    /// Returns its state. Raises if the garbage collector has cleared the object.
    #[inline]
    pub fn state(self) -> Result<&'a T> {
        self.state_if_any().ok_or_else(|| {
            raise::<PyRuntimeError>(self.py(), "the object has been taken apart by the garbage collector")
        })
    }

    /// Returns its state, unless the garbage collector has cleared the object.
    #[inline]
    pub fn state_if_any(self) -> Option<&'a T> {
        // SAFETY: instances of this class have a reference or null at this offset, which only `tp_new` sets and only the collector
        // clears. It does not clear an object to which someone outside of its graph has a reference, as `'a` shows.
        unsafe {
            let object = *self.as_ptr().byte_add(T::class().offset.load(Ordering::Relaxed)).cast::<*mut PyObject>();
            if object.is_null() { None } else { Some(&*inside(object)) }
        }
    }

    /// Returns the object that has the state.
    pub fn state_object(self) -> Result<Bound<'py, PyAny>> {
        // SAFETY: as for `state_if_any`.
        let object = unsafe { *self.as_ptr().byte_add(T::class().offset.load(Ordering::Relaxed)).cast() };
        // SAFETY: the field owns a reference, or is null.
        let object = unsafe { Bound::from_borrowed_ptr_or_opt(self.py(), object) };
        object.ok_or_else(|| raise::<PyRuntimeError>(self.py(), "the object has been cleared by the garbage collector"))
    }
}

#[repr(C)]
struct StateObject<T> {
    head: PyObject,
    state: ManuallyDrop<T>,
}

/// # Safety
/// `object` is an object of the type of such states.
#[inline]
unsafe fn inside<T>(object: *mut PyObject) -> *const T {
    // SAFETY: the caller guarantees it.
    unsafe { (&raw const (*object.cast::<StateObject<T>>()).state).cast() }
}

/// Creates an instance of a class or of one derived from it, without calling `__init__`.
///
/// # Safety
/// `its_type` is the class of `T`, or derived from it.
unsafe fn allocate<T: State>(py: Python<'_>, its_type: *mut PyTypeObject) -> Result<Bound<'_, PyAny>> {
    let state = T::new(py)?;
    // SAFETY: the state's type has room for it, and the state is in place before anything else is allocated. The field of a new
    // instance is null, and takes over the reference.
    unsafe {
        let object = returned(py, ffi::PyType_GenericAlloc(T::class().state_type.load(Ordering::Relaxed), 0))?;
        ptr::write(inside::<T>(object.as_ptr()).cast_mut(), state);
        if T::LISTED {
            T::class().all.borrow_mut().push(object.as_ptr());
        }
        let make = ffi::PyBaseObject_Type.tp_new.ok_or(Raised)?;
        let instance = returned(py, make(its_type, PyTuple::empty(py).as_ptr(), null_mut()))?;
        *instance.as_ptr().byte_add(T::class().offset.load(Ordering::Relaxed)).cast() = object.into_ptr();
        Ok(instance)
    }
}

/// Creates an instance without calling `__init__`.
pub fn instance<T: State>(py: Python<'_>) -> Result<Bound<'_, PyAny>> {
    let class = T::class().object_type.load(Ordering::Relaxed);
    if class.is_null() {
        return Err(raise::<PyRuntimeError>(py, "the class is not made yet"));
    }
    // SAFETY: it is the class of `T`.
    unsafe { allocate::<T>(py, class) }
}

unsafe extern "C" fn new<T: State>(its_type: *mut PyTypeObject, _: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls `tp_new` with the lock held, and with the class or one derived from it.
    guard(null_mut(), || unsafe {
        allocate::<T>(Python::assume_attached(), its_type).map_or(null_mut(), Bound::into_ptr)
    })
}

unsafe extern "C" fn traverse<T: State>(object: *mut PyObject, visit: visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the collector calls it with a state object, and with its own arguments.
    unsafe { Visitor::run(visit, argument, |visitor| (*inside::<T>(object)).traverse(visitor)) }
}

unsafe extern "C" fn clear<T: State>(object: *mut PyObject) -> c_int {
    guard(0, || {
        // SAFETY: the collector, or `dealloc`, calls it with a state object, and with the lock held.
        let (py, state) = unsafe { (Python::assume_attached(), &*inside::<T>(object)) };
        state.ending(py);
        state.clear(py);
        0
    })
}

unsafe extern "C" fn dealloc<T: State>(object: *mut PyObject) {
    guard((), || {
        // SAFETY: Python calls it with a state object to which there are no references. After `clear` it owns none either.
        unsafe {
            ffi::PyObject_GC_UnTrack(object.cast());
            clear::<T>(object);
            if T::LISTED {
                T::class().all.borrow_mut().retain(|other| *other != object);
            }
            ManuallyDrop::drop(&mut (*object.cast::<StateObject<T>>()).state);
            let its_type = ffi::Py_TYPE(object);
            ffi::PyObject_GC_Del(object.cast());
            ffi::Py_DECREF(its_type.cast());
        }
    });
}

/// Calls a function with the states of all instances of a class that lists them. The function must not run Python code.
pub fn each<T: State>(_: Python<'_>, mut f: impl FnMut(&T)) {
    let all = T::class().all.borrow();
    // SAFETY: objects in the list are alive: they are removed when they are deallocated, which the borrow prevents meanwhile.
    all.iter().for_each(|object| f(unsafe { &*inside(*object) }));
}

/// A state that Python code sees as a collection: `len(state)`, `bool(state)` and `state.clear()`.
pub trait Sequence: State {
    /// `len(state)`
    fn len(&self, py: Python<'_>) -> Result<usize>;
    /// `bool(state)`
    fn is_filled(&self) -> bool;
    /// `state.clear()`
    fn empty(&self, py: Python<'_>) -> Result<()>;
}

unsafe extern "C" fn sequence_len<T: Sequence>(object: *mut PyObject) -> ffi::Py_ssize_t {
    // SAFETY: Python calls it with a state object, and with the lock held.
    let (py, state) = unsafe { (Python::assume_attached(), &*inside::<T>(object)) };
    guard(-1, || state.len(py).map_or(-1, |len| len as ffi::Py_ssize_t))
}

unsafe extern "C" fn sequence_bool<T: Sequence>(object: *mut PyObject) -> c_int {
    // SAFETY: Python calls it with a state object.
    unsafe { (*inside::<T>(object)).is_filled().into() }
}

unsafe extern "C" fn sequence_clear<T: Sequence>(object: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls it with a state object, and with the lock held.
    let (py, state) = unsafe { (Python::assume_attached(), &*inside::<T>(object)) };
    guard(null_mut(), || Answer::new(py, state.empty(py)).0)
}

/// What a class consists of.
pub struct Parts<T> {
    /// Its name, with the module.
    pub name: &'static CStr,
    /// Its documentation.
    pub doc: &'static CStr,
    /// Its methods.
    pub methods: Vec<Method<T>>,
    /// Its attributes.
    pub attributes: Vec<Attribute<T>>,
}

/// Makes the class of `T`, derived from `base`, a class that is written in Python.
pub fn make<'py, T: State>(base: &Bound<'py, PyType>, parts: Parts<T>) -> Result<Bound<'py, PyType>> {
    make_with(base, parts, &[])
}

/// Makes the class of a state that is a collection.
pub fn make_with_sequence<'py, T: Sequence>(base: &Bound<'py, PyType>, parts: Parts<T>) -> Result<Bound<'py, PyType>> {
    let methods = vec![types::without_arguments(c"clear", sequence_clear::<T>, c"Discard everything.")];
    let slots = [
        (ffi::Py_sq_length, sequence_len::<T> as *mut c_void),
        (ffi::Py_nb_bool, sequence_bool::<T> as *mut c_void),
        (ffi::Py_tp_methods, types::methods(methods)),
    ];
    make_with(base, parts, &slots)
}

fn make_with<'py, T: State>(
    base: &Bound<'py, PyType>,
    parts: Parts<T>,
    state_slots: &[TypeSlot],
) -> Result<Bound<'py, PyType>> {
    let py = base.py();
    let base = plain_class(base)?;
    let mut own = vec![
        (ffi::Py_tp_dealloc, dealloc::<T> as *mut c_void),
        (ffi::Py_tp_traverse, traverse::<T> as *mut c_void),
        (ffi::Py_tp_clear, clear::<T> as *mut c_void),
    ];
    own.extend(state_slots);
    let slots = [
        (ffi::Py_tp_new, new::<T> as *mut c_void),
        (ffi::Py_tp_methods, types::methods(parts.methods.into_iter().map(|method| method.0).collect())),
        (ffi::Py_tp_getset, types::attributes(parts.attributes.into_iter().map(|attribute| attribute.0).collect())),
        (ffi::Py_tp_doc, parts.doc.as_ptr() as *mut c_void),
    ];
    // SAFETY: `base` is a class without items of a variable size. The functions are for states of this size, and for instances with
    // the field that is added here.
    unsafe {
        let state_type = types::make(T::STATE_NAME, null_mut(), size_of::<StateObject<T>>(), &own)?;
        let (its_type, offset) = types::make_with_hidden_field(parts.name, base, &slots)?;
        T::class().offset.store(offset, Ordering::Relaxed);
        T::class().state_type.store(state_type, Ordering::Relaxed);
        T::class().object_type.store(its_type, Ordering::Relaxed);
        Ok(Bound::from_borrowed_ptr(py, its_type.cast()).cast_into_unchecked())
    }
}

/// Returns a class as a base for others. Its instances must not have items of a variable size, where a field would be.
fn plain_class(base: &Bound<'_, PyType>) -> Result<*mut PyTypeObject> {
    let its_type = base.as_type_ptr();
    // SAFETY: it is a type.
    if unsafe { (*its_type).tp_itemsize } != 0 {
        return Err(raise::<PyTypeError>(base.py(), "a class without items is required"));
    }
    Ok(its_type)
}

/// Where the instances of the class without state have their field; 0 until the class is made.
static FIELD: AtomicUsize = AtomicUsize::new(0);

/// Makes the one class whose instances have a field that Python code sees as an attribute, and no state.
pub fn make_with_field<'py>(
    base: &Bound<'py, PyType>,
    field: &'static CStr,
    parts: Parts<FieldOnly>,
) -> Result<Bound<'py, PyType>> {
    let py = base.py();
    if FIELD.load(Ordering::Relaxed) != 0 {
        return Err(raise::<PyRuntimeError>(py, "there is such a class already"));
    }
    let base = plain_class(base)?;
    let slots = [
        (ffi::Py_tp_methods, types::methods(parts.methods.into_iter().map(|method| method.0).collect())),
        (ffi::Py_tp_doc, parts.doc.as_ptr() as *mut c_void),
    ];
    // SAFETY: `base` is a class without items of a variable size, and the methods are for instances with the field added here.
    unsafe {
        let (its_type, offset) = types::make_with_field(parts.name, base, field, &slots)?;
        FIELD.store(offset, Ordering::Relaxed);
        Ok(Bound::from_borrowed_ptr(py, its_type.cast()).cast_into_unchecked())
    }
}

impl<'py> This<'_, 'py, FieldOnly> {
    /// Returns the object in the field.
    #[inline]
    pub fn field(self) -> Option<Bound<'py, PyAny>> {
        // SAFETY: only methods of that class get a `This` of it. Its instances have a reference or null at this offset.
        unsafe {
            let field = *self.as_ptr().byte_add(FIELD.load(Ordering::Relaxed)).cast();
            Bound::from_borrowed_ptr_or_opt(self.py(), field)
        }
    }
}

/// Stands for the state of the class with a field.
pub struct FieldOnly(());

owns!(FieldOnly {});
class!(FieldOnly, c"pelton._pelton.None");

/// What a method gives back to Python: a new reference, or null after an exception.
pub struct Answer(pub(crate) *mut PyObject);

impl Answer {
    /// Converts the result of a method.
    #[inline]
    pub fn new<'py, R: ReturnValue<'py>>(py: Python<'py>, result: Result<R>) -> Answer {
        Answer(result.map_or(null_mut(), |value| value.into_object(py).into_ptr()))
    }
}

/// A value that a method can return.
pub trait ReturnValue<'py> {
    /// Converts it to an object.
    fn into_object(self, py: Python<'py>) -> Bound<'py, PyAny>;
}

impl<'py> ReturnValue<'py> for Bound<'py, PyAny> {
    #[inline]
    fn into_object(self, _: Python<'py>) -> Bound<'py, PyAny> {
        self
    }
}

impl<'py> ReturnValue<'py> for Option<Bound<'py, PyAny>> {
    #[inline]
    fn into_object(self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.unwrap_or_else(|| py.None().into_bound(py))
    }
}

impl<'py> ReturnValue<'py> for () {
    #[inline]
    fn into_object(self, py: Python<'py>) -> Bound<'py, PyAny> {
        py.None().into_bound(py)
    }
}

/// Numbers.
macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl<'py> ReturnValue<'py> for $type {
            #[inline]
            fn into_object(self, py: Python<'py>) -> Bound<'py, PyAny> {
                match self.into_pyobject(py) {
                    Ok(number) => number.to_owned().into_any(),
                }
            }
        }
    )*};
}

numbers!(bool, usize, i64, i32, f64);

/// A method of the class of `T`.
pub struct Method<T>(PyMethodDef, PhantomData<fn(T)>);

/// An attribute of the class of `T`.
pub struct Attribute<T>(PyGetSetDef, PhantomData<fn(T)>);

/// A method without arguments. The macros implement it.
pub trait NoArguments {
    /// The state of the objects that have the method.
    type State: HasClass;
    /// Calls it.
    fn call(this: This<'_, '_, Self::State>) -> Answer;
}

unsafe extern "C" fn no_arguments<M: NoArguments>(object: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls a method with an instance of its class, and with the lock held.
    guard(null_mut(), || M::call(unsafe { This::assume(object) }).0)
}

/// Makes a table entry.
pub fn method_without_arguments<M: NoArguments>(name: &'static CStr, doc: &'static CStr) -> Method<M::State> {
    Method(types::without_arguments(name, no_arguments::<M>, doc), PhantomData)
}

/// Returns whether a bound method is that of `M`, not one that replaces it.
pub fn is_method<M: NoArguments>(method: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive. The function of a built-in method is read after its type was checked.
    unsafe {
        ffi::PyCFunction_Check(method.as_ptr()) != 0
            && ffi::PyCFunction_GetFunction(method.as_ptr())
                .is_some_and(|function| ptr::fn_addr_eq(function, no_arguments::<M> as ffi::PyCFunction))
    }
}

/// A method with one argument.
pub trait OneArgument {
    /// The state of the objects that have the method.
    type State: HasClass;
    /// Calls it.
    fn call<'py>(this: This<'_, 'py, Self::State>, argument: Borrowed<'_, 'py, PyAny>) -> Answer;
}

unsafe extern "C" fn one_argument<M: OneArgument>(object: *mut PyObject, argument: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python calls a method with an instance of its class, with live arguments, and with the lock held.
    guard(null_mut(), || unsafe {
        M::call(This::assume(object), Borrowed::from_ptr(Python::assume_attached(), argument)).0
    })
}

/// Makes a table entry.
pub fn method_with_one<M: OneArgument>(name: &'static CStr, doc: &'static CStr) -> Method<M::State> {
    Method(types::with_one(name, one_argument::<M>, doc), PhantomData)
}

/// A method with positional and keyword arguments.
pub trait Keywords {
    /// The state of the objects that have the method.
    type State: HasClass;
    /// The name, for error messages.
    const NAME: &'static CStr;
    /// Calls it.
    fn call<'py>(this: This<'_, 'py, Self::State>, call: Call<'_, 'py>) -> Answer;
}

unsafe extern "C" fn keywords<M: Keywords>(
    object: *mut PyObject,
    arguments: *const *mut PyObject,
    count: ffi::Py_ssize_t,
    keywords: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: Python calls a method with an instance of its class, with live arguments, and with the lock held.
    guard(null_mut(), || unsafe {
        M::call(This::assume(object), Call::from_raw(M::NAME, arguments, count as usize, keywords)).0
    })
}

/// Makes a table entry.
pub fn method_with_keywords<M: Keywords>(doc: &'static CStr) -> Method<M::State> {
    Method(types::fast_with_keywords(M::NAME, keywords::<M>, doc), PhantomData)
}

unsafe extern "C" fn positional<M: Keywords>(
    object: *mut PyObject,
    arguments: *mut *mut PyObject,
    count: ffi::Py_ssize_t,
) -> *mut PyObject {
    // SAFETY: as for `keywords`, of which there are none.
    unsafe { keywords::<M>(object, arguments.cast_const(), count, null_mut()) }
}

/// Makes a table entry for a method without keywords.
pub fn method_with_several<M: Keywords>(doc: &'static CStr) -> Method<M::State> {
    Method(types::fast(M::NAME, positional::<M>, doc), PhantomData)
}

/// An attribute: how it is read, and how it is set.
pub trait Access {
    /// The state of the objects that have the attribute.
    type State: HasClass;
    /// Reads it.
    fn get(this: This<'_, '_, Self::State>) -> Answer;
    /// Sets it, or deletes it.
    fn set<'py>(this: This<'_, 'py, Self::State>, value: Option<Borrowed<'_, 'py, PyAny>>) -> Result<()>;
}

unsafe extern "C" fn get<A: Access>(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: Python calls it with an instance of the class that has the attribute, and with the lock held.
    guard(null_mut(), || A::get(unsafe { This::assume(object) }).0)
}

unsafe extern "C" fn set<A: Access>(object: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
    // SAFETY: as for `get`. The value is alive, or null when the attribute is deleted.
    guard(-1, || unsafe {
        let value = Borrowed::from_ptr_or_opt(Python::assume_attached(), value);
        A::set(This::assume(object), value).map_or(-1, |()| 0)
    })
}

/// Makes a table entry.
pub fn attribute<A: Access>(name: &'static CStr) -> Attribute<A::State> {
    Attribute(types::attribute(name, get::<A>, Some(set::<A>)), PhantomData)
}

/// Calls `PyErr_CheckSignals`: runs the handlers of signals that have arrived.
pub fn check_signals(_: Python<'_>) -> Result<()> {
    // SAFETY: the lock is held.
    status(unsafe { ffi::PyErr_CheckSignals() }).map(drop)
}
