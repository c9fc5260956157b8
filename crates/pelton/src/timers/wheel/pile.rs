//! Where the wheel's slots keep their references: in piles of fixed-size blocks that come from one pool.
//!
//! Instead of a `Vec` per slot, because the slots that a cascade fills would have to grow theirs from nothing, while
//! blocks only change hands: a cascade fills the ones it empties. Measured side by side with a million timers that each
//! own a boxed closure, inserting, re-arming and firing in small steps are faster so; cancelling in the order set, and
//! firing everything in one jump, are slower.

use std::cmp::Ordering;

use crate::reactor::slots::Key;

/// References per block, which takes 776 bytes. A slot with a single timer has a whole one.
const BLOCK: usize = 32;
/// Blocks kept for reuse, beyond as many as the timers fill: 97 KiB. Enough for a few timers and the dead references these
/// may have in as many slots.
const SPARE_SLACK: usize = 128;

/// Stands for a timer as it was set: dead if the timer is gone or has another order by now.
#[derive(Clone, Copy)]
pub(super) struct Ref {
    pub(super) deadline: u64,
    pub(super) order: u64,
    pub(super) key: Key,
}

/// A stack of references.
pub(super) struct Pile {
    blocks: Chain,
    len: usize,
}

/// Empty blocks to build piles from, so that timers that wander from slot to slot allocate nothing.
pub(super) struct Pool {
    spare: Chain,
    count: usize,
}

/// A block taken off a pile.
pub(super) struct Filled {
    block: Box<Block>,
    len: usize,
}

struct Block {
    refs: [Ref; BLOCK],
    below: Option<Box<Block>>,
}

struct Chain(Option<Box<Block>>);

impl Pile {
    pub(super) const EMPTY: Pile = Pile { blocks: Chain(None), len: 0 };

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn push(&mut self, new: Ref, pool: &mut Pool) {
        let at = self.len % BLOCK;
        self.len += 1;
        match &mut self.blocks.0 {
            Some(top) if at > 0 => top.refs[at] = new,
            _ => self.blocks.push(pool.take(new)),
        }
    }

    #[inline]
    pub(super) fn last(&self) -> Option<&Ref> {
        self.blocks.0.as_ref().map(|top| &top.refs[(self.len - 1) % BLOCK])
    }

    #[inline]
    pub(super) fn pop(&mut self, pool: &mut Pool) {
        debug_assert!(!self.is_empty());
        self.len -= 1;
        if self.len.is_multiple_of(BLOCK)
            && let Some(top) = self.blocks.pop()
        {
            pool.put(Filled { block: top, len: 0 });
        }
    }

    /// Takes off the top block. When its references have been dealt with, it goes back to the pool.
    #[inline]
    pub(super) fn pop_block(&mut self) -> Option<Filled> {
        let block = self.blocks.pop()?;
        let len = (self.len - 1) % BLOCK + 1;
        self.len -= len;
        Some(Filled { block, len })
    }

    #[cfg(test)]
    pub(super) fn to_vec(&self) -> Vec<Ref> {
        let mut refs = Vec::new();
        let mut next = &self.blocks.0;
        while let Some(block) = next {
            refs.extend(&block.refs[..(self.len - refs.len() - 1) % BLOCK + 1]);
            next = &block.below;
        }
        assert_eq!(refs.len(), self.len);
        refs
    }
}

impl Filled {
    #[inline]
    pub(super) fn refs(&self) -> &[Ref] {
        &self.block.refs[..self.len]
    }
}

impl Pool {
    pub(super) const EMPTY: Pool = Pool { spare: Chain(None), count: 0 };

    fn take(&mut self, first: Ref) -> Box<Block> {
        match self.spare.pop() {
            Some(mut block) => {
                self.count -= 1;
                block.refs[0] = first;
                block
            }
            None => Box::new(Block { refs: [first; BLOCK], below: None }),
        }
    }

    /// Takes a block back.
    pub(super) fn put(&mut self, Filled { block, .. }: Filled) {
        self.spare.push(block);
        self.count += 1;
    }

    /// Gives back the memory of blocks that so many timers will hardly need: not one by one, since an allocator like
    /// glibc's tidies up all of its free memory when blocks next to each other are freed, but many at a time, and seldom.
    #[inline]
    pub(super) fn trim(&mut self, timers: usize) {
        let filled = timers / BLOCK;
        if self.count > filled * 4 + SPARE_SLACK * 2 {
            while self.count > filled + SPARE_SLACK {
                self.spare.pop();
                self.count -= 1;
            }
        }
    }
}

impl Chain {
    #[inline]
    fn push(&mut self, mut block: Box<Block>) {
        block.below = self.0.take();
        self.0 = Some(block);
    }

    #[inline]
    fn pop(&mut self) -> Option<Box<Block>> {
        let mut top = self.0.take()?;
        self.0 = top.below.take();
        Some(top)
    }
}

/// One by one: dropped from within each other, many blocks would overflow the stack.
impl Drop for Chain {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl Ref {
    #[inline]
    fn rank(&self) -> u128 {
        u128::from(self.deadline) << 64 | u128::from(self.order)
    }
}

/// The one to fire first is the greatest: what a heap pops, and a sorted `Vec` too.
impl Ord for Ref {
    #[inline]
    fn cmp(&self, other: &Ref) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl PartialOrd for Ref {
    #[inline]
    fn partial_cmp(&self, other: &Ref) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Ref) -> bool {
        other.rank() < self.rank()
    }
}

impl PartialEq for Ref {
    #[inline]
    fn eq(&self, other: &Ref) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Ref {}
