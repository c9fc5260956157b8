//! Notices on systems whose kernel reports that a file or directory changed, but not which entry of a directory.
//!
//! A marked directory is kept open, and with it, at [`Level::Contents`], each of its entries. That takes a descriptor per
//! entry. When the directory changes, its entries are compared with those it had.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use super::queue::{Happened, Queue};
use super::snapshot::{self, Snapshot};
use super::{Level, MarkId, Marking, Notice, What};

/// What an open descriptor stands for.
enum Subject {
    Mark(MarkId),
    Entry(MarkId, OsString),
}

struct Mark {
    file: OwnedFd,
    identity: (u64, u64),
    level: Level,
    /// Empty below [`Level::Names`].
    snapshot: Snapshot,
    /// Empty below [`Level::Contents`].
    entries: BTreeMap<OsString, OwnedFd>,
}

/// Reports changes of marked directories.
pub struct Notifier {
    queue: Queue,
    marks: HashMap<MarkId, Mark>,
    by_identity: HashMap<(u64, u64), MarkId>,
    subjects: HashMap<RawFd, Subject>,
    latest: i32,
    cookie: u32,
}

impl Notifier {
    /// Opens a notifier without marks.
    pub fn new() -> io::Result<Notifier> {
        Ok(Notifier {
            queue: Queue::new()?,
            marks: HashMap::new(),
            by_identity: HashMap::new(),
            subjects: HashMap::new(),
            latest: 0,
            cookie: 0,
        })
    }

