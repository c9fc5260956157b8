//! One form of a file: its bytes or its descriptor, and the head of the responses it is sent in.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::FileSettings;
use crate::wire::{Coding, Validators};

/// Who changes a file within so long of another change may leave no trace in its times: a file system takes them from a clock that
/// ticks every few milliseconds, or every two seconds.
const YOUNG: Duration = Duration::from_secs(2);

/// What a file was like when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
    /// It has been modified so lately that it may be again without this showing.
    young: bool,
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata, now: SystemTime) -> Stamp {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let settled = i64::try_from(since.saturating_sub(YOUNG).as_secs()).unwrap_or(i64::MAX);
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified,
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            young: modified.0 >= settled,
        }
    }

    /// Whether this was modified before the other, as far as whole seconds tell.
    pub(super) fn is_older_than(&self, other: &Stamp) -> bool {
        self.modified.0 < other.modified.0
    }

    /// The same bytes, whatever the time is now.
    fn has_same_bytes_as(&self, other: &Stamp) -> bool {
        Stamp { young: other.young, ..*self } == *other
    }
}

/// Where the bytes are.
#[derive(Debug)]
pub(super) enum Held {
    Memory(Bytes),
    Open {
        file: Arc<File>,
        /// How much of it has been read on the lane, where the kernel does not say what is in its memory.
        read: Cell<u64>,
    },
}

/// A file as it is, or compressed.
#[derive(Debug)]
pub(super) struct Representation {
    pub(super) coding: Coding,
    pub(super) held: Held,
    pub(super) size: u64,
    pub(super) content_type: Box<str>,
    /// Whole lines. Those about the content come first.
    lines: Box<[u8]>,
    /// Where the others begin, that a 304 and a body of several parts have too.
    others: usize,
    tag: Box<str>,
    weak: bool,
    modified: Option<u64>,
}

/// What its head is made of, besides the file.
pub(super) struct Description<'a> {
    pub(super) coding: Coding,
    pub(super) content_type: &'a str,
    /// There are others, among which `Accept-Encoding` chooses.
    pub(super) varies: bool,
    pub(super) settings: &'a FileSettings,
}

impl Representation {
    /// Of an open file. It is read, if it is small.
    pub(super) fn of_file(file: File, stamp: &Stamp, description: &Description<'_>, now: SystemTime) -> Representation {
        let small = stamp.size <= description.settings.small;
        let held = match small.then(|| read_whole(&file, stamp)).and_then(Result::ok).flatten() {
            Some(bytes) => Held::Memory(bytes),
            None => Held::Open { file: Arc::new(file), read: Cell::new(0) },
        };
        let seconds = u64::try_from(stamp.modified.0).ok();
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // A date that is yet to come must not be told (RFC 9110, section 8.8.2.1).
        let modified = seconds.filter(|seconds| *seconds <= since);
        let nanoseconds = i128::from(stamp.modified.0) * 1_000_000_000 + i128::from(stamp.modified.1);
        let suffix = if description.coding == Coding::Identity { "" } else { description.coding.name() };
        let dash = if suffix.is_empty() { "" } else { "-" };
        let tag = format!("\"{:x}-{:x}-{nanoseconds:x}{dash}{suffix}\"", stamp.inode, stamp.size);
        Representation::new(held, stamp.size, tag, stamp.young, modified, description)
    }

    /// Of bytes that were made up just now, and may be made up differently the next time.
    pub(super) fn of_bytes(bytes: Bytes, tag: String, description: &Description<'_>) -> Representation {
        let size = bytes.len() as u64;
        Representation::new(Held::Memory(bytes), size, tag, true, None, description)
    }

    fn new(
        held: Held,
        size: u64,
        tag: String,
        weak: bool,
        modified: Option<u64>,
        description: &Description<'_>,
    ) -> Representation {
        let mut lines = Vec::new();
        let content_type = description.content_type;
        // Writing to memory does not fail.
        let _ = write!(lines, "Content-Type: {content_type}\r\n");
        if description.coding != Coding::Identity {
            let _ = write!(lines, "Content-Encoding: {}\r\n", description.coding.name());
        }
        let others = lines.len();
        let _ = write!(lines, "ETag: {}{tag}\r\n", if weak { "W/" } else { "" });
        if let Some(modified) = modified {
            let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(modified));
            let _ = write!(lines, "Last-Modified: {date}\r\n");
        }
        if let Some(cache_control) = &description.settings.cache_control {
            let _ = write!(lines, "Cache-Control: {cache_control}\r\n");
        }
        if description.varies {
            let _ = write!(lines, "Vary: Accept-Encoding\r\n");
        }
        let _ = write!(lines, "Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n");
        Representation {
            coding: description.coding,
            held,
            size,
            content_type: content_type.into(),
            lines: lines.into(),
            others,
            tag: tag.into(),
            weak,
            modified,
        }
    }

    /// The fields of a response that carries it, or a part of it.
    pub(super) fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// The fields of a response that does not carry it as it is.
    pub(super) fn lines_without_content(&self) -> &[u8] {
        &self.lines[self.others..]
    }

    pub(super) fn validators(&self) -> Validators<'_> {
        Validators { tag: self.tag.as_bytes(), weak: self.weak, modified: self.modified }
    }

    /// How much memory and how many descriptors it takes.
    pub(super) fn weight(&self) -> (u64, usize) {
        match &self.held {
            Held::Memory(bytes) => (bytes.len() as u64, 0),
            Held::Open { .. } => (0, 1),
        }
    }
}

/// The bytes of a file that is not being changed; `None` if it is.
fn read_whole(file: &File, stamp: &Stamp) -> io::Result<Option<Bytes>> {
    // Small enough for memory, or it would not be read.
    let mut bytes = vec![0; stamp.size as usize];
    if let Err(error) = file.read_exact_at(&mut bytes, 0) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let after = Stamp::of(&file.metadata()?, SystemTime::now());
    Ok(after.has_same_bytes_as(stamp).then(|| Bytes::from(bytes)))
}

/// The media type of a file of this name. Text is UTF-8: what else would it be.
pub(super) fn content_type(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let guess = mime_guess::from_path(&*name).first_raw();
    match guess {
        None => "application/octet-stream".to_owned(),
        // The name that RFC 9239 has made obsolete.
        Some("application/javascript") => "text/javascript; charset=utf-8".to_owned(),
        Some(text) if text.starts_with("text/") && !text.contains("charset") => format!("{text}; charset=utf-8"),
        Some(other) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_by_name() {
        for (name, expected) in [
            ("a.html", "text/html; charset=utf-8"),
            ("a.HTML", "text/html; charset=utf-8"),
            ("a/b.css", "text/css; charset=utf-8"),
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.mjs", "text/javascript; charset=utf-8"),
            ("a.json", "application/json"),
            ("a.svg", "image/svg+xml"),
            ("a.wasm", "application/wasm"),
            ("a.woff2", "font/woff2"),
            ("a.png", "image/png"),
            ("a", "application/octet-stream"),
            ("a.b/c", "application/octet-stream"),
            ("a.unheard-of", "application/octet-stream"),
        ] {
            assert_eq!(content_type(name.as_bytes()), expected, "{name}");
        }
    }
}
