//! Files and directories, without blocking the loop.
//!
//! The functions and methods of [`std::fs`]. Each returns an [`Operation`], which describes what to do. Starting it
//! chooses how its outcome is delivered. It runs on a thread of the [files](Lane::Files) lane.
//!
//! ```
//! use pelton::{Reactor, fs};
//!
//! let mut reactor = Reactor::new()?;
//! fs::read_to_string("/nonexistent/file").then(&mut reactor, |reactor, outcome| {
//!     assert!(outcome.unwrap_err().to_string().starts_with("read /nonexistent/file: "));
//!     reactor.stop();
//! })?;
//! reactor.run()?;
//! # Ok::<(), pelton::Error>(())
//! ```
//!
//! In addition to `std::fs` there are [`write_atomic`], which leaves either the old contents or the new ones; [`walk`],
//! which lists everything below a directory; [`copy_in_steps`], which reports progress; files that are read and written
//! [at an offset](File::read_at); and a [`Directory`] for untrusted names, which cannot lead out of it.
//!
//! Errors are [`std::io::Error`]s of the kind that the system returned. Their messages name the operation and the path.

mod atomic;
mod beneath;
mod copying;
mod directory;
mod entry;
mod file;
mod operation;
mod reading;
mod steps;
mod walk;

use std::fs::{self, Metadata, Permissions};
use std::path::{Path, PathBuf};

pub use atomic::write_atomic;
pub use copying::{Copying, Progress, copy_in_steps};
pub use directory::Directory;
pub use entry::Entry;
pub use file::File;
pub use operation::{Operation, OperationFuture};
pub use steps::Steps;
pub use walk::{Walk, walk};

#[cfg(doc)]
use crate::Lane;

/// Reads a whole file. See [`std::fs::read`].
pub fn read(path: impl AsRef<Path>) -> Operation<Vec<u8>> {
    Operation::on("read", path, reading::whole)
}

/// Reads a whole file as text. See [`std::fs::read_to_string`].
pub fn read_to_string(path: impl AsRef<Path>) -> Operation<String> {
    Operation::on("read", path, reading::text)
}

/// Writes a whole file, creating it if necessary. See [`std::fs::write`]; [`write_atomic`] never leaves a partial file.
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
    Operation::on("write", path, move |path| fs::write(path, contents))
}

/// Copies a file and its permissions. Returns its size in bytes. See [`std::fs::copy`]; [`copy_in_steps`] reports
/// progress.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<u64> {
    Operation::between("copy", from, to, |from, to| fs::copy(from, to))
}

/// Renames a file or directory. See [`std::fs::rename`].
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Operation<()> {
    Operation::between("rename", from, to, |from, to| fs::rename(from, to))
}

/// Removes a file. See [`std::fs::remove_file`].
pub fn remove_file(path: impl AsRef<Path>) -> Operation<()> {
    Operation::on("remove", path, |path| fs::remove_file(path))
}

/// Removes an empty directory. See [`std::fs::remove_dir`].
pub fn remove_dir(path: impl AsRef<Path>) -> Operation<()> {
    Operation::on("remove directory", path, |path| fs::remove_dir(path))
}

/// Removes a directory and everything in it. See [`std::fs::remove_dir_all`].
pub fn remove_dir_all(path: impl AsRef<Path>) -> Operation<()> {
    Operation::on("remove all of", path, |path| fs::remove_dir_all(path))
}

/// Creates a directory. See [`std::fs::create_dir`].
pub fn create_dir(path: impl AsRef<Path>) -> Operation<()> {
    Operation::on("create directory", path, |path| fs::create_dir(path))
}

/// Creates a directory and its missing parents. See [`std::fs::create_dir_all`].
pub fn create_dir_all(path: impl AsRef<Path>) -> Operation<()> {
    Operation::on("create directory", path, |path| fs::create_dir_all(path))
}

/// Lists a directory, in no particular order. See [`std::fs::read_dir`]; [`walk`] lists large ones step by step.
pub fn read_dir(path: impl AsRef<Path>) -> Operation<Vec<Entry>> {
    Operation::on("list", path, |path| fs::read_dir(path)?.map(|entry| Entry::of(&entry?, 1)).collect())
}

/// Returns the metadata of a file, following a symbolic link. See [`std::fs::metadata`].
pub fn metadata(path: impl AsRef<Path>) -> Operation<Metadata> {
    Operation::on("get metadata of", path, |path| fs::metadata(path))
}

/// Returns the metadata of a file, or of a symbolic link itself. See [`std::fs::symlink_metadata`].
pub fn symlink_metadata(path: impl AsRef<Path>) -> Operation<Metadata> {
    Operation::on("get metadata of", path, |path| fs::symlink_metadata(path))
}

/// Returns whether the file exists. See [`std::fs::exists`].
pub fn exists(path: impl AsRef<Path>) -> Operation<bool> {
    Operation::on("check for", path, |path| fs::exists(path))
}

/// Changes a file's permissions. See [`std::fs::set_permissions`].
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> Operation<()> {
    Operation::on("set permissions of", path, move |path| fs::set_permissions(path, permissions))
}

/// Returns the absolute path with all links resolved. See [`std::fs::canonicalize`].
pub fn canonicalize(path: impl AsRef<Path>) -> Operation<PathBuf> {
    Operation::on("resolve", path, |path| fs::canonicalize(path))
}

/// Creates a hard link. See [`std::fs::hard_link`].
pub fn hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> Operation<()> {
    Operation::between("link", original, link, |original, link| fs::hard_link(original, link))
}

/// Creates a symbolic link to `original`, which need not exist. See [`std::os::unix::fs::symlink`].
pub fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> Operation<()> {
    Operation::between("link", original, link, |original, link| std::os::unix::fs::symlink(original, link))
}

/// Returns the target of a symbolic link. See [`std::fs::read_link`].
pub fn read_link(path: impl AsRef<Path>) -> Operation<PathBuf> {
    Operation::on("read link", path, |path| fs::read_link(path))
}