    /// Marks a directory or a symbolic link. If the file has a mark already, that mark is changed and returned.
    ///
    /// A level above [`Level::Itself`] requires a directory. Fails with `Unsupported` for a symbolic link on systems that
    /// cannot open one.
    pub fn mark(&mut self, path: &Path, level: Level, marking: Marking) -> io::Result<MarkId> {
        let file = Queue::open(rustix::fs::CWD, path)?;
        let status = rustix::fs::fstat(&file)?;
        // The types of these fields differ between systems.
        #[allow(clippy::unnecessary_cast)]
        let identity = (status.st_dev as u64, status.st_ino as u64);
        if level > Level::Itself
            && rustix::fs::FileType::from_raw_mode(status.st_mode) != rustix::fs::FileType::Directory
        {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let known = self.by_identity.get(&identity).and_then(|id| Some((*id, self.marks.get(id)?.level)));
        let id = match known {
            Some((id, before)) => {
                let level = if marking == Marking::Widen { level.max(before) } else { level };
                self.set_level(id, level)?;
                id
            }
            None => {
                self.queue.add(file.as_fd())?;
                self.latest += 1;
                let id = MarkId(self.latest);
                self.subjects.insert(file.as_raw_fd(), Subject::Mark(id));
                self.by_identity.insert(identity, id);
                let (snapshot, entries) = Default::default();
                self.marks.insert(id, Mark { file, identity, level: Level::Itself, snapshot, entries });
                if let Err(error) = self.set_level(id, level) {
                    self.unmark(id);
                    return Err(error);
                }
                id
            }
        };
        Ok(id)
    }

    fn set_level(&mut self, id: MarkId, level: Level) -> io::Result<()> {
        let Some(mark) = self.marks.get_mut(&id) else { return Ok(()) };
        let before = std::mem::replace(&mut mark.level, level);
        if level >= Level::Names && before < Level::Names {
            mark.snapshot = snapshot::take(mark.file.as_fd())?;
        }
        if level < Level::Names {
            mark.snapshot.clear();
        }
        if level < Level::Contents {
            for entry in std::mem::take(&mut mark.entries).into_values() {
                self.subjects.remove(&entry.as_raw_fd());
            }
        } else if before < Level::Contents {
            let names: Vec<OsString> = mark.snapshot.keys().cloned().collect();
            for name in names {
                self.open_entry(id, &name)?;
            }
        }
        Ok(())
    }

    /// Opens an entry, to learn when it is modified. Entries that may not be read, or that are gone, are left out.
    fn open_entry(&mut self, id: MarkId, name: &OsStr) -> io::Result<()> {
        let Some(mark) = self.marks.get_mut(&id) else { return Ok(()) };
        let file = match Queue::open(mark.file.as_fd(), Path::new(name)) {
            Ok(file) => file,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
                ) || matches!(error.raw_os_error(), Some(libc::ENXIO | libc::EOPNOTSUPP)) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.queue.add(file.as_fd())?;
        self.subjects.insert(file.as_raw_fd(), Subject::Entry(id, name.to_owned()));
        if let Some(old) = mark.entries.insert(name.to_owned(), file) {
            self.subjects.remove(&old.as_raw_fd());
        }
        Ok(())
    }

    fn close_entry(&mut self, id: MarkId, name: &OsStr) {
        if let Some(file) = self.marks.get_mut(&id).and_then(|mark| mark.entries.remove(name)) {
            self.subjects.remove(&file.as_raw_fd());
        }
    }

    /// Removes a mark.
    pub fn unmark(&mut self, mark: MarkId) {
        let Some(mark) = self.marks.remove(&mark) else { return };
        self.by_identity.remove(&mark.identity);
        for file in mark.entries.values().chain([&mark.file]) {
            self.subjects.remove(&file.as_raw_fd());
        }
    }

    /// Appends waiting notices to `notices`. Returns whether these were all.
    pub fn read(&mut self, notices: &mut Vec<Notice>) -> io::Result<bool> {
        let mut happened = Vec::new();
        let was_all = self.queue.read(&mut happened)?;
        for (file, what) in happened {
            match self.subjects.get(&file) {
                Some(Subject::Mark(id)) => self.mark_changed(*id, what, notices)?,
                Some(Subject::Entry(id, name)) => {
                    let directory = self
                        .marks
                        .get(id)
                        .and_then(|mark| mark.snapshot.get(name))
                        .is_some_and(|entry| entry.directory);
                    // Some systems also report the changed number of links of a file that was deleted.
                    let entry = self.marks.get(id).and_then(|mark| mark.entries.get(name));
                    let has_name =
                        entry.is_some_and(|file| rustix::fs::fstat(file).is_ok_and(|status| status.st_nlink > 0));
                    let mut tell = |what| notices.push(Notice { mark: *id, what, directory, name: Some(name.clone()) });
                    // A directory is written to when its own entries change. That is for a mark on it to report.
                    if what.written && !directory {
                        tell(What::Modified);
                    } else if what.attributes && !what.deleted && has_name {
                        tell(What::Attributes);
                    }
                }
                None => {}
            }
        }
        Ok(was_all)
    }

    fn mark_changed(&mut self, id: MarkId, what: Happened, notices: &mut Vec<Notice>) -> io::Result<()> {
        let Some(mark) = self.marks.get_mut(&id) else { return Ok(()) };
        let level = mark.level;
        let mut tell = |what| notices.push(Notice { mark: id, what, directory: true, name: None });
        if what.attributes && level >= Level::Contents && !what.deleted {
            tell(What::Attributes);
        }
        if what.written && level >= Level::Names {
            self.compare(id, notices)?;
        }
        let mut tell = |what| notices.push(Notice { mark: id, what, directory: true, name: None });
        if what.deleted || what.moved {
            tell(What::Gone);
        }
        if what.deleted {
            tell(What::Ended);
            self.unmark(id);
        }
        Ok(())
    }

    /// Reports how the entries of a directory differ from those it had.
    fn compare(&mut self, id: MarkId, notices: &mut Vec<Notice>) -> io::Result<()> {
        let Some(mark) = self.marks.get_mut(&id) else { return Ok(()) };
        let new = snapshot::take(mark.file.as_fd())?;
        let old = std::mem::replace(&mut mark.snapshot, new.clone());
        let first = notices.len();
        snapshot::compare(&old, &new, &mut self.cookie, |name, entry, what| {
            notices.push(Notice { mark: id, what, directory: entry.directory, name: Some(name.to_owned()) });
        });
        if self.marks.get(&id).is_some_and(|mark| mark.level >= Level::Contents) {
            for notice in &notices[first..] {
                let Some(name) = &notice.name else { continue };
                match notice.what {
                    What::Deleted | What::MovedFrom(_) => self.close_entry(id, name),
                    _ => self.open_entry(id, name)?,
                }
            }
        }
        Ok(())
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Marks a new directory and reads what `act` causes.
    fn notices(level: Level, act: impl FnOnce(&Path)) -> Vec<String> {
        let directory = std::env::temp_dir().join(format!("pelton-vnodes-{}-{level:?}", std::process::id()));
        let directory = directory.join(format!("{:?}", std::thread::current().id()));
        fs::create_dir_all(directory.join("marked")).unwrap();
        fs::write(directory.join("marked/there"), "").unwrap();
        let mut notifier = Notifier::new().unwrap();
        let mark = notifier.mark(&directory.join("marked"), level, Marking::Widen).unwrap();
        act(&directory);
        let mut notices = Vec::new();
        while !notifier.read(&mut notices).unwrap() {}
        let _ = fs::remove_dir_all(&directory);
        let mut told: Vec<String> = Vec::new();
        for notice in notices {
            assert_eq!(notice.mark, mark);
            let text = format!("{:?} {}", notice.what, notice.name.unwrap_or_default().display());
            if told.last() != Some(&text) {
                told.push(text);
            }
        }
        told
    }

    #[test]
    fn a_directory_itself_is_moved_and_deleted() {
        let told = notices(Level::Itself, |directory| {
            fs::write(directory.join("marked/new"), "").unwrap();
            fs::rename(directory.join("marked"), directory.join("moved")).unwrap();
        });
        assert_eq!(told, ["Gone "]);
        let told = notices(Level::Itself, |directory| fs::remove_dir_all(directory.join("marked")).unwrap());
        // An open directory reports its deletion on the real systems, and not on Linux.
        assert!(told.is_empty() || told == ["Gone ", "Ended "]);
    }

    #[test]
    fn names_of_entries_are_compared() {
        let told = notices(Level::Names, |directory| {
            fs::write(directory.join("marked/there"), "more").unwrap();
            fs::write(directory.join("marked/new"), "").unwrap();
            fs::rename(directory.join("marked/there"), directory.join("marked/moved")).unwrap();
        });
        assert_eq!(told, ["MovedFrom(1) there", "MovedTo(1) moved", "Created new"]);
    }

    #[test]
    fn entries_are_modified_also_new_ones() {
        let told = notices(Level::Contents, |directory| {
            fs::write(directory.join("marked/there"), "more").unwrap();
        });
        assert_eq!(told, ["Modified there"]);
        let told = notices(Level::Contents, |directory| {
            fs::remove_file(directory.join("marked/there")).unwrap();
        });
        assert!(told.contains(&"Deleted there".to_owned()), "{told:?}");
    }
}
