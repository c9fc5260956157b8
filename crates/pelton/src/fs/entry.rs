//! What a directory holds.

use std::ffi::OsStr;
use std::fs::{DirEntry, FileType};
use std::io;
use std::path::{Path, PathBuf};

/// Something in a directory. Unlike [`std::fs::DirEntry`], it keeps no directory open.
#[derive(Clone, Debug)]
pub struct Entry {
    path: PathBuf,
    file_type: FileType,
    depth: usize,
}

impl Entry {
    pub(super) fn of(entry: &DirEntry, depth: usize) -> io::Result<Entry> {
        Ok(Entry { path: entry.path(), file_type: entry.file_type()?, depth })
    }

    /// The path of the directory that was listed, and the name in it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same, to keep.
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    /// Its name.
    pub fn file_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// What it is: a file, a directory, a link.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// How far below the directory that was listed: 1 for what is in it.
    pub fn depth(&self) -> usize {
        self.depth
    }
}
