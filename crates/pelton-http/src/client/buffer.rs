//! Memory that requests reuse.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The maximum number of buffers that a thread keeps. A finished request returns its buffers before the next one takes them, so a
/// few are enough.
const KEPT: usize = 64;

/// The maximum size of a kept buffer, in bytes.
const LARGEST_KEPT: usize = 4096;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes whose memory is reused by the thread that drops them.
#[derive(Default, Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty buffer, with memory if there is a spare one.
    pub(crate) fn new() -> Buffer {
        Buffer(SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default())
    }

    /// A copy of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// The bytes as text, if they are ASCII or UTF-8.
    pub(super) fn text(&self, range: std::ops::Range<u32>) -> &str {
        str::from_utf8(self.0.get(range.start as usize..range.end as usize).unwrap_or_default()).unwrap_or_default()
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::of(&self.0)
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !(1..=LARGEST_KEPT).contains(&self.0.capacity()) {
            return;
        }
        let mut bytes = std::mem::take(&mut self.0);
        bytes.clear();
        // A thread that is ending needs no buffer.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < KEPT {
                spare.push(bytes);
            }
        });
    }
}
