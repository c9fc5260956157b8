//! Atomics and cells: the real ones, or loom's, which try every order that the memory model allows.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicPtr, AtomicU8, AtomicUsize, fence},
};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicPtr, AtomicU8, AtomicUsize, fence},
    },
    thread::yield_now,
};

#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// [`std::cell::UnsafeCell`] with the interface of loom's.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Puts values that different threads write on separate cache lines. Two lines each, because processors prefetch them in pairs.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
