//! Memory to receive into.

use std::fmt;
use std::mem::MaybeUninit;
use std::slice;

/// Memory of the caller to receive into. It may be uninitialized.
///
/// ```
/// use pelton_os::Space;
///
/// let mut bytes = [0; 8];
/// assert_eq!(Space::from(&mut bytes[..]).fill(b"hello"), 5);
/// assert_eq!(&bytes, b"hello\0\0\0");
/// ```
pub struct Space<'a> {
    /// Never written to with uninitialized bytes: it may be initialized memory.
    memory: &'a mut [MaybeUninit<u8>],
}

impl<'a> Space<'a> {
    /// Returns the number of bytes that fit.
    #[inline]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns whether nothing fits.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Copies as much of `bytes` as fits to the beginning. Returns how much.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = self.len().min(bytes.len());
        self.memory[..count].write_copy_of_slice(&bytes[..count]);
        count
    }

    /// Returns the memory for a system call that writes to it.
    #[inline]
    pub(crate) fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        self.memory
    }
}

impl<'a> From<&'a mut [u8]> for Space<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Space<'a> {
        // SAFETY: both types have the same layout. Only `fill` and system calls write to the memory, and they write initialized bytes,
        // so it is still initialized when the borrow ends.
        let memory = unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) };
        Space { memory }
    }
}

impl<'a> From<&'a mut [MaybeUninit<u8>]> for Space<'a> {
    #[inline]
    fn from(memory: &'a mut [MaybeUninit<u8>]) -> Space<'a> {
        Space { memory }
    }
}

impl fmt::Debug for Space<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Space({} bytes)", self.len())
    }
}
