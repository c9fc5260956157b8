//! Lists a marked directory. This may block, so it runs on a thread of the file lane when there are many to list.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pelton_os::notify::MarkId;

use super::watched::Entries;
use crate::reactor::slots::Key;

/// The times of files come from a clock that is this much coarser than the system's, at most.
const COARSE: Duration = Duration::from_millis(10);

/// A directory to list, which has been marked.
pub(super) struct Request {
    pub(super) watch: Key,
    pub(super) mark: MarkId,
    /// Below the watched directory.
    pub(super) below: PathBuf,
    pub(super) path: PathBuf,
    pub(super) entries: Entries,
    pub(super) recursive: bool,
}

/// What was found.
pub(super) struct Listed {
    pub(super) request: Request,
    pub(super) found: io::Result<Found>,
}

#[derive(Default)]
pub(super) struct Found {
    /// Entries to report as created.
    pub(super) created: Vec<OsString>,
    /// Entries that have changed before the directory was marked. An empty name is the directory itself.
    pub(super) modified: Vec<OsString>,
    /// Directories to visit next.
    pub(super) directories: Vec<OsString>,
}

impl Request {
    pub(super) fn list(self) -> Listed {
        let found = self.find();
        Listed { request: self, found }
    }

    fn find(&self) -> io::Result<Found> {
        let mut found = Found::default();
        let since = match self.entries {
            Entries::KnownAt(start) => Some(start - COARSE),
            Entries::Known | Entries::New | Entries::Moved => None,
        };
        if since.is_some_and(|since| has_changed(&self.path, since)) {
            found.modified.push(OsString::new());
        }
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if self.entries == Entries::New {
                found.created.push(entry.file_name());
            }
            // Directories report for themselves when they are visited.
            if let Some(since) = since
                && !(is_directory && self.recursive)
                && has_changed(&entry.path(), since)
            {
                found.modified.push(entry.file_name());
            }
            if is_directory && self.recursive {
                // The loop is going to mark it. This brings it into the system's memory.
                let _ = fs::symlink_metadata(entry.path());
                found.directories.push(entry.file_name());
            }
        }
        Ok(found)
    }
}

/// Returns whether a file or directory has changed since a time.
fn has_changed(path: &Path, since: SystemTime) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    let changed = u64::try_from(metadata.ctime()).unwrap_or_default();
    let nanoseconds = u32::try_from(metadata.ctime_nsec()).unwrap_or_default();
    UNIX_EPOCH + Duration::new(changed, nanoseconds) >= since
}
