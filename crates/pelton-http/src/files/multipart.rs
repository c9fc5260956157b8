//! Several parts of a file in one body (RFC 9110, section 14.6).

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use bytes::Bytes;

/// A multipart body: the head and the range of each part, and the closing delimiter.
pub(super) struct Multipart {
    pub(super) content_type: String,
    pub(super) parts: Vec<(Bytes, Range<u64>)>,
    pub(super) end: Bytes,
}

impl Multipart {
    /// Describes these parts of a file of the given size and type.
    pub(super) fn new(ranges: &[Range<u64>], size: u64, content_type: &str) -> Multipart {
        // A random boundary cannot have been planted in a file.
        let boundary = format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        let part = |range: &Range<u64>| {
            let head = format!(
                "\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {}\r\n\r\n",
                content_range(range, size)
            );
            (Bytes::from(head), range.clone())
        };
        Multipart {
            parts: ranges.iter().map(part).collect(),
            end: Bytes::from(format!("\r\n--{boundary}--\r\n")),
            content_type: format!("multipart/byteranges; boundary={boundary}"),
        }
    }

    /// The length of the body in bytes.
    pub(super) fn len(&self) -> u64 {
        let parts = self.parts.iter().map(|(head, range)| head.len() as u64 + range.end - range.start);
        parts.sum::<u64>() + self.end.len() as u64
    }
}

/// The value of `Content-Range` for a part, which must not be empty.
pub(super) fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}
