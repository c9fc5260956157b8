//! One watch: what it knows about its path, and what notices mean for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use pelton_os::Time;
use pelton_os::notify::{MarkId, Notice, What};

use super::change::{Change, Changes, Collected, PathWatchOptions};
use super::walk::{Found, Identity, Walked};
use crate::{Reactor, TimerId};

pub(super) type Callback = Box<dyn FnMut(&mut Reactor, Changes)>;

/// A directory to visit.
pub(super) struct Visit {
    /// Below the watched directory.
    pub(super) below: PathBuf,
    pub(super) entries: Entries,
}

/// Whether the entries that a visit finds are reported as created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entries {
    Known,
    /// They were known at this time. What has changed since is reported.
    KnownAt(SystemTime),
    New,
    /// The directory was moved here. If it is indeed there, its entries are known; otherwise, those that are there are new.
    Moved,
}

/// Entries that a visit has found and reported. The system's notices of their creation, if they were created after the
/// directory was marked, would repeat that.
pub(super) struct Reported {
    names: HashSet<OsString>,
    /// How often notices had been read at the time.
    reads: u64,
}

/// When collected changes are due, if there is a quiet period.
pub(super) struct Collecting {
    pub(super) timer: TimerId,
    pub(super) since: Time,
    pub(super) latest: Time,
}

pub(super) struct Watched {
    pub(super) location: &'static Location<'static>,
    pub(super) options: PathWatchOptions,
    /// The path as the user wrote it.
    pub(super) path: PathBuf,
    pub(super) absolute: PathBuf,
    /// `None` while it runs.
    pub(super) callback: Option<Callback>,
    pub(super) collected: Collected,
    pub(super) collecting: Option<Collecting>,

    /// The number of the latest walk, and its marks.
    pub(super) walk: u64,
    pub(super) way: Vec<MarkId>,
    /// Something on the way changed.
    pub(super) walk_again: bool,
    real: PathBuf,
    through_links: bool,
    /// `None` if there is nothing at the path.
    identity: Option<Identity>,
    is_directory: bool,
    /// Whether the path exists, according to what was reported.
    exists: bool,
    /// A notice about the path itself was reported since the last walk.
    is_reported: bool,

    /// The marked directories at and below the path.
    pub(super) directories: HashMap<MarkId, PathBuf>,
    pub(super) visits: VecDeque<Visit>,
    reported: HashMap<MarkId, Reported>,
    /// Marks of directories that are no longer watched, to be released.
    pub(super) released: Vec<MarkId>,
    /// The directories before an overflow. They are released after all directories were visited again.
    stale: Vec<MarkId>,
}

impl Watched {
    pub(super) fn new(
        location: &'static Location<'static>,
        path: PathBuf,
        absolute: PathBuf,
        options: PathWatchOptions,
        callback: Callback,
    ) -> Watched {
        Watched {
            location,
            options,
            path,
            absolute,
            callback: Some(callback),
            collected: Collected::default(),
            collecting: None,
            walk: 0,
            way: Vec::new(),
            walk_again: false,
            real: PathBuf::new(),
            through_links: false,
            identity: None,
            is_directory: false,
            exists: false,
            is_reported: false,
            directories: HashMap::new(),
            visits: VecDeque::new(),
            reported: HashMap::new(),
            released: Vec::new(),
            stale: Vec::new(),
        }
    }

    fn shown(&self, below: &Path) -> PathBuf {
        if below.as_os_str().is_empty() { self.path.clone() } else { self.path.join(below) }
    }

    /// Returns the path of a directory to visit, for the system.
    pub(super) fn real_path(&self, below: &Path) -> PathBuf {
        if below.as_os_str().is_empty() { self.real.clone() } else { self.real.join(below) }
    }

    pub(super) fn failed(&mut self, below: &Path, error: std::io::Error) {
        let path = self.shown(below);
        self.collected.push(Change::Failed { path, error: Arc::new(error) });
    }

    /// Takes over what a walk found. `first`: the watch begins, so nothing has changed.
    pub(super) fn arrived(&mut self, walked: Walked, first: bool) {
        let (identity, is_directory) = match walked.found {
            Found::Nothing => (None, false),
            Found::File(identity) => (Some(identity), false),
            Found::Directory(identity) => (Some(identity), true),
        };
        let is_other = identity != self.identity || is_directory != self.is_directory;
        let existed = std::mem::replace(&mut self.exists, identity.is_some());
        let was_reported = std::mem::take(&mut self.is_reported);
        if !first {
            match (existed, self.exists) {
                (true, false) => self.report_deleted(),
                (false, true) => self.report_created(),
                (true, true) if is_other && !was_reported => {
                    if is_directory || self.is_directory {
                        self.report_deleted();
                        self.report_created();
                    } else {
                        self.collected.push(Change::Modified { path: self.path.clone() });
                    }
                }
                _ => {}
            }
        }
        self.real = walked.real;
        self.through_links = walked.through_links;
        self.identity = identity;
        self.is_directory = is_directory;
        if is_other {
            self.leave_directory();
        }
        if is_directory && self.visits.is_empty() && !self.directories.values().any(|path| path.as_os_str().is_empty())
        {
            let entries = if first { Entries::Known } else { Entries::New };
            self.visits.push_back(Visit { below: PathBuf::new(), entries });
        }
    }

