//! One level of the wheel: 64 slots, and a bitmap of the occupied ones.

use std::iter;
use std::mem;

use super::TICK_BITS;
use super::pile::{Pile, Pool, Ref};

/// 64 slots per level, so that one word holds the occupied bits.
const GROUP_BITS: u32 = 6;
pub(super) const SLOTS: usize = 1 << GROUP_BITS;
pub(super) const LEVELS: usize = ((u64::BITS - TICK_BITS) / GROUP_BITS) as usize;

pub(super) struct Level {
    /// The slots that hold references.
    occupied: u64,
    /// The slots whose `earliest` may be that of a dead reference.
    doubtful: u64,
    slots: [Slot; SLOTS],
}

struct Slot {
    refs: Pile,
    /// No reference in this slot has an earlier deadline. `u64::MAX` if it is empty.
    earliest: u64,
}

impl Level {
    pub(super) const EMPTY: Level = Level { occupied: 0, doubtful: 0, slots: [const { Slot::EMPTY }; SLOTS] };

    /// Returns the slots that are occupied now, first to last.
    #[inline]
    pub(super) fn occupied(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.occupied;
        iter::from_fn(move || {
            let lowest = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(lowest)
        })
    }

    pub(super) fn len(&self, index: usize) -> usize {
        self.slots[index].refs.len()
    }

    /// Returns a lower bound for the deadlines in the slot. Unless it is doubtful, a live reference has exactly this
    /// deadline.
    pub(super) fn earliest(&self, index: usize) -> u64 {
        self.slots[index].earliest
    }

    pub(super) fn is_doubtful(&self, index: usize) -> bool {
        self.doubtful & (1 << index) != 0
    }

    /// Records that a reference in the slot with this deadline is dead.
    #[inline]
    pub(super) fn doubt(&mut self, index: usize, deadline: u64) {
        debug_assert!(self.earliest(index) <= deadline && !self.slots[index].refs.is_empty());
        if self.earliest(index) == deadline {
            self.doubtful |= 1 << index;
        }
    }

    /// Records that any reference may be dead.
    pub(super) fn doubt_all(&mut self) {
        self.doubtful = self.occupied;
    }

    #[inline]
    pub(super) fn push(&mut self, index: usize, new: Ref, pool: &mut Pool) {
        self.occupied |= 1 << index;
        let slot = &mut self.slots[index];
        slot.earliest = slot.earliest.min(new.deadline);
        slot.refs.push(new, pool);
    }

    /// Removes the slot's last reference if it has this order. Returns whether it did.
    #[inline]
    pub(super) fn pop_if_last(&mut self, index: usize, order: u64, pool: &mut Pool) -> bool {
        let refs = &mut self.slots[index].refs;
        let is_last = refs.last().is_some_and(|last| last.order == order);
        if is_last {
            refs.pop(pool);
            if refs.is_empty() {
                self.take(index);
            }
        }
        is_last
    }

    /// Empties a slot and returns its references.
    #[inline]
    pub(super) fn take(&mut self, index: usize) -> Pile {
        self.occupied &= !(1 << index);
        self.doubtful &= !(1 << index);
        mem::replace(&mut self.slots[index], Slot::EMPTY).refs
    }

    /// Removes the references from a slot that are not `live`. Returns how many.
    pub(super) fn retain(&mut self, index: usize, pool: &mut Pool, live: impl Fn(&Ref) -> bool) -> usize {
        let mut refs = self.take(index);
        let before = refs.len();
        while let Some(block) = refs.pop_block() {
            for each in block.refs().iter().filter(|each| live(each)) {
                self.push(index, *each, pool);
            }
            pool.put(block);
        }
        before - self.len(index)
    }

    #[cfg(test)]
    pub(super) fn refs(&self, index: usize) -> Vec<Ref> {
        self.slots[index].refs.to_vec()
    }
}

impl Slot {
    const EMPTY: Slot = Slot { refs: Pile::EMPTY, earliest: u64::MAX };
}

/// Returns the level of the highest group in which two ticks differ, given their exclusive or.
#[inline]
pub(super) fn top_level(difference: u64) -> usize {
    debug_assert_ne!(difference, 0);
    ((u64::BITS - 1 - difference.leading_zeros()) / GROUP_BITS) as usize
}

/// Returns the slot of a tick at a level.
#[inline]
pub(super) fn group(tick: u64, level: usize) -> usize {
    (tick >> (level as u32 * GROUP_BITS)) as usize % SLOTS
}
