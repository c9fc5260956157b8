//! One form of a file: its bytes or its descriptor, and the fields of the responses that carry it.

use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::FileSettings;
use super::open_files::OpenFiles;
use crate::wire::{Coding, Validators};

/// The state of a file when it was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// The change time of the inode. Unlike the modification time, it cannot be set: any write sets it to the current time.
    changed: (i64, i64),
    /// Changed so recently that another change might leave the same times.
    pub(super) young: bool,
}

impl Stamp {
    /// A file that was changed within `settled_after` is young, as is one whose change time is in the future.
    pub(super) fn of(metadata: &Metadata, now: SystemTime, settled_after: Duration) -> Stamp {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let now = since_1970(now);
        let settled = now.saturating_sub(settled_after);
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified,
            changed,
            // Some file systems keep no change time. There the modification time is used, unless it was set to the future.
            young: is_after(changed, settled) || (is_after(modified, settled) && !is_after(modified, now)),
        }
    }

    /// Whether this was modified before the other, in whole seconds.
    pub(super) fn is_older_than(&self, other: &Stamp) -> bool {
        self.modified.0 < other.modified.0
    }

    /// Whether an open file is unchanged. Does not ask the server of a network file system.
    fn is_of(&self, file: &File) -> bool {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{AtFlags, StatxFlags, statx};
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            if let Ok(now) = statx(file, "", flags, StatxFlags::BASIC_STATS) {
                let times = [now.stx_mtime, now.stx_ctime].map(|at| (at.tv_sec, i64::from(at.tv_nsec)));
                return now.stx_size == self.size && times == [self.modified, self.changed];
            }
        }
        file.metadata().is_ok_and(|now| self.has_same_bytes_as(&Stamp::of(&now, UNIX_EPOCH, Duration::ZERO)))
    }

    /// Compares everything but `young`, which depends on the current time.
    fn has_same_bytes_as(&self, other: &Stamp) -> bool {
        Stamp { young: other.young, ..*self } == *other
    }

    /// The last second in which the bytes may have changed. A date in the future must not be sent (RFC 9110, section 8.8.2.1).
    fn last_modified(&self, now: SystemTime) -> Option<u64> {
        let seconds = [self.modified.0, self.changed.0].into_iter().filter_map(|seconds| u64::try_from(seconds).ok());
        seconds.filter(|seconds| *seconds <= since_1970(now).as_secs()).max()
    }

    /// The entity tag. Unless the stamp is young, it differs if the bytes do.
    fn tag(&self, coding: Coding) -> String {
        let [modified, changed] = [self.modified, self.changed]
            .map(|(seconds, nanoseconds)| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds));
        let suffix = if coding == Coding::Identity { "" } else { coding.name() };
        let dash = if suffix.is_empty() { "" } else { "-" };
        let Stamp { device, inode, size, .. } = self;
        format!("\"{device:x}-{inode:x}-{size:x}-{modified:x}-{changed:x}{dash}{suffix}\"")
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn is_after(time: (i64, i64), limit: Duration) -> bool {
    time > (i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), i64::from(limit.subsec_nanos()))
}

/// Where the bytes are.
#[derive(Debug)]
pub(super) enum Held {
    Memory(Bytes),
    Open {
        file: Arc<File>,
        /// Its state when it was looked up.
        stamp: Stamp,
        /// How much of it the lane has read, for kernels that cannot tell what is in the page cache.
        read: Cell<u64>,
    },
}

/// A file, uncompressed or compressed.
#[derive(Debug)]
pub(super) struct Representation {
    pub(super) coding: Coding,
    pub(super) held: Held,
    pub(super) size: u64,
    pub(super) content_type: Box<str>,
    /// Complete header lines. Those about the content come first.
    lines: Box<[u8]>,
    /// The offset of the other lines, which a 304 and a multipart response carry too.
    others: usize,
    known_by: KnownBy,
}

/// The validators: they tell one state of a representation from another.
#[derive(Debug, Default)]
struct KnownBy {
    tag: Option<Box<str>>,
    weak: bool,
    modified: Option<u64>,
}

/// What the header lines depend on besides the file.
pub(super) struct Description<'a> {
    pub(super) coding: Coding,
    pub(super) content_type: &'a str,
    /// There are other forms, and `Accept-Encoding` selects one.
    pub(super) varies: bool,
    pub(super) settings: &'a FileSettings,
}

impl Representation {
    /// Describes an open file, and reads it if it is small. Returns `None` if it must be held open and too many files are.
    pub(super) fn of_file(
        file: File,
        stamp: Stamp,
        description: &Description<'_>,
        now: SystemTime,
        open: &OpenFiles,
    ) -> Option<Representation> {
        let small = stamp.size <= description.settings.small;
        let whole = if small { read_whole(&file, &stamp) } else { Whole::NotRead };
        let certain = !stamp.young && !matches!(whole, Whole::Changing);
        let held = match whole {
            Whole::Read(bytes) => Held::Memory(bytes),
            Whole::Changing | Whole::NotRead => Held::Open { file: open.hold(file)?, stamp, read: Cell::new(0) },
        };
        let known_by = if certain {
            let tag = Some(stamp.tag(description.coding).into());
            KnownBy { tag, weak: false, modified: stamp.last_modified(now) }
        } else {
            KnownBy::default()
        };
        Some(Representation::new(held, stamp.size, known_by, description))
    }

