//! The files of Unix sockets: their permissions and their removal.
//!
//! A path is not a file. Between two system calls with the same path, anybody who may write to the directory can put another
//! file there. So permissions are set on the socket that was bound, not on what the path leads to, and only the file that was
//! bound is removed, not one that has replaced it.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file of a Unix socket, identified by its device and inode.
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
    /// Returns the socket that is at `path` now. Fails for other kinds of files. Does not follow links.
    pub fn at(path: impl Into<PathBuf>) -> io::Result<SocketFile> {
        let path = path.into();
        let found = path.symlink_metadata()?;
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a socket", path.display())));
        }
        Ok(SocketFile { device: found.dev(), inode: found.ino(), path })
    }

    /// Returns the socket that another process found at `path`, with the [identity](SocketFile::identity) that it reported.
    pub fn known_as(path: impl Into<PathBuf>, (device, inode): (u64, u64)) -> SocketFile {
        SocketFile { path: path.into(), device, inode }
    }

    /// Returns the device and inode.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless it is gone or was replaced. Returns whether it was removed.
    ///
    /// Call it while the socket is open: that keeps the inode in use, so that no other file can have the same number.
    pub fn remove(&self) -> io::Result<bool> {
        match SocketFile::at(&self.path) {
            Ok(found) if found == *self => std::fs::remove_file(&self.path).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Binds a Unix socket to `path` by calling `bind`, with these permissions regardless of the umask. Nobody can connect before
/// the socket listens, and on Linux the file never has more permissions than these.
pub(crate) fn bind_with_mode(
    socket: BorrowedFd<'_>,
    path: &Path,
    mode: Option<u32>,
    bind: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let Some(mode) = mode else { return bind() };
    // The kernel gives the file the permissions of the socket, less those in the umask.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::fs::fchmod(socket, rustix::fs::Mode::from_raw_mode(mode as _))?;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = socket;
    bind()?;
    give_mode(path, mode).map_err(|error| {
        io::Error::new(error.kind(), format!("set the permissions of {} to {mode:o}: {error}", path.display()))
    })
}

/// Restores the permissions that the umask removed.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn give_mode(path: &Path, mode: u32) -> io::Result<()> {
    use rustix::fs::{FileType, Mode, OFlags};
    use std::os::fd::AsRawFd;
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    let has = Mode::from_raw_mode(found.st_mode).as_raw_mode() & 0o7777;
    // A socket with one name, that is ours and has no permissions beyond those wanted, is the one that was bound. Otherwise
    // somebody has moved another socket of ours here, and could do so only with full access to it.
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1
        && has & !mode == 0;
    if !is_ours {
        return Err(io::Error::other("another file has replaced it"));
    }
    if has != mode {
        // By descriptor: `fchmod` refuses one that was opened with O_PATH.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(name, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn give_mode(path: &Path, mode: u32) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Mode};
    // These systems can change a link itself, so a link that replaced the file is not followed.
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
        assert!(!file.remove().unwrap(), "the file is gone");
        fs::write(&path, "a file").unwrap();
        assert!(!file.remove().unwrap() && path.exists(), "the file is not a socket");
        fs::remove_file(&path).unwrap();
        let theirs = bind();
        assert!(!file.remove().unwrap() && path.exists(), "the file is another socket");
        fs::rename(&path, directory.join("theirs")).unwrap();
        symlink("theirs", &path).unwrap();
        assert!(SocketFile::at(&path).is_err(), "links are not followed");
        assert!(SocketFile::at(directory.join("theirs")).unwrap().remove().unwrap());
        drop((ours, theirs));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_replaced_the_socket_keeps_its_permissions() {
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
