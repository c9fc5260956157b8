//! Fields that own references, for values that belong to a Python object.
//!
//! A [`Slot`] is changed through a shared reference, and never lends what it holds: code that runs while a reference is dropped finds
//! the slot in its new state. So a value made of slots and cells can be used while any Python code runs, and no Rust reference into
//! it can become invalid.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

/// An owned reference, or nothing, which Python code sees as `None`.
///
/// Using it takes the interpreter lock, which `py` shows. Dropping it takes no lock and therefore leaks a reference that it still
/// owns: the object that it belongs to [clears](Traverse::clear) it first.
#[derive(Default)]
#[repr(transparent)]
pub struct Slot(Cell<Option<NonNull<PyObject>>>);

impl Slot {
    /// Creates an empty slot.
    pub const fn empty() -> Slot {
        Slot(Cell::new(None))
    }

    /// Returns whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    /// Returns whether it refers to this object.
    #[inline]
    pub fn is(&self, object: &Bound<'_, PyAny>) -> bool {
        self.0.get().is_some_and(|own| own.as_ptr() == object.as_ptr())
    }

    /// Returns the address of the object, or 0.
    #[inline]
    pub(crate) fn pointer(&self) -> *mut PyObject {
        self.0.get().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Returns another reference to the object.
    #[inline]
    pub fn get<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the slot owns a reference, so the object is alive, and the lock is held.
        self.0.get().map(|object| unsafe { Bound::from_borrowed_ptr(py, object.as_ptr()) })
    }

    /// Moves the reference out.
    #[inline]
    pub fn take<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the slot owned the reference, and no longer does. The lock is held.
        self.0.take().map(|object| unsafe { Bound::from_owned_ptr(py, object.as_ptr()) })
    }

    /// Stores a reference. The previous one is dropped last.
    #[inline]
    pub fn set(&self, object: Bound<'_, PyAny>) {
        let py = object.py();
        drop(self.replace(py, Some(object)));
    }

    /// Stores a reference in a slot that is known to be empty.
    #[inline]
    pub(crate) fn put(&self, object: Bound<'_, PyAny>) {
        debug_assert!(self.is_empty());
        self.0.set(NonNull::new(object.into_ptr()));
    }

    /// Stores a reference or nothing, and returns the previous one.
    #[inline]
    pub fn replace<'py>(&self, py: Python<'py>, object: Option<Bound<'py, PyAny>>) -> Option<Bound<'py, PyAny>> {
        let before = self.take(py);
        self.0.set(object.and_then(|object| NonNull::new(object.into_ptr())));
        before
    }

    /// Stores a new reference to an attribute's value: nothing for `None` and for an attribute that is deleted.
    #[inline]
    pub fn assign(&self, py: Python<'_>, value: Option<Borrowed<'_, '_, PyAny>>) {
        let value = value.filter(|value| !value.is_none()).map(|value| value.as_unbound().clone_ref(py).into_bound(py));
        drop(self.replace(py, value));
    }

    /// Stores an object that was created because the slot was empty, unless code that ran meanwhile has filled it. Returns the object
    /// in the slot.
    pub fn fill<'py>(&self, object: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
        match self.get(object.py()) {
            Some(there) => there,
            None => {
                self.set(object.clone());
                object
            }
        }
    }
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.is_empty(), "a slot leaks its reference");
    }
}

/// Reports references to the garbage collector.
pub struct Visitor<'a> {
    visit: ffi::visitproc,
    argument: *mut c_void,
    status: c_int,
    collection: PhantomData<&'a ()>,
}

impl Visitor<'_> {
    /// Calls `traverse` for a collection in progress, and returns what the collector expects.
    ///
    /// # Safety
    /// The arguments are those of a `tp_traverse`.
    pub(crate) unsafe fn run(
        visit: ffi::visitproc,
        argument: *mut c_void,
        traverse: impl FnOnce(&mut Visitor<'_>),
    ) -> c_int {
        let mut visitor = Visitor { visit, argument, status: 0, collection: PhantomData };
        traverse(&mut visitor);
        visitor.status
    }

    /// Reports an object, or nothing.
    #[inline]
    pub(crate) fn object(&mut self, object: *mut PyObject) {
        if self.status == 0 && !object.is_null() {
            // SAFETY: only implementations of `Traverse` call this, with the references that they own; `run` requires the rest.
            self.status = unsafe { (self.visit)(object, self.argument) };
        }
    }
}

