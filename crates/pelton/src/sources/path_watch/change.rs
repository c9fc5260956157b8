//! Changes of files and directories, as a watch reports them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::PathWatchId;

/// With a [quiet period](PathWatchOptions::quiet), changes are reported at the latest after this many of them.
const MOST_PERIODS: u32 = 10;

/// With a quiet period, changes are reported immediately once there are this many. Bounds the memory that they take.
const MOST_COLLECTED: usize = 4096;

/// Something that happened at or below a watched path.
///
/// Paths begin with the watched path, as it was passed to [`watch_path`](crate::Reactor::watch_path).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The path exists now. Also reported when something is moved there from outside the watched directory.
    Created {
        /// The path.
        path: PathBuf,
    },
    /// The contents changed. Also reported when the watched file is replaced by another one.
    Modified {
        /// The path.
        path: PathBuf,
    },
    /// Permissions, owner, times or extended attributes changed.
    Attributes {
        /// The path.
        path: PathBuf,
    },
    /// It has another name now. If it was moved out of the watched directory, or into it, [`Change::Deleted`] or
    /// [`Change::Created`] is reported instead.
    Moved {
        /// The former path.
        from: PathBuf,
        /// The path that it has now.
        to: PathBuf,
    },
    /// The path no longer exists. Also reported when something is moved out of the watched directory.
    Deleted {
        /// The path.
        path: PathBuf,
    },
    /// Changes happened faster than they were read, and the system dropped some. The watch continues. Look at everything
    /// that matters again.
    Overflow,
    /// This path can no longer be watched, or a directory below it cannot: permission is missing, or a limit is reached.
    /// The rest of the watch continues.
    Failed {
        /// The path.
        path: PathBuf,
        /// The reason.
        error: Arc<io::Error>,
    },
}

impl Change {
    /// Returns the path that changed. For a move, this is the new path.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Change::Created { path }
            | Change::Modified { path }
            | Change::Attributes { path }
            | Change::Deleted { path }
            | Change::Failed { path, .. }
            | Change::Moved { to: path, .. } => Some(path),
            Change::Overflow => None,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Created { path } => write!(f, "created {}", path.display()),
            Change::Modified { path } => write!(f, "modified {}", path.display()),
            Change::Attributes { path } => write!(f, "attributes {}", path.display()),
            Change::Moved { from, to } => write!(f, "moved {} to {}", from.display(), to.display()),
            Change::Deleted { path } => write!(f, "deleted {}", path.display()),
            Change::Overflow => f.write_str("overflow"),
            Change::Failed { path, error } => write!(f, "cannot watch {}: {error}", path.display()),
        }
    }
}

/// The changes that a watch reports with one call, in the order in which they happened. Derefs to a slice.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The watch, so that its callback can end it.
    pub watch: PathWatchId,
    pub(super) list: Vec<Change>,
}

impl Changes {
    /// Returns whether changes were [lost](Change::Overflow).
    pub fn overflowed(&self) -> bool {
        self.list.iter().any(|change| matches!(change, Change::Overflow))
    }
}

impl Deref for Changes {
    type Target = [Change];
    fn deref(&self) -> &[Change] {
        &self.list
    }
}

impl IntoIterator for Changes {
    type Item = Change;
    type IntoIter = std::vec::IntoIter<Change>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

/// Options of a watch.
#[derive(Clone, Debug, Default)]
pub struct PathWatchOptions {
    pub(super) recursive: bool,
    pub(super) quiet: Duration,
}

impl PathWatchOptions {
    /// Also watches all directories below the path, including new ones. Symbolic links are not followed.
    ///
    /// Each directory takes one of the system's watches (on Linux, the sysctl `fs.inotify.max_user_watches` limits them).
    /// Entries of a directory that appears later are reported as created, each once, whether they were there first or the
    /// watch was.
    ///
    /// The call that begins the watch visits 64 directories before it returns. A thread visits the others of a larger tree;
    /// [`is_visiting_paths`](crate::Reactor::is_visiting_paths) tells whether it is done. What has changed below a directory
    /// between the call and the visit is reported by its time, as [`Modified`](Change::Modified): files that were written,
    /// created or moved there, and directories that lost or got an entry. Changes up to 10 ms before the call may be
    /// reported, too.
    pub fn recursive(mut self) -> PathWatchOptions {
        self.recursive = true;
        self
    }

    /// Reports changes when nothing has changed for this long, all in one call. If it never becomes quiet, reports after ten
    /// such periods, or after 4,096 changes.
    pub fn quiet(mut self, period: Duration) -> PathWatchOptions {
        self.quiet = period;
        self
    }

    /// Returns how long changes may be collected if it does not become quiet.
    pub(super) fn longest(&self) -> Duration {
        self.quiet * MOST_PERIODS
    }
}

/// Changes that have not been reported yet.
#[derive(Default)]
pub(super) struct Collected {
    list: Vec<Change>,
    /// The position of the latest change of each path.
    latest: HashMap<PathBuf, usize>,
    /// Something happened since [`has_grown`](Collected::has_grown) was last asked.
    grown: bool,
}

impl Collected {
    pub(super) fn push(&mut self, change: Change) {
        self.grown = true;
        if self.is_repeated(&change) {
            return;
        }
        if let Change::Moved { from, .. } = &change {
            self.latest.remove(from);
        }
        if let Some(path) = change.path() {
            self.latest.insert(path.to_owned(), self.list.len());
        }
        self.list.push(change);
    }

    /// Returns whether the change says nothing beyond the latest one of the same path.
    fn is_repeated(&self, change: &Change) -> bool {
        let latest = match change.path() {
            Some(path) => self.latest.get(path).map(|index| &self.list[*index]),
            None => self.list.last(),
        };
        matches!(
            (change, latest),
            (Change::Modified { .. }, Some(Change::Modified { .. } | Change::Created { .. }))
                | (Change::Attributes { .. }, Some(Change::Attributes { .. } | Change::Created { .. }))
                | (Change::Overflow, Some(Change::Overflow))
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns whether something happened since the last call, even if it only repeated something.
    pub(super) fn has_grown(&mut self) -> bool {
        std::mem::take(&mut self.grown)
    }

    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MOST_COLLECTED
    }

    pub(super) fn take(&mut self) -> Vec<Change> {
        self.latest.clear();
        std::mem::take(&mut self.list)
    }
}
