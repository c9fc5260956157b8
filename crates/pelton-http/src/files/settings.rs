//! Settings for serving files.

use std::time::Duration;

use super::path::HiddenFiles;

/// What [`Files`](crate::Files) serves, and how much it caches.
///
/// ```
/// use pelton_http::FileSettings;
///
/// let settings = FileSettings {
///     listing: true,
///     cache_control: Some("public, max-age=31536000, immutable".to_owned()),
///     ..FileSettings::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct FileSettings {
    /// Whether the directory that is there at first stays the one that is served, also if it is renamed or another takes its place. By
    /// default its path is resolved again, once per [`valid`](FileSettings::valid): it may be a link that is turned to a new release. A
    /// process that will not see the path any more, because it changes its root or gives up rights, needs this.
    pub pinned: bool,
    /// The file that stands for its directory. By default `index.html`.
    pub index: Option<String>,
    /// Whether directories without such a file are listed. By default they are not, which is a 404.
    pub listing: bool,
    /// Whether files and directories are served whose names begin with a dot. By default they are not.
    pub hidden: bool,
    /// Whether `a.br`, `a.zst` and `a.gz` are sent in place of `a` to those who take them. By default they are, unless they are
    /// older than `a`.
    pub precompressed: bool,
    /// The `Cache-Control` of what is found. By default `no-cache`: it may be kept, but is asked for again before it is used, which
    /// is answered with a 304 if it has not changed.
    pub cache_control: Option<String>,
    /// How long a file is served without checking the disk. By default one second, for which a change may go unnoticed. If zero,
    /// every request checks, on a thread of the file lane.
    pub valid: Duration,
    /// How long a file has to be left alone before it has an `ETag` and a `Last-Modified`. By default two seconds: on some file systems
    /// times are no finer than that, so what is changed again within it may look the same. On file systems with finer times it may be
    /// shorter.
    pub settled_after: Duration,
    /// How long a missing name is remembered. By default one second.
    pub valid_missing: Duration,
    /// Files up to this size are cached in memory. By default 64 KiB. Larger ones are kept open.
    pub small: u64,
    /// The maximum size of all cached files together. By default 16 MiB.
    pub memory: u64,
    /// How many files are held open for the next request, at most half of the [`descriptors`](FileSettings::descriptors). By default 256, a
    /// quarter of what most systems let a process have.
    pub open: usize,
    /// How many files may be open at a time: those that are held, and those that are being sent. A request for another one is answered with
    /// 503. By default 4,096. Where the process may not have as many descriptors, it should be less: clients that do not read what they
    /// have asked for can take all of them.
    pub descriptors: usize,
    /// How many files are known, in memory or open. By default 4,096.
    pub known: usize,
    /// How many names are known for which there is nothing. By default 1,024.
    pub missing: usize,
    /// How long unused entries are kept, with their memory, their descriptors, and the disk space of deleted files. By default a
    /// minute.
    pub idle: Duration,
}

impl Default for FileSettings {
    fn default() -> FileSettings {
        FileSettings {
            pinned: false,
            index: Some("index.html".to_owned()),
            listing: false,
            hidden: false,
            precompressed: true,
            cache_control: Some("no-cache".to_owned()),
            valid: Duration::from_secs(1),
            settled_after: Duration::from_secs(2),
            valid_missing: Duration::from_secs(1),
            small: 64 << 10,
            memory: 16 << 20,
            open: 256,
            descriptors: 4096,
            known: 4096,
            missing: 1024,
            idle: Duration::from_secs(60),
        }
    }
}

impl FileSettings {
    pub(super) fn hidden_files(&self) -> HiddenFiles {
        if self.hidden { HiddenFiles::Served } else { HiddenFiles::NotServed }
    }
}
