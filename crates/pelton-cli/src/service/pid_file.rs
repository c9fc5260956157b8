//! The PID file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many random names are tried for the temporary file. The first one is free unless somebody can predict them.
const ATTEMPTS: usize = 8;

/// A PID file, removed on drop unless another file has taken its place.
pub struct PidFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl PidFile {
    /// Writes the process ID atomically: readers see the old one or the new one. Replaces what is at `path`, even a link; follows
    /// no link.
    pub fn write(path: &Path) -> io::Result<PidFile> {
        let doing =
            |error: io::Error| io::Error::new(error.kind(), format!("write the PID file {}: {error}", path.display()));
        let (mut file, unfinished) = create_beside(path).map_err(doing)?;
        let written = writeln!(file, "{}", std::process::id()).and_then(|()| file.metadata());
        let moved = written.and_then(|about| fs::rename(&unfinished, path).map(|()| about));
        match moved {
            Ok(about) => Ok(PidFile { path: path.to_owned(), identity: identity(&about) }),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(doing(error))
            }
        }
    }
}

/// Creates a new file in the same directory. It never opens an existing file or link.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{:016x}", RandomState::new().hash_one((std::process::id(), attempt))));
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {}
            outcome => return outcome.map(|file| (file, name.into())),
        }
    }
}

fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "could not remove the PID file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_obstacle_is_neither_followed_nor_overwritten() {
        let directory = std::env::temp_dir().join(format!("pelton-pid-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (path, victim) = (directory.join("pid"), directory.join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        // The temporary name that earlier versions used.
        symlink(&victim, directory.join(format!("pid.{}", std::process::id()))).unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert!(!path.is_symlink());
        // Another process takes over, or somebody puts a FIFO there: we must not remove or read it.
        fs::rename(&path, directory.join("kept")).unwrap();
        symlink("kept", &path).unwrap();
        drop(file);
        assert!(path.is_symlink());
        drop(PidFile::write(&path).unwrap());
        assert!(!path.exists() && !path.is_symlink());
        let left: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "{left:?}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
