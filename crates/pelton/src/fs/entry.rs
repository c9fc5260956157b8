//! Entries of a directory.

use std::ffi::OsStr;
use std::fs::{DirEntry, FileType};
use std::io;
use std::path::{Path, PathBuf};

/// An entry of a directory. Unlike [`std::fs::DirEntry`], it does not keep the directory open.
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

    /// Returns the path: that of the listed directory, joined with the name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path as an owned value.
    pub fn into_path(self) -> PathBuf {
        self.path
    }

    /// Returns the name.
    pub fn file_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the type: file, directory or link.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Returns the depth below the listed directory: 1 for its direct entries.
    pub fn depth(&self) -> usize {
        self.depth
    }
}