    /// Describes a generated page. Its tag is weak, because the next one may differ.
    pub(super) fn of_bytes(bytes: Bytes, tag: String, description: &Description<'_>) -> Representation {
        let size = bytes.len() as u64;
        let known_by = KnownBy { tag: Some(tag.into()), weak: true, modified: None };
        Representation::new(Held::Memory(bytes), size, known_by, description)
    }

    fn new(held: Held, size: u64, known_by: KnownBy, description: &Description<'_>) -> Representation {
        let mut lines = Vec::new();
        let content_type = description.content_type;
        // Writing to memory does not fail.
        let _ = write!(lines, "Content-Type: {content_type}\r\n");
        if description.coding != Coding::Identity {
            let _ = write!(lines, "Content-Encoding: {}\r\n", description.coding.name());
        }
        let others = lines.len();
        if let Some(tag) = &known_by.tag {
            let _ = write!(lines, "ETag: {}{tag}\r\n", if known_by.weak { "W/" } else { "" });
        }
        if let Some(modified) = known_by.modified {
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
            known_by,
        }
    }

    /// The header lines of a response that carries the representation or a part of it.
    pub(super) fn lines(&self) -> &[u8] {
        &self.lines
    }

    /// The header lines of a response without the representation's own content, such as a 304.
    pub(super) fn lines_without_content(&self) -> &[u8] {
        &self.lines[self.others..]
    }

    pub(super) fn validators(&self) -> Validators<'_> {
        let KnownBy { tag, weak, modified } = &self.known_by;
        Validators { tag: tag.as_deref().map(str::as_bytes), weak: *weak, modified: *modified }
    }

    /// Whether the bytes on disk still match the validators. Always true without validators.
    pub(super) fn matches_validators(&self) -> bool {
        match &self.held {
            Held::Open { file, stamp, .. } if self.known_by.tag.is_some() => stamp.is_of(file),
            Held::Open { .. } | Held::Memory(_) => true,
        }
    }

    /// How much memory and how many descriptors it uses.
    pub(super) fn weight(&self) -> (u64, usize) {
        match &self.held {
            Held::Memory(bytes) => (bytes.len() as u64, 0),
            Held::Open { .. } => (0, 1),
        }
    }
}

/// The result of reading a small file.
enum Whole {
    Read(Bytes),
    /// The file changed while it was read.
    Changing,
    /// Not read, or not readable: the error shows when it is sent.
    NotRead,
}

fn read_whole(file: &File, stamp: &Stamp) -> Whole {
    // Files this small fit in memory.
    let mut bytes = vec![0; stamp.size as usize];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) if stamp.is_of(file) => Whole::Read(Bytes::from(bytes)),
        Ok(()) => Whole::Changing,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Whole::Changing,
        Err(_) => Whole::NotRead,
    }
}

/// Guesses the media type from a file name. Text is assumed to be UTF-8.
pub(super) fn content_type(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let guess = mime_guess::from_path(&*name).first_raw();
    match guess {
        None => "application/octet-stream".to_owned(),
        // RFC 9239 has made this name obsolete.
        Some("application/javascript") => "text/javascript; charset=utf-8".to_owned(),
        Some(text) if text.starts_with("text/") && !text.contains("charset") => format!("{text}; charset=utf-8"),
        Some(other) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_depends_on_the_name() {
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

    /// A file that changes while it is read has no validators and is not cached in memory.
    #[test]
    fn file_that_changes_while_it_is_read_has_no_validators() {
        let path = std::env::temp_dir().join(format!("pelton-representation-{}", std::process::id()));
        let settings = FileSettings { settled_after: Duration::ZERO, ..FileSettings::default() };
        let description =
            Description { coding: Coding::Identity, content_type: "a/b", varies: false, settings: &settings };
        let look = || Stamp::of(&std::fs::metadata(&path).unwrap(), SystemTime::now(), settings.settled_after);
        let open = OpenFiles::new(1);
        let of = |stamp| {
            let file = File::open(&path).unwrap();
            Representation::of_file(file, stamp, &description, SystemTime::now(), &open).unwrap()
        };
        std::fs::write(&path, "one").unwrap();
        let stamp = look();
        let unchanged = of(stamp);
        assert!(matches!(&unchanged.held, Held::Memory(bytes) if bytes == "one"));
        assert!(unchanged.validators().tag.is_some() && unchanged.validators().modified.is_some());
        while look().changed == stamp.changed {
            std::fs::write(&path, "two").unwrap();
        }
        for text in ["two", ""] {
            std::fs::write(&path, text).unwrap();
            let changed = of(stamp);
            assert!(matches!(changed.held, Held::Open { .. }), "{text}");
            assert!(changed.validators().tag.is_none() && changed.validators().modified.is_none(), "{text}");
            let lines = String::from_utf8(changed.lines().to_vec()).unwrap();
            assert!(!lines.contains("ETag") && !lines.contains("Last-Modified"), "{lines}");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn last_modified_is_the_later_of_both_times_but_not_in_the_future() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        for (modified, changed, expected) in [
            (10, 20, Some(20)),
            (20, 10, Some(20)),
            (1001, 20, Some(20)),
            (20, 1001, Some(20)),
            (1000, 20, Some(1000)),
            (-5, -5, None),
            (2000, 2000, None),
        ] {
            let (modified, changed) = ((modified, 5), (changed, 5));
            let stamp = Stamp { device: 1, inode: 2, size: 3, modified, changed, young: false };
            assert_eq!(stamp.last_modified(now), expected, "{modified:?} and {changed:?}");
        }
    }
}
