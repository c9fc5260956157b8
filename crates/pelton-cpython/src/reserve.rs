//! Keeps free heap space for large messages.
//!
//! glibc returns memory at the end of the heap to the system when enough of it is free, and requests it again when it
//! is needed. A program that echoes messages of 100 KB then has two blocks mapped and unmapped, page by page, for each
//! of them, which takes longer than all the rest. Whether this happens depends on what lies at the end of the heap.
//!
//! So when a thread receives its first large message, it grows the heap, allocates a small block at the end and
//! keeps that block. The space before it is free but is not returned to the system, and large blocks come from
//! there. No allocator setting is changed, and pages that are never touched use no memory.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::cell::RefCell;
    use std::ffi::c_void;

    /// The space to keep free, in blocks below the size from which glibc maps each block separately.
    const BLOCK: usize = 120 * 1024;
    const BLOCKS: usize = 32;

    /// Larger than most free gaps, so that after a few allocations a block comes from the end of the heap.
    const LAST: usize = 32 * 1024;

    struct Kept(*mut c_void);

    impl Drop for Kept {
        fn drop(&mut self) {
            // SAFETY: the block is from `malloc`, and only this value owns it.
            unsafe { libc::free(self.0) };
        }
    }

    thread_local! {
        static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
    }

    pub fn make_room() {
        // A thread that is ending no longer needs the space.
        let _ = KEPT.try_with(|kept| {
            if kept.borrow().is_none() {
                *kept.borrow_mut() = Some(Kept(block_after_room()));
            }
        });
    }

    #[cold]
    fn block_after_room() -> *mut c_void {
        // SAFETY: each block is freed once, except for `last`, which is returned. `free` ignores null.
        unsafe {
            let mut blocks: Vec<*mut c_void> = (0..BLOCKS).map(|_| libc::malloc(BLOCK)).collect();
            let end = blocks.iter().copied().max();
            let mut last = libc::malloc(LAST);
            for _ in 0..BLOCKS {
                if Some(last) > end {
                    break;
                }
                // It was in a gap.
                blocks.push(last);
                last = libc::malloc(LAST);
            }
            for block in blocks {
                libc::free(block);
            }
            last
        }
    }
}

/// Messages of at least this size, in bytes, reserve space.
const LARGE: usize = 32 * 1024;

/// Notes that a message of `len` bytes was received.
#[inline]
pub fn received(len: usize) {
    if len >= LARGE {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::make_room();
    }
}
