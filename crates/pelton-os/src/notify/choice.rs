//! Either notifier, for tests on Linux of the code that other systems use.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::{Level, MarkId, Marking, Notice, inotify, vnodes};

thread_local! {
    static EMULATED: Cell<bool> = const { Cell::new(false) };
}

/// Makes new notifiers of this thread use the code for systems with `kqueue`, on an emulated queue. For tests only.
pub fn emulate_vnodes() {
    EMULATED.set(true);
}

/// Reports changes of marked directories.
pub enum Notifier {
    /// The notifier for Linux.
    Inotify(inotify::Notifier),
    /// The notifier for other systems.
    Vnodes(vnodes::Notifier),
}

impl Notifier {
    /// Opens a notifier without marks.
    pub fn new() -> io::Result<Notifier> {
        if EMULATED.get() {
            vnodes::Notifier::new().map(Notifier::Vnodes)
        } else {
            inotify::Notifier::new().map(Notifier::Inotify)
        }
    }

    /// Marks a directory or a symbolic link. If the file has a mark already, that mark is changed and returned.
    pub fn mark(&mut self, path: &Path, level: Level, marking: Marking) -> io::Result<MarkId> {
        match self {
            Notifier::Inotify(notifier) => notifier.mark(path, level, marking),
            Notifier::Vnodes(notifier) => notifier.mark(path, level, marking),
        }
    }

    /// Removes a mark.
    pub fn unmark(&mut self, mark: MarkId) {
        match self {
            Notifier::Inotify(notifier) => notifier.unmark(mark),
            Notifier::Vnodes(notifier) => notifier.unmark(mark),
        }
    }

    /// Appends waiting notices to `notices`. Returns whether these were all.
    pub fn read(&mut self, notices: &mut Vec<Notice>) -> io::Result<bool> {
        match self {
            Notifier::Inotify(notifier) => notifier.read(notices),
            Notifier::Vnodes(notifier) => notifier.read(notices),
        }
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Notifier::Inotify(notifier) => notifier.as_fd(),
            Notifier::Vnodes(notifier) => notifier.as_fd(),
        }
    }
}
