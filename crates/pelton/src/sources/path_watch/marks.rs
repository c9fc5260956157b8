//! The marks of a notifier, and which watches use each.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use pelton_os::notify::{Level, MarkId, Marking, Notice, Notifier};

use crate::reactor::slots::Key;

/// What a watch uses a mark for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A directory on the way to the watched path, which goes on with the entry `next`.
    Ancestor { next: OsString },
    /// A symbolic link on the way.
    Link,
    /// The directory that has the watched path as its entry `name`.
    Parent { name: OsString },
    /// The watched directory, or a directory below it.
    Directory,
}

/// A watch's use of a mark.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) watch: Key,
    pub(super) role: Role,
    /// Changes whenever the way to the watched path is walked again. Uses of earlier walks are released afterwards.
    pub(super) walk: u64,
    pub(super) level: Level,
    /// The path under which the file was marked.
    pub(super) path: PathBuf,
}

struct Mark {
    level: Level,
    uses: Vec<Use>,
}

pub(super) struct Marks {
    notifier: Notifier,
    marks: HashMap<MarkId, Mark>,
}

impl Marks {
    pub(super) fn new() -> io::Result<Marks> {
        Ok(Marks { notifier: Notifier::new()?, marks: HashMap::new() })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    pub(super) fn read(&mut self, notices: &mut Vec<Notice>) -> io::Result<bool> {
        self.notifier.read(notices)
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// Marks the file at the path of `new`. A watch uses a mark only once in the same role.
    pub(super) fn add(&mut self, new: Use) -> io::Result<MarkId> {
        let id = self.notifier.mark(&new.path, new.level, Marking::Widen)?;
        let mark = self.marks.entry(id).or_insert_with(|| Mark { level: new.level, uses: Vec::new() });
        mark.level = mark.level.max(new.level);
        match mark.uses.iter_mut().find(|old| old.watch == new.watch && old.role == new.role) {
            Some(old) => {
                *old = new;
                self.fit(id);
            }
            None => mark.uses.push(new),
        }
        Ok(id)
    }

    pub(super) fn uses(&self, id: MarkId) -> &[Use] {
        self.marks.get(&id).map_or(&[], |mark| &mark.uses)
    }

    /// Removes the entry of a mark that the system has removed.
    pub(super) fn ended(&mut self, id: MarkId) {
        self.marks.remove(&id);
    }

    /// Removes the uses of a mark that `is_over` selects, and the mark itself if nothing uses it.
    pub(super) fn release(&mut self, id: MarkId, mut is_over: impl FnMut(&Use) -> bool) {
        let Some(mark) = self.marks.get_mut(&id) else { return };
        mark.uses.retain(|found| !is_over(found));
        if mark.uses.is_empty() {
            self.marks.remove(&id);
            self.notifier.unmark(id);
        } else {
            self.fit(id);
        }
    }

    /// Makes a mark report what its remaining uses need, and no more.
    fn fit(&mut self, id: MarkId) {
        let Some(mark) = self.marks.get_mut(&id) else { return };
        let Some(widest) = mark.uses.iter().max_by_key(|found| found.level) else { return };
        if widest.level == mark.level {
            return;
        }
        let level = widest.level;
        match self.notifier.mark(&widest.path, level, Marking::Replace) {
            Ok(same) if same == id => mark.level = level,
            // The path belongs to another file by now. This mark keeps reporting too much, which does no harm. The other
            // file's mark must not report too little.
            Ok(other) => match self.marks.get(&other) {
                Some(known) => {
                    let _ = self.notifier.mark(&known.uses[0].path, known.level, Marking::Widen);
                }
                None => self.notifier.unmark(other),
            },
            Err(_) => {}
        }
    }
}