    fn report_created(&mut self) {
        self.collected.push(Change::Created { path: self.path.clone() });
    }

    fn report_deleted(&mut self) {
        self.collected.push(Change::Deleted { path: self.path.clone() });
    }

    /// Stops watching the entries of the directory at the path.
    fn leave_directory(&mut self) {
        self.released.extend(self.directories.drain().map(|(mark, _)| mark));
        self.visits.clear();
        self.reported.clear();
    }

    /// Handles a notice of the parent directory about the path itself. `other` is the rest of a move.
    pub(super) fn entry_of_parent(&mut self, notice: &Notice, other: Option<&Notice>) {
        let path = self.path.clone();
        match notice.what {
            What::Created => {
                self.exists = true;
                self.collected.push(Change::Created { path });
                self.path_is_other();
            }
            What::MovedTo(_) => {
                let existed = std::mem::replace(&mut self.exists, true);
                self.collected.push(match existed && !self.is_directory && !notice.directory {
                    true => Change::Modified { path },
                    false => Change::Created { path },
                });
                self.path_is_other();
            }
            What::Deleted | What::MovedFrom(_) => {
                self.exists = false;
                let to = other.filter(|other| other.mark == notice.mark).and_then(|other| other.name.as_deref());
                self.collected.push(match to {
                    Some(name) => Change::Moved { to: self.beside(name), from: path },
                    None => Change::Deleted { path },
                });
                self.path_is_other();
            }
            What::Modified if !self.is_directory => self.collected.push(Change::Modified { path }),
            What::Attributes => self.collected.push(Change::Attributes { path }),
            _ => {}
        }
    }

    /// Returns the path of another entry of the parent directory.
    fn beside(&self, name: &OsStr) -> PathBuf {
        if self.through_links { self.real.with_file_name(name) } else { self.path.with_file_name(name) }
    }

    fn path_is_other(&mut self) {
        self.is_reported = true;
        self.walk_again = true;
        self.leave_directory();
    }

    /// Handles a notice of a marked directory about itself.
    pub(super) fn directory_itself(&mut self, mark: MarkId, what: What) {
        let Some(below) = self.directories.get(&mark) else { return };
        // A directory below the path is an entry of another marked directory, which reports the same.
        let is_root = below.as_os_str().is_empty();
        match what {
            What::Attributes if is_root => self.collected.push(Change::Attributes { path: self.path.clone() }),
            What::Gone if is_root => self.walk_again = true,
            What::Ended => {
                self.walk_again |= is_root;
                self.directories.remove(&mark);
                self.reported.remove(&mark);
            }
            _ => {}
        }
    }

    /// Handles a notice of a marked directory about an entry. Moves are handled by [`moved`](Watched::moved).
    pub(super) fn entry(&mut self, notice: &Notice, name: &OsStr) {
        let Some(directory) = self.directories.get(&notice.mark) else { return };
        let below = directory.join(name);
        let path = self.shown(&below);
        match notice.what {
            What::Created => self.appeared(notice, name, below),
            What::Modified => self.collected.push(Change::Modified { path }),
            What::Attributes => self.collected.push(Change::Attributes { path }),
            What::Deleted => self.vanished(notice, name, &below),
            _ => {}
        }
    }

    /// Handles a move, of which one end or both are known.
    pub(super) fn moved(&mut self, from: Option<&Notice>, to: Option<&Notice>) {
        let place = |notice: Option<&Notice>| -> Option<PathBuf> {
            let notice = notice?;
            Some(self.directories.get(&notice.mark)?.join(notice.name.as_ref()?))
        };
        match (place(from), place(to), from, to) {
            (Some(old), Some(new), Some(from), Some(to)) => {
                self.forget_reported(from);
                self.forget_reported(to);
                self.collected.push(Change::Moved { from: self.shown(&old), to: self.shown(&new) });
                if to.directory && self.options.recursive {
                    // The directory that was at the new path, if any, was empty.
                    self.leave_below(&new);
                    self.move_below(&old, &new);
                    // If the directory had not been visited yet, or another one has its old name, this finds out.
                    self.visits.push_back(Visit { below: new, entries: Entries::Moved });
                }
            }
            (Some(old), _, Some(from), _) => self.vanished(from, from.name.as_deref().unwrap_or_default(), &old),
            (_, Some(new), _, Some(to)) => self.appeared(to, to.name.as_deref().unwrap_or_default(), new),
            _ => {}
        }
    }

    fn appeared(&mut self, notice: &Notice, name: &OsStr, below: PathBuf) {
        if self.reported.get_mut(&notice.mark).is_some_and(|reported| reported.names.remove(name)) {
            return;
        }
        self.collected.push(Change::Created { path: self.shown(&below) });
        if notice.directory && self.options.recursive {
            self.visits.push_back(Visit { below, entries: Entries::New });
        }
    }

