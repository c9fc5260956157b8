//! Room for large messages on the heap.
//!
//! glibc gives memory at the end of the heap back to the system when enough of it is free, and takes it again when it is
//! needed. A program that echoes messages of 100 KB so has two blocks mapped in and out for each of them, page by page, which takes
//! longer than all the rest. Whether it does depends on what happens to lie at the end of the heap.
//!
//! So when the first large message comes in, a thread has the heap made larger, puts a small block at its end, and keeps that. What is
//! before it is free, and is not given back: large blocks come from there. No setting of the allocator is changed, and memory that
//! is never used is never there.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::cell::RefCell;
    use std::ffi::c_void;

    /// What is to be free, in blocks below the size from which glibc maps each by itself.
    const BLOCK: usize = 120 * 1024;
    const BLOCKS: usize = 32;

    /// Larger than most of what lies about free between others, so that it soon comes from the end.
    const LAST: usize = 32 * 1024;

    struct Kept(*mut c_void);

    impl Drop for Kept {
        fn drop(&mut self) {
            // SAFETY: it is from `malloc`, and nobody else has it.
            unsafe { libc::free(self.0) };
        }
    }

    thread_local! {
        static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
    }

    pub(crate) fn make_room() {
        // While a thread ends there is no need any more.
        let _ = KEPT.try_with(|kept| {
            if kept.borrow().is_none() {
                *kept.borrow_mut() = Some(Kept(block_after_room()));
            }
        });
    }

    #[cold]
    fn block_after_room() -> *mut c_void {
        // SAFETY: what was allocated is freed, but for one; `free` takes null for nothing.
        unsafe {
            let mut blocks: Vec<*mut c_void> = (0..BLOCKS).map(|_| libc::malloc(BLOCK)).collect();
            let end = blocks.iter().copied().max();
            let mut last = libc::malloc(LAST);
            for _ in 0..BLOCKS {
                if Some(last) > end {
                    break;
                }
                // It was free between others.
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

/// A message that large is a reason to have room.
const LARGE: usize = 32 * 1024;

/// A message of so many bytes has come in.
#[inline]
pub(crate) fn received(len: usize) {
    if len >= LARGE {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::make_room();
    }
}
