//! Storage for the references in the wheel's slots: stacks of fixed-size blocks from one pool.
//!
//! With a `Vec` per slot, a cascade would have to grow those of the slots it fills from nothing. Blocks only change
//! hands: a cascade fills the blocks that it empties. In a comparison with a million timers that each own a boxed
//! closure, inserting, re-arming and firing in small steps are faster this way. Cancelling in the order set, and firing
//! everything in one jump, are slower.

use std::cmp::Ordering;

use crate::reactor::slots::Key;

/// References per block, which takes 776 bytes. A slot with a single timer uses a whole block.
const BLOCK: usize = 32;
/// Blocks kept for reuse, beyond those that the timers fill: 97 KiB. Enough for a few timers and their dead references,
/// spread over as many slots.
const SPARE_SLACK: usize = 128;

/// Stands for a timer as it was set. Dead if the timer is gone or has another order now.
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

/// Empty blocks for piles, so that timers that move from slot to slot do not allocate.
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

    /// Pops the top block. After its references have been processed, it is put back into the pool.
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

    /// Puts a block back.
    pub(super) fn put(&mut self, Filled { block, .. }: Filled) {
        self.spare.push(block);
        self.count += 1;
    }

    /// Frees blocks that this many timers are unlikely to need. It frees many at a time, and rarely, because an
    /// allocator like glibc's consolidates all of its free memory when adjacent blocks are freed.
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

/// Drops the blocks in a loop: recursive drops of many blocks would overflow the stack.
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

/// The reference that fires first is the greatest, so that a heap and a sorted `Vec` both pop it first.
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
