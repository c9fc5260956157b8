//! The files of Unix sockets: who may connect, and whose they are to remove.
//!
//! A path is not a file. Between two system calls that take the same path, somebody who may write to the directory can put another
//! file there. So the permissions are set on what was bound, not on what is found under the path, and only the file that was bound is
//! removed, not one that has taken its place.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file of a Unix socket, known by its device and inode.
///
/// ```
/// use pelton_os::SocketFile;
/// use std::os::unix::net::UnixListener;
///
/// let path = std::env::temp_dir().join(format!("pelton-socket-file-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// let first = UnixListener::bind(&path)?;
/// let file = SocketFile::at(&path)?;
/// // Another program puts its own socket there.
/// std::fs::remove_file(&path)?;
/// let second = UnixListener::bind(&path)?;
/// assert!(!file.remove()?);
/// assert!(SocketFile::at(&path)?.remove()?);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The socket that is at `path` now. Fails if there is something else. Links are not followed.
    pub fn at(path: impl Into<PathBuf>) -> io::Result<SocketFile> {
        let path = path.into();
        let found = path.symlink_metadata()?;
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a socket", path.display())));
        }
        Ok(SocketFile { device: found.dev(), inode: found.ino(), path })
    }

    /// The socket that was at `path` when another process looked, with the [identity](SocketFile::identity) that it has told.
    pub fn known_as(path: impl Into<PathBuf>, (device, inode): (u64, u64)) -> SocketFile {
        SocketFile { path: path.into(), device, inode }
    }

    /// Its device and inode.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Where it was.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless it is gone or another file has taken its place. Says whether it was removed.
    ///
    /// To be called while the socket is open: it keeps the inode in use, so that no other file can have the same number.
    pub fn remove(&self) -> io::Result<bool> {
        match SocketFile::at(&self.path) {
            Ok(found) if found == *self => std::fs::remove_file(&self.path).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Binds a Unix socket to `path` by `bind`, with these permissions whatever the umask is. Nobody can connect before it listens, and on
/// Linux the file never has more permissions than these.
pub(crate) fn bind_with_mode(
    socket: BorrowedFd<'_>,
    path: &Path,
    mode: Option<u32>,
    bind: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let Some(mode) = mode else { return bind() };
    // The kernel gives the file the permissions of the socket, without those that the umask takes away.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::fs::fchmod(socket, rustix::fs::Mode::from_raw_mode(mode as _))?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = socket;
    bind()?;
    give_mode(path, mode).map_err(|error| {
        io::Error::new(error.kind(), format!("set the permissions of {} to {mode:o}: {error}", path.display()))
    })
}

/// Gives back what the umask has taken away.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn give_mode(path: &Path, mode: u32) -> io::Result<()> {
    use rustix::fs::{FileType, Mode, OFlags};
    use std::os::fd::AsRawFd;
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let has = Mode::from_raw_mode(found.st_mode).as_raw_mode() & 0o7777;
    // A socket with one name, that is ours and has no more permissions than were asked for, is the one that was bound, unless somebody
    // has moved another of ours here, who can then do anything with that already.
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1
        && has & !mode == 0;
    if !is_ours {
        return Err(io::Error::other("somebody has put another file in its place"));
    }
    if has != mode {
        // By descriptor: `fchmod` does not take one that only names a file.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(name, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn give_mode(path: &Path, mode: u32) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Mode};
    // These systems can change a link itself, so one that was put in its place leads nowhere.
    Ok(rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode as _), AtFlags::SYMLINK_NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    fn directory(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("pelton-socket-file-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn only_the_file_that_was_bound_is_removed() {
        let directory = directory("removed");
        let path = directory.join("socket");
        let bind = || UnixListener::bind(&path).unwrap();
        let ours = bind();
        let file = SocketFile::at(&path).unwrap();
        assert_eq!(SocketFile::known_as(&path, file.identity()), file);
        fs::remove_file(&path).unwrap();
        assert!(!file.remove().unwrap(), "there is nothing");
        fs::write(&path, "a file").unwrap();
        assert!(!file.remove().unwrap() && path.exists(), "it is no socket");
        fs::remove_file(&path).unwrap();
        let theirs = bind();
        assert!(!file.remove().unwrap() && path.exists(), "it is another's");
        fs::rename(&path, directory.join("theirs")).unwrap();
        symlink("theirs", &path).unwrap();
        assert!(SocketFile::at(&path).is_err(), "links are not followed");
        assert!(SocketFile::at(directory.join("theirs")).unwrap().remove().unwrap());
        drop((ours, theirs));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn permissions_are_not_given_to_what_has_taken_its_place() {
        let directory = directory("mode");
        let (path, victim) = (directory.join("socket"), directory.join("victim"));
        fs::write(&victim, "a secret").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        let mode_of = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
        // A link to a file, and another socket under two names.
        let listener = UnixListener::bind(directory.join("other")).unwrap();
        fs::set_permissions(directory.join("other"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(give_mode(&path, 0o666).is_err());
        fs::remove_file(&path).unwrap();
        fs::hard_link(directory.join("other"), &path).unwrap();
        assert!(give_mode(&path, 0o666).is_err());
        assert_eq!((mode_of(&victim), mode_of(&path)), (0o600, 0o600));
        fs::remove_file(directory.join("other")).unwrap();
        give_mode(&path, 0o666).unwrap();
        assert_eq!(mode_of(&path), 0o666);
        drop(listener);
        fs::remove_dir_all(&directory).unwrap();
    }
}
