//! Searches for a delimiter in received bytes.

use std::fmt;
use std::sync::Arc;

use memchr::memchr;
use memchr::memmem::Finder;

use super::Buffer;

/// Searches for a delimiter in a [`Buffer`] and remembers how far it has searched. Each byte is examined once,
/// regardless of the number of calls until the delimiter arrives.
///
/// ```
/// use pelton::codec::{Buffer, Found, Search};
///
/// let mut end = Search::new(b"--");
/// let mut buffer = Buffer::new();
/// buffer.feed(b"some text -".to_vec().into());
/// assert_eq!(end.find(&mut buffer, 1000), Found::NotYet);
/// buffer.feed(b"- more".to_vec().into());
/// assert_eq!(end.find(&mut buffer, 1000), Found::At(10));
/// assert_eq!(end.find(&mut buffer, 9), Found::Nowhere);
/// ```
#[derive(Clone, Debug)]
pub struct Search {
    needle: Needle,
    /// The bytes before this position do not contain the delimiter. Counted from the first byte that the buffer was
    /// ever fed.
    looked: u64,
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// This many bytes precede the delimiter.
    At(usize),
    /// The delimiter has not arrived, but still can.
    NotYet,
    /// More bytes than allowed precede the delimiter.
    Nowhere,
}

impl Search {
    /// Creates a search for `delimiter`.
    ///
    /// # Panics
    ///
    /// If `delimiter` is empty.
    pub fn new(delimiter: impl AsRef<[u8]>) -> Search {
        let needle = match delimiter.as_ref() {
            [] => panic!("a delimiter has at least one byte"),
            [byte] => Needle::Byte(*byte),
            bytes => Needle::Bytes(Arc::new(Finder::new(bytes).into_owned())),
        };
        Search { needle, looked: 0 }
    }

    /// Finds the delimiter, if at most `before` bytes precede it.
    ///
    /// Use each search with one buffer only.
    pub fn find(&mut self, buffer: &mut Buffer, before: usize) -> Found {
        let window = before.saturating_add(self.needle.len());
        let end = window.min(buffer.len());
        let looked = self.looked.saturating_sub(buffer.position());
        // The first bytes of the delimiter may already have been searched.
        let from = usize::try_from(looked).unwrap_or(end).min(end).saturating_sub(self.needle.len() - 1);
        buffer.expect(window);
        match buffer.find(&self.needle, from, end) {
            Some(at) => Found::At(at),
            None => {
                self.looked = buffer.position() + end as u64;
                if end == window { Found::Nowhere } else { Found::NotYet }
            }
        }
    }

    /// Finds the delimiter in `bytes`, which are not part of a buffer.
    pub(super) fn find_in(&self, bytes: &[u8]) -> Option<usize> {
        self.needle.find(bytes)
    }

    /// Returns the delimiter.
    pub fn delimiter(&self) -> &[u8] {
        self.needle.bytes()
    }
}

/// The delimiter, prepared for searching.
#[derive(Clone)]
pub(super) enum Needle {
    Byte(u8),
    /// Contains search tables, which clones of a codec share.
    Bytes(Arc<Finder<'static>>),
}

impl Needle {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Needle::Byte(byte) => std::slice::from_ref(byte),
            Needle::Bytes(finder) => finder.needle(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    pub(super) fn find(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Needle::Byte(byte) => memchr(*byte, bytes),
            Needle::Bytes(finder) => finder.find(bytes),
        }
    }
}

impl fmt::Debug for Needle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of `size`. Returns where `delimiter` was found, and after how many bytes.
    fn search(delimiter: &str, text: &str, size: usize, before: usize) -> (Found, usize) {
        let mut search = Search::new(delimiter);
        let mut buffer = Buffer::new();
        let mut fed = 0;
        for part in text.as_bytes().chunks(size) {
            buffer.feed(part.to_vec().into());
            fed += part.len();
            let found = search.find(&mut buffer, before);
            if found != Found::NotYet {
                return (found, fed);
            }
            assert_eq!(search.looked, fed as u64, "each byte is examined once");
        }
        (Found::NotYet, fed)
    }

    #[test]
    fn delimiter_is_found_wherever_it_is_split() {
        for size in 1..12 {
            assert_eq!(search("\n", "hello\nyou\n", size, 100).0, Found::At(5));
            assert_eq!(search("<end>", "<en<end><end>", size, 100).0, Found::At(3));
            assert_eq!(search("aab", "aaaaab", size, 100).0, Found::At(3));
            assert_eq!(search("aab", "aaaaaa", size, 100), (Found::NotYet, 6));
        }
    }

    #[test]
    fn delimiter_must_follow_within_the_limit() {
        for size in 1..9 {
            assert_eq!(search("\r\n", "hello\r\n", size, 5).0, Found::At(5));
            assert_eq!(search("\r\n", "hello\r\n", size, 4).0, Found::Nowhere);
        }
        assert_eq!(search("\r\n", "hello\r\n", 1, 4), (Found::Nowhere, 6), "refused as early as possible");
        assert_eq!(search("\n", "\n", 1, 0).0, Found::At(0));
        assert_eq!(search("\n", "x", 1, 0).0, Found::Nowhere);
        assert_eq!(search("\n", "x", 1, usize::MAX).0, Found::NotYet);
    }

    #[test]
    fn taking_bytes_does_not_affect_the_search() {
        let mut search = Search::new("ab");
        let mut buffer = Buffer::new();
        buffer.feed(b"xxxxa".to_vec().into());
        assert_eq!(search.find(&mut buffer, 100), Found::NotYet);
        buffer.skip(4);
        buffer.feed(b"b..ab".to_vec().into());
        assert_eq!(search.find(&mut buffer, 100), Found::At(0));
        assert_eq!(search.find(&mut buffer, 100), Found::At(0), "the delimiter is still found");
        buffer.skip(2);
        assert_eq!(search.find(&mut buffer, 100), Found::At(2));
    }

    #[test]
    #[should_panic = "at least one byte"]
    fn empty_delimiter_panics() {
        Search::new("");
    }
}
