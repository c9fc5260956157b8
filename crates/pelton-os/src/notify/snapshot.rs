//! The entries of a directory, and what distinguishes two snapshots of them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Dir, FileType};

use super::What;

/// An entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) directory: bool,
}

/// The entries of a directory at some time.
pub(super) type Snapshot = BTreeMap<OsString, Entry>;

/// Reads the entries of a directory.
pub(super) fn take(directory: BorrowedFd<'_>) -> io::Result<Snapshot> {
    let mut snapshot = Snapshot::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let directory = entry.file_type() == FileType::Directory;
            snapshot.insert(OsStr::from_bytes(name).to_owned(), Entry { number: entry.ino(), directory });
        }
    }
    Ok(snapshot)
}

/// Calls `tell` for each difference. `cookie` numbers the moves.
///
/// An entry was moved if its old name is gone and the same file has a new name. If the name of an entry belongs to another
/// file now, that one was moved there, from wherever it was.
pub(super) fn compare(old: &Snapshot, new: &Snapshot, cookie: &mut u32, mut tell: impl FnMut(&OsStr, Entry, What)) {
    // Two names of one file share a number, so there may be several.
    let mut gone: BTreeMap<u64, Vec<&OsStr>> = BTreeMap::new();
    for (name, entry) in old.iter().filter(|(name, _)| !new.contains_key(*name)) {
        gone.entry(entry.number).or_default().push(name);
    }
    let mut created = Vec::new();
    for (name, entry) in new {
        if old.get(name).is_some_and(|before| before.number == entry.number) {
            continue;
        }
        match gone.get_mut(&entry.number).and_then(Vec::pop) {
            Some(former) => {
                *cookie = cookie.wrapping_add(1);
                tell(former, *entry, What::MovedFrom(*cookie));
                tell(name, *entry, What::MovedTo(*cookie));
            }
            None => created.push((name, *entry)),
        }
    }
    for (name, entry) in old {
        if gone.get(&entry.number).is_some_and(|names| names.contains(&name.as_os_str())) {
            tell(name, *entry, What::Deleted);
        }
    }
    for (name, entry) in created {
        match old.get(name) {
            // It was moved here from a name that came and went between the snapshots, as editors do.
            Some(before) if !before.directory && !entry.directory => {
                *cookie = cookie.wrapping_add(1);
                tell(name, entry, What::MovedTo(*cookie));
            }
            // The entries of a directory go with it.
            Some(before) => {
                tell(name, *before, What::Deleted);
                tell(name, entry, What::Created);
            }
            None => tell(name, entry, What::Created),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, u64)]) -> Snapshot {
        let entry = |number| Entry { number, directory: false };
        entries.iter().map(|(name, number)| ((*name).into(), entry(*number))).collect()
    }

    fn differences(old: &[(&str, u64)], new: &[(&str, u64)]) -> Vec<String> {
        let mut told = Vec::new();
        compare(&snapshot(old), &snapshot(new), &mut 0, |name, _, what| {
            told.push(format!("{what:?} {}", name.display()));
        });
        told
    }

    #[test]
    fn entries_are_created_deleted_and_moved() {
        assert_eq!(differences(&[("a", 1)], &[("a", 1)]), [] as [&str; 0]);
        assert_eq!(differences(&[("a", 1)], &[("a", 1), ("b", 2)]), ["Created b"]);
        assert_eq!(differences(&[("a", 1), ("b", 2)], &[("b", 2)]), ["Deleted a"]);
        assert_eq!(differences(&[("a", 1)], &[("b", 1)]), ["MovedFrom(1) a", "MovedTo(1) b"]);
    }

    #[test]
    fn an_entry_may_be_replaced() {
        assert_eq!(differences(&[("a", 1), ("b", 2)], &[("b", 1)]), ["MovedFrom(1) a", "MovedTo(1) b"]);
        assert_eq!(differences(&[("a", 1)], &[("a", 2)]), ["MovedTo(1) a"]);
        let exchanged = differences(&[("a", 1), ("b", 2)], &[("a", 2), ("b", 1)]);
        assert_eq!(exchanged, ["MovedTo(1) a", "MovedTo(2) b"]);
    }

    #[test]
    fn a_file_may_have_two_names() {
        assert_eq!(differences(&[("a", 1)], &[("a", 1), ("b", 1)]), ["Created b"]);
        assert_eq!(differences(&[("a", 1), ("b", 1)], &[("b", 1)]), ["Deleted a"]);
        assert_eq!(differences(&[("a", 1), ("b", 1)], &[]), ["Deleted a", "Deleted b"]);
    }
}
