//! State that callbacks share.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::Reactor;

/// One value per type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any>, BuildHasherDefault<TypeHasher>>);

/// Uses the id of a type unchanged: it is a hash already.
#[derive(Default)]
struct TypeHasher(u64);

impl Hasher for TypeHasher {
    fn write(&mut self, bytes: &[u8]) {
        // A `TypeId` does not call this today, but the result is correct if it ever does.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Reactor {
    /// Returns the reactor's value of type `T`, and creates it on first use. Callbacks can share state here instead of
    /// each holding a reference-counted cell.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// #[derive(Default)]
    /// struct Visits(u32);
    ///
    /// let mut reactor = Reactor::new()?;
    /// reactor.next_tick(|reactor| reactor.state::<Visits>().0 += 1);
    /// reactor.next_tick(|reactor| {
    ///     reactor.state::<Visits>().0 += 1;
    ///     reactor.stop();
    /// });
    /// reactor.run()?;
    /// assert_eq!(reactor.state::<Visits>().0, 2);
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn state<T: Default + 'static>(&mut self) -> &mut T {
        let value = self.states.0.entry(TypeId::of::<T>()).or_insert_with(|| Box::<T>::default());
        value.downcast_mut().expect("the key is the value's type")
    }

    /// Returns the reactor's value of type `T`, if there is one.
    pub fn try_state<T: 'static>(&mut self) -> Option<&mut T> {
        self.states.0.get_mut(&TypeId::of::<T>())?.downcast_mut()
    }

    /// Stores a value of type `T` and returns the previous one. Together with [`take_state`](Reactor::take_state), this
    /// allows using the value and the reactor at the same time.
    pub fn put_state<T: 'static>(&mut self, value: T) -> Option<T> {
        let previous = self.states.0.insert(TypeId::of::<T>(), Box::new(value))?;
        previous.downcast().ok().map(|value| *value)
    }

    /// Removes the value of type `T` and returns it.
    pub fn take_state<T: 'static>(&mut self) -> Option<T> {
        self.states.0.remove(&TypeId::of::<T>())?.downcast().ok().map(|value| *value)
    }
}
