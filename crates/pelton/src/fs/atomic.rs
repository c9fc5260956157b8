//! Atomic replacement of files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Operation;

/// How many names are tried. Two writers choose the same one with a probability of 2^-64.
const ATTEMPTS: usize = 8;

/// Writes a whole file atomically: it has either its old contents or the new ones, even after a crash or power failure.
///
/// The new contents are written to a temporary file in the same directory, which is synced and then renamed. Finally
/// the directory is synced. An existing file's permissions are preserved, but not its owner or its other hard links. If
/// the path is a symbolic link, its target is replaced and the link stays.
pub fn write_atomic(path: impl AsRef<Path>, contents: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
    Operation::on("write", path, move |path| {
        let target = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_path_buf(),
            target => target?,
        };
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let old = match fs::metadata(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            old => Some(old?.permissions()),
        };
        let (file, beside) = create_beside(&target, directory, old.as_ref())?;
        let written = replace(file, &beside, &target, old, contents.as_ref());
        if written.is_err() {
            // Report the first error.
            let _ = fs::remove_file(&beside);
        }
        written?;
        File::open(directory)?.sync_all()
    })
}

fn create_beside(target: &Path, directory: &Path, old: Option<&Permissions>) -> io::Result<(File, PathBuf)> {
    let name = target.file_name().ok_or(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if let Some(old) = old {
        // Set the mode at creation, so that anyone who could not read the old file can never read the new one.
        options.mode(old.mode());
    }
    let mut attempts = 0;
    loop {
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{:016x}", fastrand::u64(..)));
        let beside = directory.join(beside);
        match options.open(&beside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts < ATTEMPTS => attempts += 1,
            file => return Ok((file?, beside)),
        }
    }
}

fn replace(mut file: File, beside: &Path, target: &Path, old: Option<Permissions>, contents: &[u8]) -> io::Result<()> {
    if let Some(old) = old {
        // `open` has applied the process's umask to the mode.
        file.set_permissions(old)?;
    }
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(beside, target)
}