    fn vanished(&mut self, notice: &Notice, name: &OsStr, below: &Path) {
        if let Some(reported) = self.reported.get_mut(&notice.mark) {
            reported.names.remove(name);
        }
        self.collected.push(Change::Deleted { path: self.shown(below) });
        if notice.directory {
            self.leave_below(below);
        }
    }

    fn forget_reported(&mut self, notice: &Notice) {
        if let (Some(reported), Some(name)) = (self.reported.get_mut(&notice.mark), &notice.name) {
            reported.names.remove(name);
        }
    }

    /// Stops watching a directory and everything below it.
    fn leave_below(&mut self, below: &Path) {
        let released = &mut self.released;
        let reported = &mut self.reported;
        self.directories.retain(|mark, directory| {
            let stays = !directory.starts_with(below);
            if !stays {
                released.push(*mark);
                reported.remove(mark);
            }
            stays
        });
        self.visits.retain(|visit| !visit.below.starts_with(below));
    }

    fn move_below(&mut self, old: &Path, new: &Path) {
        let paths = self.directories.values_mut().chain(self.visits.iter_mut().map(|visit| &mut visit.below));
        for path in paths {
            if let Ok(rest) = path.strip_prefix(old) {
                *path = if rest.as_os_str().is_empty() { new.to_owned() } else { new.join(rest) };
            }
        }
    }

    /// Records where a visit has found a directory. Returns what is known of its entries, or `None` if it needs no listing.
    ///
    /// A visit may be ahead of the notices: another directory may be at the path by now than the one whose notice led to the
    /// visit. When later notices move that one, the wrong entries move along. Two marks at one path, or one mark at two paths,
    /// reveal this, and what was reported about the wrong path is taken back.
    pub(super) fn found_at(&mut self, mark: MarkId, below: &Path, entries: Entries) -> Option<Entries> {
        let before = self.directories.get(&mark).cloned();
        if before.as_deref() == Some(below) {
            return None;
        }
        let is_root = |path: &Path| path.as_os_str().is_empty();
        // Two marks get to one path only by a move. Other visits do not search, since a large tree has many directories.
        if entries == Entries::Moved && self.directories.values().any(|path| path == below) {
            self.take_back(below);
            self.released.push(mark);
            return None;
        }
        let wrong = before.filter(|path| !is_root(path));
        if let Some(wrong) = &wrong {
            self.take_back(wrong);
            if below.starts_with(wrong) {
                self.released.push(mark);
                return None;
            }
        }
        self.directories.insert(mark, below.to_owned());
        Some(if wrong.is_some() || entries == Entries::Moved { Entries::New } else { entries })
    }

    /// Reports that nothing of what is known about a path holds, and finds out what is there.
    fn take_back(&mut self, below: &Path) {
        self.collected.push(Change::Deleted { path: self.shown(below) });
        self.leave_below(below);
        if let Ok(found) = std::fs::symlink_metadata(self.real_path(below)) {
            self.collected.push(Change::Created { path: self.shown(below) });
            if found.is_dir() {
                self.visits.push_back(Visit { below: below.to_owned(), entries: Entries::New });
            }
        }
    }

    /// Handles the loss of notices: visits all directories again.
    pub(super) fn overflowed(&mut self) {
        self.collected.push(Change::Overflow);
        self.walk_again = true;
        self.stale.extend(self.directories.drain().map(|(mark, _)| mark));
        self.reported.clear();
        self.visits.clear();
        if self.is_directory {
            self.visits.push_back(Visit { below: PathBuf::new(), entries: Entries::Known });
        }
    }

    /// Begins again without any marks.
    pub(super) fn begin_again(&mut self) {
        self.overflowed();
        self.way.clear();
        self.stale.clear();
        self.released.clear();
    }

    /// The remaining directories are visited later: what happens until then is found by its time.
    pub(super) fn visits_take_time(&mut self, now: SystemTime) {
        for visit in self.visits.iter_mut().filter(|visit| visit.entries == Entries::Known) {
            visit.entries = Entries::KnownAt(now);
        }
    }

    /// Records an entry that had changed before its directory was marked. An empty name is the directory itself.
    pub(super) fn has_changed(&mut self, below: &Path, name: OsString) {
        let below = if name.is_empty() { below.to_owned() } else { below.join(name) };
        self.collected.push(Change::Modified { path: self.shown(&below) });
    }

    /// Records an entry that a visit found in a directory that may have new entries.
    pub(super) fn discovered(&mut self, mark: MarkId, reads: u64, below: &Path, name: OsString) {
        self.collected.push(Change::Created { path: self.shown(&below.join(&name)) });
        let reported = self.reported.entry(mark).or_insert_with(|| Reported { names: HashSet::new(), reads });
        reported.reads = reads;
        reported.names.insert(name);
    }

    /// All notices up to this read have been handled, so those about earlier visits have.
    pub(super) fn caught_up(&mut self, reads: u64) {
        self.reported.retain(|_, reported| reported.reads >= reads);
    }

    /// All directories have been visited.
    pub(super) fn visited_all(&mut self) {
        let stale = std::mem::take(&mut self.stale);
        self.released.extend(stale.into_iter().filter(|mark| !self.directories.contains_key(mark)));
    }
}