/// A value that owns references.
///
/// # Safety
/// `traverse` reports references that the value owns, each once, and calls nothing else. [`owns!`](crate::owns) implements it.
pub unsafe trait Traverse {
    /// Reports its references.
    fn traverse(&self, visitor: &mut Visitor<'_>);

    /// Drops its references, each after it was moved out.
    fn clear(&self, py: Python<'_>);
}

// SAFETY: it owns one reference.
unsafe impl Traverse for Slot {
    #[inline]
    fn traverse(&self, visitor: &mut Visitor<'_>) {
        visitor.object(self.pointer());
    }

    #[inline]
    fn clear(&self, py: Python<'_>) {
        drop(self.take(py));
    }
}

// SAFETY: the value, if there is one, owns its references.
unsafe impl<T: Traverse> Traverse for Option<T> {
    fn traverse(&self, visitor: &mut Visitor<'_>) {
        if let Some(value) = self {
            value.traverse(visitor);
        }
    }

    fn clear(&self, py: Python<'_>) {
        if let Some(value) = self {
            value.clear(py);
        }
    }
}

// SAFETY: each item owns its references.
unsafe impl<T: Traverse, const N: usize> Traverse for [T; N] {
    fn traverse(&self, visitor: &mut Visitor<'_>) {
        self.iter().for_each(|item| item.traverse(visitor));
    }

    fn clear(&self, py: Python<'_>) {
        self.iter().for_each(|item| item.clear(py));
    }
}

/// What a collection of references must be able to do to be cleared.
pub(crate) trait Collection: Sized {
    /// What it is a collection of.
    type Item: Traverse;

    /// Calls `f` with each item.
    fn each(&self, f: &mut dyn FnMut(&Self::Item));

    /// Takes all items out.
    fn take_all(&mut self) -> Self;
}

impl<T: Traverse> Collection for VecDeque<T> {
    type Item = T;

    fn each(&self, f: &mut dyn FnMut(&T)) {
        self.iter().for_each(f);
    }

    fn take_all(&mut self) -> Self {
        std::mem::take(self)
    }
}

impl<T: Traverse> Collection for Option<T> {
    type Item = T;

    fn each(&self, f: &mut dyn FnMut(&T)) {
        self.iter().for_each(f);
    }

    fn take_all(&mut self) -> Self {
        self.take()
    }
}

impl<T: Traverse> Collection for Vec<T> {
    type Item = T;

    fn each(&self, f: &mut dyn FnMut(&T)) {
        self.iter().for_each(f);
    }

    fn take_all(&mut self) -> Self {
        std::mem::take(self)
    }
}

// SAFETY: standard collections pass each item once. While one is being changed, its items are not reported, which only delays their
// collection.
#[allow(private_bounds, reason = "only these collections are known to pass each item once")]
unsafe impl<C: Collection> Traverse for RefCell<C> {
    fn traverse(&self, visitor: &mut Visitor<'_>) {
        if let Ok(items) = self.try_borrow() {
            items.each(&mut |item| item.traverse(visitor));
        }
    }

    fn clear(&self, py: Python<'_>) {
        let items = self.borrow_mut().take_all();
        items.each(&mut |item| item.clear(py));
    }
}

/// A value that an object owns, and that Rust code refers to as well, by an [`Rc`].
pub struct Shared<T>(Rc<T>);

impl<T> Shared<T> {
    /// Shares a value.
    pub fn new(value: T) -> Shared<T> {
        Shared(Rc::new(value))
    }

    /// Returns the value.
    pub fn rc(&self) -> &Rc<T> {
        &self.0
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

// SAFETY: only `new` creates one, so there is one for each value, whatever other references to the value there are.
unsafe impl<T: Traverse> Traverse for Shared<T> {
    fn traverse(&self, visitor: &mut Visitor<'_>) {
        self.0.traverse(visitor);
    }

    fn clear(&self, py: Python<'_>) {
        self.0.clear(py);
    }
}

/// Implements [`Traverse`] for a struct, given the fields that own references.
#[macro_export]
macro_rules! owns {
    ($type:ty { $($field:ident),* $(,)? }) => {
        // SAFETY: a pattern names a field at most once, so no reference is reported twice.
        unsafe impl $crate::slot::Traverse for $type {
            #[allow(unused_variables, reason = "there may be no fields")]
            fn traverse(&self, visitor: &mut $crate::slot::Visitor<'_>) {
                let Self { $($field,)* .. } = self;
                $($crate::slot::Traverse::traverse($field, visitor);)*
            }

            #[allow(unused_variables, reason = "there may be no fields")]
            fn clear(&self, py: $crate::Python<'_>) {
                let Self { $($field,)* .. } = self;
                $($crate::slot::Traverse::clear($field, py);)*
            }
        }
    };
}
