//! Buffers for sending and receiving.

use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

/// Bytes that begin at a page boundary.
///
/// The kernel copies with `rep movsb`. On AMD's Zen 3 and 4 that takes up to five times as long if the destination is between 1
/// and 31 bytes further into a page than the source. Messages of whole pages begin at page boundaries in the kernel. Where a
/// `Vec` begins depends on earlier allocations, which differ between contenders but are the same in every run.
pub struct Pages {
    bytes: Vec<u8>,
    start: usize,
}

impl Pages {
    pub fn new(content: &[u8]) -> Self {
        let mut bytes = vec![0; content.len() + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        bytes.truncate(start + content.len());
        bytes[start..].copy_from_slice(content);
        Self { bytes, start }
    }
}

impl Clone for Pages {
    fn clone(&self) -> Self {
        Self::new(self)
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(formatter)
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_begin_where_a_page_does_too() {
        for len in [0, 1, 100, PAGE, 100_000] {
            let content: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
            let pages = Pages::new(&content);
            for pages in [pages.clone(), pages] {
                assert_eq!(pages.as_ptr().addr() % PAGE, 0);
                assert_eq!(*pages, *content);
            }
        }
    }
}
