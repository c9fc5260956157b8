//! A generational slab: slots are reused, and stale keys find nothing.

use std::mem;

/// The largest generation: 28 bits, so that index, generation and a 4-bit operation fit into a 64-bit token.
pub(crate) const MAX_GENERATION: u32 = (1 << 28) - 1;

/// Ends a list of free or retired slots.
const NONE: u32 = u32::MAX;

/// The number of slots whose memory is kept even if the table is empty, so that a few values that come and go allocate
/// nothing.
const KEEP: usize = 64;

/// The maximum number of free slots that one [`Slots::trim`] cuts off. Each may cost one or two cache misses: 0.4 ms in
/// total.
const CUT_AT_ONCE: usize = 4096;

/// Identifies a value in a [`Slots`] until the value is removed. After that it finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    /// The index of the slot.
    pub(crate) index: u32,
    /// Tells apart the successive values of a slot. Never 0, at most [`MAX_GENERATION`].
    pub(crate) generation: u32,
}

/// A generational slab. Values are stored in one `Vec` and found by [`Key`]. The slot freed last is reused first.
///
/// Generations come from one counter for the whole table, not from the slot. So slots can be cut off at the end and
/// added again without storing their past generations. A stale key is mistaken for a live one only if its slot is
/// reused exactly a multiple of 2^28 - 1 insertions later.
///
/// The list of free slots is doubly linked, which makes cutting off the end simple: each free slot at the end is
/// unlinked in O(1), and the `insert` that created it has paid for that.
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    len: usize,
    /// The slot freed last.
    free: u32,
    /// The slot retired last.
    retired: u32,
    generation: u32,
}

enum Slot<T> {
    Taken {
        generation: u32,
        value: T,
    },
    Free {
        previous: u32,
        next: u32,
    },
    /// Vacant, but not reused before [`Slots::recycle`].
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
        Slots { slots: Vec::new(), len: 0, free: NONE, retired: NONE, generation: 0 }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of slots. Every index is below it.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let generation = if self.generation == MAX_GENERATION { 1 } else { self.generation + 1 };
        let taken = Slot::Taken { generation, value };
        let index = if self.free == NONE {
            assert!(self.slots.len() < NONE as usize, "a slab holds fewer than 2^32 - 1 values");
            self.slots.push(taken);
            (self.slots.len() - 1) as u32
        } else {
            let index = self.free;
            self.unlink(index);
            self.slots[index as usize] = taken;
            index
        };
        self.generation = generation;
        self.len += 1;
        Key { index, generation }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.slots.get(key.index as usize) {
            Some(Slot::Taken { generation, value }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.index as usize) {
            Some(Slot::Taken { generation, value }) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// Removes the value. Its slot can be reused immediately.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.take(key)?;
        self.trim();
        Some(value)
    }

    /// Removes the value like [`remove`](Slots::remove), but leaves it to the caller to [`trim`](Slots::trim) at a
    /// better time.
    #[inline]
    pub(crate) fn take(&mut self, key: Key) -> Option<T> {
        let value = self.vacate(key, Slot::Free { previous: NONE, next: self.free })?;
        self.link(key.index);
        Some(value)
    }

    /// Removes the value. Its slot can be reused only after the next [`recycle`](Slots::recycle).
    pub(crate) fn retire(&mut self, key: Key) -> Option<T> {
        let value = self.vacate(key, Slot::Retired { next: self.retired })?;
        self.retired = key.index;
        Some(value)
    }

    /// Returns whether any slot is retired or free.
    #[inline]
    pub(crate) fn any_vacant(&self) -> bool {
        self.retired != NONE || self.free != NONE
    }

    /// Frees all retired slots.
    pub(crate) fn recycle(&mut self) {
        if !self.any_vacant() {
            return;
        }
        while self.retired != NONE {
            let index = self.retired;
            let slot = &mut self.slots[index as usize];
            let Slot::Retired { next } = *slot else { unreachable!("the retired list holds only retired slots") };
            *slot = Slot::Free { previous: NONE, next: self.free };
            self.retired = next;
            self.link(index);
        }
        self.trim();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| match slot {
            Slot::Taken { generation, value } => Some((Key { index, generation: *generation }, value)),
            _ => None,
        })
    }

    /// Replaces the value of `key` by `vacant`, if it still exists, and returns it.
    fn vacate(&mut self, key: Key, vacant: Slot<T>) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        match slot {
            Slot::Taken { generation, .. } if *generation == key.generation => {}
            _ => return None,
        }
        let Slot::Taken { value, .. } = mem::replace(slot, vacant) else { unreachable!("matched above") };
        self.len -= 1;
        Some(value)
    }

    /// Makes `index` the head of the free list. Its `next` must already be the current head.
    fn link(&mut self, index: u32) {
        if self.free != NONE
            && let Slot::Free { previous, .. } = &mut self.slots[self.free as usize]
        {
            *previous = index;
        }
        self.free = index;
    }

    /// Removes a slot from the free list.
    fn unlink(&mut self, index: u32) {
        let Slot::Free { previous, next } = self.slots[index as usize] else {
            unreachable!("only free slots are linked")
        };
        match self.slots.get_mut(previous as usize) {
            Some(Slot::Free { next: link, .. }) => *link = next,
            _ => self.free = next,
        }
        if let Some(Slot::Free { previous: link, .. }) = self.slots.get_mut(next as usize) {
            *link = previous;
        }
    }

    /// Cuts off free slots at the end, and releases memory if most of it is unused. The work per call is bounded: the
    /// next call continues.
    pub(crate) fn trim(&mut self) {
        if self.len == 0 && self.retired == NONE {
            // All slots are free: no need to unlink them one by one.
            self.slots.clear();
            self.free = NONE;
        }
        let mut most = CUT_AT_ONCE;
        while let Some(Slot::Free { .. }) = self.slots.last()
            && most > 0
        {
            self.unlink((self.slots.len() - 1) as u32);
            self.slots.pop();
            most -= 1;
        }
        // At most half of the remaining capacity is used afterwards, so the cost of this move is amortised over the
        // steps until the next one.
        if self.slots.capacity() > KEEP && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to((self.slots.len() * 2).max(KEEP));
        }
    }

    /// Returns the bytes of memory held, without memory that the values own.
    #[cfg(test)]
    pub(crate) fn footprint(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<T>>()
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
        // Also if the table was emptied in between.
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
        // Removing the last slot must not cut off or hand out the retired slots before it.
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
            // The work per call is bounded.
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
                let ends_with_free = matches!(slots.slots.last(), Some(Slot::Free { .. }));
                prop_assert!(!ends_with_free, "one trim cuts off this few slots");
            }
        }
    }
}
