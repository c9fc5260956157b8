//! A table whose places are reused, and whose keys notice it.

use std::mem;

/// The largest generation: 28 bits, so that index, generation and a 4-bit operation share one 64-bit token.
pub(crate) const MAX_GENERATION: u32 = (1 << 28) - 1;

/// Ends a chain of free or retired places.
const NONE: u32 = u32::MAX;

/// Places up to which memory is kept though the table is empty, so that a handful that come and go allocate nothing.
const KEEP: usize = 64;

/// Free places that one [`Slots::trim`] cuts off at most, of which each may be a cache miss or two: 0.4 ms.
const CUT_AT_ONCE: usize = 4096;

/// Names one value in a [`Slots`], for as long as it is there; afterwards it finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    /// The place in the table.
    pub(crate) index: u32,
    /// Which of the values that have had this place; never 0, at most [`MAX_GENERATION`].
    pub(crate) generation: u32,
}

/// A generational slab: values in one `Vec`, found by [`Key`], places reused last-freed first.
///
/// Generations come from one counter for the whole table, not from the place, so places can be cut off at the end and
/// grown again without forgetting which generations they have had. A key is mistaken for another only if its place is
/// reused exactly a multiple of 2^28 - 1 insertions later.
///
/// Free places are linked both ways. That is what makes cutting off the end simple: each free place at the end is
/// unlinked on its own in O(1), and was paid for by the `insert` that made it.
pub(crate) struct Slots<T> {
    places: Vec<Place<T>>,
    len: usize,
    /// The place freed last.
    free: u32,
    /// The place retired last.
    retired: u32,
    generation: u32,
}

