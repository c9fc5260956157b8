//! Walks to a watched path, and marks everything on the way that decides where the path leads.
//!
//! Each directory is marked before its entry is looked up. So a change after the look-up is reported, and the path is
//! walked again.
//!
//! ```text
//! /srv/site/current/config  with  current -> releases/7
//!
//! /                         Ancestor
//! /srv                      Ancestor
//! /srv/site                 Ancestor
//! /srv/site/current         Link
//! /srv/site/releases        Ancestor
//! /srv/site/releases/7      Parent of config
//! ```

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use pelton_os::notify::{Level, MarkId};

use super::marks::{Marks, Role, Use};
use crate::reactor::slots::Key;

/// As many symbolic links as Linux follows.
const MOST_LINKS: usize = 40;

/// Device and number of a file.
pub(super) type Identity = (u64, u64);

/// What is at the end of the way.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Nothing,
    File(Identity),
    Directory(Identity),
}

/// The outcome of a walk.
#[derive(Clone, Debug)]
pub(super) struct Walked {
    pub(super) found: Found,
    /// The path without symbolic links.
    pub(super) real: PathBuf,
    pub(super) through_links: bool,
}

/// Walks to `path`, which is absolute. Adds the marks along the way to `walked`, also if it fails.
pub(super) fn walk(
    marks: &mut Marks,
    path: &Path,
    watch: Key,
    number: u64,
    walked: &mut Vec<MarkId>,
) -> io::Result<Walked> {
    // A deleted directory that a process still has open does not report its deletion, only its parent does. To delete a
    // directory, its entries must be deleted first. So it suffices to listen to the parents of all directories when the path
    // does not exist, and busy directories stay silent otherwise.
    let outcome = Walk { marks, watch, number, ancestors: Level::Itself, walked }.run(path)?;
    match outcome.found {
        Found::Nothing => Walk { marks, watch, number, ancestors: Level::Names, walked }.run(path),
        _ => Ok(outcome),
    }
}

struct Walk<'a> {
    marks: &'a mut Marks,
    watch: Key,
    number: u64,
    ancestors: Level,
    walked: &'a mut Vec<MarkId>,
}

impl Walk<'_> {
    fn run(mut self, path: &Path) -> io::Result<Walked> {
        let mut current = PathBuf::from("/");
        let mut ahead = parts(path);
        let mut links = 0;
        while let Some(next) = ahead.pop_front() {
            if next == ".." {
                current.pop();
                continue;
            }
            let is_last = ahead.is_empty();
            let parent = if is_last { Some(self.mark_parent(&current, &next)?) } else { None };
            if parent.is_none() {
                self.mark_ancestor(&current, &next)?;
            }
            let entry = current.join(&next);
            let metadata = match fs::symlink_metadata(&entry) {
                Ok(metadata) => metadata,
                Err(error) if is_absent(&error) => return Ok(self.done(Found::Nothing, entry, links)),
                Err(error) => return Err(error),
            };
            let identity = (metadata.dev(), metadata.ino());
            if metadata.is_symlink() {
                links += 1;
                if links > MOST_LINKS {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                if let Some(parent) = parent.flatten() {
                    self.mark_ancestor(&current, &next)?;
                    let (watch, number) = (self.watch, self.number);
                    self.marks.release(parent, |found| {
                        found.watch == watch
                            && found.walk == number
                            && matches!(&found.role, Role::Parent { name } if *name == next)
                    });
                }
                self.mark_link(&entry, &current, &next)?;
                let target = match fs::read_link(&entry) {
                    Ok(target) => target,
                    // Replaced since. The mark on it reports that.
                    Err(_) => return Ok(self.done(Found::Nothing, entry, links)),
                };
                if target.is_absolute() {
                    current = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    ahead.push_front(part);
                }
            } else if is_last {
                if !metadata.is_dir() {
                    return Ok(self.done(Found::File(identity), entry, links));
                }
                // The directory has a mark of its own. From its parent, only its name matters.
                self.mark(&current, Role::Parent { name: next }, Level::Names)?;
                return Ok(self.done(Found::Directory(identity), entry, links));
            } else if metadata.is_dir() {
                current = entry;
            } else {
                return Ok(self.done(Found::Nothing, entry, links));
            }
        }
        // The path is `/`, or ends in `..`.
        let metadata = fs::symlink_metadata(&current)?;
        Ok(self.done(Found::Directory((metadata.dev(), metadata.ino())), current, links))
    }

    fn done(self, found: Found, real: PathBuf, links: usize) -> Walked {
        Walked { found, real, through_links: links > 0 }
    }

    fn mark(&mut self, path: &Path, role: Role, level: Level) -> io::Result<Option<MarkId>> {
        let (watch, walk) = (self.watch, self.number);
        match self.marks.add(Use { watch, role, walk, level, path: path.to_owned() }) {
            Ok(id) => {
                self.walked.push(id);
                Ok(Some(id))
            }
            // Gone since it was looked up. The look-up that follows finds that out.
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn mark_parent(&mut self, path: &Path, name: &OsString) -> io::Result<Option<MarkId>> {
        self.mark(path, Role::Parent { name: name.clone() }, Level::Contents)
    }

    /// Marks a symbolic link. On systems where links cannot be marked, the directory reports if the link is exchanged.
    fn mark_link(&mut self, link: &Path, directory: &Path, name: &OsString) -> io::Result<()> {
        match self.mark(link, Role::Link, Level::Itself) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.mark(directory, Role::Ancestor { next: name.clone() }, Level::Names).map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    /// Marks a directory on the way. Directories that may be passed through but not listed cannot be marked. What happens
    /// above them is then not noticed.
    fn mark_ancestor(&mut self, path: &Path, next: &OsString) -> io::Result<()> {
        match self.mark(path, Role::Ancestor { next: next.clone() }, self.ancestors) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
