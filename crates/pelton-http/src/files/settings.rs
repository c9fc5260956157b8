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
    /// Whether to keep serving the directory that was opened at first, even if it is renamed or replaced. By default its path
    /// is resolved again, once per [`valid`](FileSettings::valid): it may be a link that is switched to a new release. A
    /// process that loses access to the path, because it changes its root or drops privileges, needs this.
    pub pinned: bool,
    /// The file that is served for its directory. By default `index.html`.
    pub index: Option<String>,
    /// Whether directories without an index file are listed. By default they are not, and the answer is 404.
    pub listing: bool,
    /// Whether files and directories whose names begin with a dot are served. By default they are not.
    pub hidden: bool,
    /// Whether `a.br`, `a.zst` and `a.gz` are sent in place of `a` to clients that accept them. By default they are, unless
    /// they are older than `a`.
    pub precompressed: bool,
    /// The `Cache-Control` of files. By default `no-cache`: clients may store a file but must revalidate it, which takes only a
    /// 304 if it has not changed.
    pub cache_control: Option<String>,
    /// How long a file is served without checking the disk. By default one second, so a change may go unnoticed for that long.
    /// If zero, every request checks, on a thread of the file lane.
    pub valid: Duration,
    /// How long a file must be unchanged before it gets an `ETag` and a `Last-Modified`. By default two seconds, the resolution
    /// of times on some file systems: a second change within that time may not show. It may be shorter on file systems with
    /// finer times.
    pub settled_after: Duration,
    /// How long a missing name is remembered. By default one second.
    pub valid_missing: Duration,
    /// Files up to this size are cached in memory. By default 64 KiB. Larger ones are kept open.
    pub small: u64,
    /// The maximum size of all cached files together. By default 16 MiB.
    pub memory: u64,
    /// How many files stay open for later requests, at most half of the [`descriptors`](FileSettings::descriptors). By default
    /// 256, a quarter of the usual limit for a process.
    pub open: usize,
    /// How many files may be open at a time, both cached and being sent. Beyond that, requests are answered with 503. By
    /// default 4,096. Set it below the process's limit on descriptors, or clients that do not read their responses can exhaust
    /// it.
    pub descriptors: usize,
    /// How many files are cached, in memory or open. By default 4,096.
    pub known: usize,
    /// How many missing names are remembered. By default 1,024.
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