enum Place<T> {
    Taken {
        generation: u32,
        value: T,
    },
    Free {
        previous: u32,
        next: u32,
    },
    /// Vacant, but not to be reused before [`Slots::recycle`].
    Retired {
        next: u32,
    },
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots::new()
    }
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Slots<T> {
        Slots { places: Vec::new(), len: 0, free: NONE, retired: NONE, generation: 0 }
    }

    /// How many values are held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many places the table has: every index is below this.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let generation = if self.generation == MAX_GENERATION { 1 } else { self.generation + 1 };
        let taken = Place::Taken { generation, value };
        let index = if self.free == NONE {
            assert!(self.places.len() < NONE as usize, "a slab holds fewer than 2^32 - 1 values");
            self.places.push(taken);
            (self.places.len() - 1) as u32
        } else {
            let index = self.free;
            self.unlink(index);
            self.places[index as usize] = taken;
            index
        };
        self.generation = generation;
        self.len += 1;
        Key { index, generation }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.places.get(key.index as usize) {
            Some(Place::Taken { generation, value }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.places.get_mut(key.index as usize) {
            Some(Place::Taken { generation, value }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// Takes the value out; its place can be reused at once.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.take(key)?;
        self.trim();
        Some(value)
    }

    /// Like [`remove`](Slots::remove), but leaves it to the caller to [`trim`](Slots::trim) when there is time for that.
    #[inline]
    pub(crate) fn take(&mut self, key: Key) -> Option<T> {
        let value = self.vacate(key, Place::Free { previous: NONE, next: self.free })?;
        self.link(key.index);
        Some(value)
    }

    /// Takes the value out; its place can be reused only after the next [`recycle`](Slots::recycle).
    pub(crate) fn retire(&mut self, key: Key) -> Option<T> {
        let value = self.vacate(key, Place::Retired { next: self.retired })?;
        self.retired = key.index;
        Some(value)
    }

    /// Makes the places of all retired values free.
    pub(crate) fn recycle(&mut self) {
        if self.retired == NONE && self.free == NONE {
            return;
        }
        while self.retired != NONE {
            let index = self.retired;
            let place = &mut self.places[index as usize];
            let Place::Retired { next } = *place else { unreachable!("the retired chain holds only retired places") };
            *place = Place::Free { previous: NONE, next: self.free };
            self.retired = next;
            self.link(index);
        }
        self.trim();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().zip(0..).filter_map(|(place, index)| match place {
            Place::Taken { generation, value } => Some((Key { index, generation: *generation }, value)),
            _ => None,
        })
    }

    /// Puts `vacant` in the place of `key`'s value, if that is still there.
    fn vacate(&mut self, key: Key, vacant: Place<T>) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        match place {
            Place::Taken { generation, .. } if *generation == key.generation => {}
            _ => return None,
        }
        let Place::Taken { value, .. } = mem::replace(place, vacant) else { unreachable!("matched above") };
        self.len -= 1;
        Some(value)
    }

    /// Makes `index`, whose `next` already is the first free place, the first free place.
    fn link(&mut self, index: u32) {
        if self.free != NONE
            && let Place::Free { previous, .. } = &mut self.places[self.free as usize]
        {
            *previous = index;
        }
        self.free = index;
    }

    /// Takes a free place out of the chain of free places.
    fn unlink(&mut self, index: u32) {
        let Place::Free { previous, next } = self.places[index as usize] else {
            unreachable!("only free places are linked")
        };
        match self.places.get_mut(previous as usize) {
            Some(Place::Free { next: link, .. }) => *link = next,
            _ => self.free = next,
        }
        if let Some(Place::Free { previous: link, .. }) = self.places.get_mut(next as usize) {
            *link = previous;
        }
    }

    /// Cuts off free places at the end, and gives memory back when most of it is unused. A bounded piece of work: what is
    /// left waits for the next call.
    pub(crate) fn trim(&mut self) {
        if self.len == 0 && self.retired == NONE {
            // Nothing is worth unlinking one by one.
            self.places.clear();
            self.free = NONE;
        }
        let mut most = CUT_AT_ONCE;
        while let Some(Place::Free { .. }) = self.places.last()
            && most > 0
        {
            self.unlink((self.places.len() - 1) as u32);
            self.places.pop();
            most -= 1;
        }
        // At most half of what is left is filled afterwards, so the next move is as many steps away as this one costs.
        if self.places.capacity() > KEEP && self.places.len() < self.places.capacity() / 4 {
            self.places.shrink_to((self.places.len() * 2).max(KEEP));
        }
    }

    /// Bytes of memory held, apart from what the values themselves own.
    #[cfg(test)]
    pub(crate) fn footprint(&self) -> usize {
        self.places.capacity() * size_of::<Place<T>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_key_finds_its_value_until_it_is_removed() {
        let mut slots = Slots::new();
        let (a, b) = (slots.insert("a"), slots.insert("b"));
        *slots.get_mut(b).unwrap() = "B";
        assert_eq!((slots.get(a), slots.get(b), slots.len()), (Some(&"a"), Some(&"B"), 2));
        assert_eq!(slots.remove(a), Some("a"));
        assert_eq!(slots.remove(a), None);
        assert!(slots.get(a).is_none() && slots.get(b).is_some());
        assert_eq!(slots.get_mut(a), None);
    }

    #[test]
    fn a_stale_key_does_not_find_the_next_value_in_its_place() {
        let mut slots = Slots::new();
        let keeps_the_table = slots.insert(0);
        let old = slots.insert(1);
        slots.remove(old);
        let new = slots.insert(2);
        assert_eq!(new.index, old.index);
        assert_eq!(slots.get(old), None);
        assert_eq!((slots.remove(old), slots.retire(old)), (None, None));
        assert_eq!(slots.get(new), Some(&2));
        // Also when the table was cut down to nothing in between.
        slots.remove(new);
        slots.remove(keeps_the_table);
        assert_eq!(slots.insert(3).index, keeps_the_table.index);
        assert!(slots.get(keeps_the_table).is_none());
    }

    #[test]
    fn a_retired_place_is_reused_only_after_recycle() {
        let mut slots = Slots::new();
        let (a, b) = (slots.insert("a"), slots.insert("b"));
        assert_eq!((slots.retire(a), slots.retire(b)), (Some("a"), Some("b")));
        assert!(slots.is_empty());
        let c = slots.insert("c");
        assert!(c.index != a.index && c.index != b.index);
        // Removing the last place must not cut off or hand out the retired ones before it.
        slots.remove(c);
        let d = slots.insert("d");
        assert!(d.index != a.index && d.index != b.index);
        slots.recycle();
        let reused = [slots.insert("e").index, slots.insert("f").index];
        assert!(reused.contains(&a.index) && reused.contains(&b.index));
    }

    #[test]
    fn generations_stay_within_28_bits_and_are_never_zero() {
        let mut slots = Slots::new();
        slots.generation = MAX_GENERATION - 1;
        assert_eq!(slots.insert(()).generation, MAX_GENERATION);
        assert_eq!(slots.insert(()).generation, 1);
    }

    #[test]
    fn memory_is_given_back_in_whatever_order_values_go() {
        for stride in [1, 7, 999_983] {
            let mut slots = Slots::new();
            let keys: Vec<Key> = (0..100_000).map(|n| slots.insert(n)).collect();
            let full = slots.footprint();
            for n in 10..keys.len() {
                slots.remove(keys[10 + (n - 10) * stride % (keys.len() - 10)]);
            }
            assert_eq!(slots.len(), 10);
            // Each a bounded piece of work.
            for _ in 0..100_000 / CUT_AT_ONCE + 1 {
                slots.trim();
            }
            assert!(slots.footprint() * 100 < full, "{} of {full} left", slots.footprint());
            assert_eq!(slots.iter().map(|(_, &n)| n).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn values_that_come_and_go_allocate_nothing() {
        let mut slots = Slots::new();
        let mut keys: Vec<Key> = (0..1000).map(|n| slots.insert(n)).collect();
        let full = slots.footprint();
        for n in 0..10_000 {
            slots.remove(keys[n % 1000]);
            keys[n % 1000] = slots.insert(n);
        }
        assert_eq!(slots.footprint(), full);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0..10u8, any::<prop::sample::Index>()), 1..400)) {
            let mut slots = Slots::new();
            let mut model = HashMap::new();
            let mut keys = Vec::new();
            let mut resting = Vec::new();
            for (number, (kind, pick)) in steps.into_iter().enumerate() {
                if kind < 4 || keys.is_empty() {
                    let key = slots.insert(number);
                    prop_assert!(!resting.contains(&key.index));
                    prop_assert_eq!(model.insert(key, number), None);
                    keys.push(key);
                    continue;
                }
                let key = *pick.get(&keys);
                match kind {
                    4..7 => prop_assert_eq!(slots.remove(key), model.remove(&key)),
                    7..9 => {
                        let expected = model.remove(&key);
                        resting.extend(expected.map(|_| key.index));
                        prop_assert_eq!(slots.retire(key), expected);
                    }
                    _ => {
                        slots.recycle();
                        resting.clear();
                    }
                }
                prop_assert_eq!(slots.len(), model.len());
                for key in &keys {
                    prop_assert_eq!(slots.get(*key), model.get(key));
                }
                prop_assert_eq!(slots.iter().count(), model.len());
                prop_assert!(slots.iter().all(|(key, value)| model.get(&key) == Some(value)));
                let ends_with_free = matches!(slots.places.last(), Some(Place::Free { .. }));
                prop_assert!(!ends_with_free, "so few are cut off at once");
            }
        }
    }
}
