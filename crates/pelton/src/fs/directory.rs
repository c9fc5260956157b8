//! A directory that names cannot escape from.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::{File, Operation, beneath, reading};

/// `NONBLOCK`: opening a FIFO must not block. `NOCTTY`: a terminal must not become the controlling one.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

const WRITE: OFlags = OFlags::WRONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CREATE);

/// The mode of created files, before the process's umask.
const FILE_MODE: Mode =
    Mode::RUSR.union(Mode::WUSR).union(Mode::RGRP).union(Mode::WGRP).union(Mode::ROTH).union(Mode::WOTH);

/// An open directory for untrusted names, such as a part of a request's path or an entry of an archive.
///
/// A name is a relative path without `..`. It is looked up below the directory. A name that leads out of the directory,
/// by `..`, a leading slash or a symbolic link, fails with [`io::ErrorKind::NotFound`], like a missing one. So does a
/// name that no file can have, because it is too long or contains a null byte. Depending on the name, an operation may
/// also fail with [`NotADirectory`](io::ErrorKind::NotADirectory) or [`IsADirectory`](io::ErrorKind::IsADirectory). On
/// Linux 5.6 and later the kernel enforces that names stay inside, and links that stay inside are followed. Elsewhere
/// no links are followed.
///
/// It keeps referring to the same directory even if the directory is renamed or another one takes its place. Clones
/// refer to the same directory.
///
/// ```
/// use pelton::{Reactor, fs};
///
/// let mut reactor = Reactor::new()?;
/// let pages = fs::Directory::open(std::env::temp_dir()).now()?;
/// pages.read("../etc/hostname").then(&mut reactor, |reactor, outcome| {
///     assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::NotFound);
///     reactor.stop();
/// })?;
/// reactor.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Directory {
    directory: Arc<OwnedFd>,
    path: Arc<Path>,
}

impl Directory {
    /// Opens a directory. The path is trusted and not restricted.
    pub fn open(path: impl AsRef<Path>) -> Operation<Directory> {
        Operation::on("open directory", path, Directory::at)
    }

    fn at(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory { directory: Arc::new(rustix::fs::open(path, flags, Mode::empty())?), path: path.into() })
    }

    /// Returns the path with which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates an operation on a name. Error messages show the name joined to the directory's path.
    fn on<T: Send + 'static>(
        &self,
        what: &'static str,
        name: impl AsRef<Path>,
        op: impl FnOnce(&OwnedFd, &Path) -> io::Result<T> + Send + 'static,
    ) -> Operation<T> {
        let (directory, name) = (self.directory.clone(), name.as_ref().to_owned());
        let path: Arc<Path> = self.path.join(&name).into();
        Operation::of(what, &path, move || op(&directory, &name))
    }

    fn open_file(&self, what: &'static str, name: impl AsRef<Path>, flags: OFlags) -> Operation<File> {
        let path = self.path.join(name.as_ref());
        self.on(what, name, move |directory, name| {
            let mode = if flags.contains(OFlags::CREATE) { FILE_MODE } else { Mode::empty() };
            let file = beneath::open(directory.as_fd(), name, flags, mode)?;
            Ok(File::from_std(file.into(), path))
        })
    }

    /// Opens a file for reading.
    pub fn file(&self, name: impl AsRef<Path>) -> Operation<File> {
        self.open_file("open", name, READ)
    }

    /// Creates a file, or truncates an existing one, for writing.
    pub fn create(&self, name: impl AsRef<Path>) -> Operation<File> {
        self.open_file("create", name, WRITE | OFlags::TRUNC)
    }

    /// Creates a file for writing. Fails if it exists.
    pub fn create_new(&self, name: impl AsRef<Path>) -> Operation<File> {
        self.open_file("create", name, WRITE | OFlags::EXCL)
    }

    /// Opens a subdirectory with the same protection. The empty name is the directory itself.
    pub fn directory(&self, name: impl AsRef<Path>) -> Operation<Directory> {
        let path: Arc<Path> = self.path.join(name.as_ref()).into();
        self.on("open directory", name, |directory, name| {
            let opened = beneath::open(directory.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            Ok(Directory { directory: Arc::new(opened), path })
        })
    }

    /// Reads a whole file.
    pub fn read(&self, name: impl AsRef<Path>) -> Operation<Vec<u8>> {
        self.on("read", name, read)
    }

    /// Reads a whole file as text.
    pub fn read_to_string(&self, name: impl AsRef<Path>) -> Operation<String> {
        self.on("read", name, |directory, name| reading::into_text(read(directory, name)?))
    }

    /// Writes a whole file, creating it if necessary.
    pub fn write(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]> + Send + 'static) -> Operation<()> {
        self.on("write", name, move |directory, name| {
            let file = beneath::open(directory.as_fd(), name, WRITE | OFlags::TRUNC, FILE_MODE)?;
            fs::File::from(file).write_all(contents.as_ref())
        })
    }

    /// Returns the metadata of a file, following a symbolic link.
    pub fn metadata(&self, name: impl AsRef<Path>) -> Operation<Metadata> {
        #[cfg(target_os = "linux")]
        const LOOK: OFlags = OFlags::PATH;
        #[cfg(not(target_os = "linux"))]
        const LOOK: OFlags = READ;
        self.on("get metadata of", name, |directory, name| {
            fs::File::from(beneath::open(directory.as_fd(), name, LOOK, Mode::empty())?).metadata()
        })
    }

    /// Returns the names of a directory's entries, in no particular order. The empty name is the directory itself.
    pub fn names(&self, name: impl AsRef<Path>) -> Operation<Vec<OsString>> {
        self.on("list", name, |directory, name| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let listed = Dir::new(beneath::open(directory.as_fd(), name, flags, Mode::empty())?)?;
            let mut names = Vec::new();
            for entry in listed {
                match entry?.file_name().to_bytes() {
                    b"." | b".." => {}
                    name => names.push(OsStr::from_bytes(name).to_owned()),
                }
            }
            Ok(names)
        })
    }

    /// Creates a directory. Its parent must exist.
    pub fn create_dir(&self, name: impl AsRef<Path>) -> Operation<()> {
        self.on("create directory", name, |directory, name| {
            let (parent, last) = beneath::open_parent(directory.as_fd(), name)?;
            Ok(rustix::fs::mkdirat(parent, last, Mode::RWXU | Mode::RWXG | Mode::RWXO)?)
        })
    }

    /// Removes a file. If it is a symbolic link, removes the link itself.
    pub fn remove_file(&self, name: impl AsRef<Path>) -> Operation<()> {
        self.on("remove", name, |directory, name| {
            let (parent, last) = beneath::open_parent(directory.as_fd(), name)?;
            Ok(rustix::fs::unlinkat(parent, last, AtFlags::empty())?)
        })
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: impl AsRef<Path>) -> Operation<()> {
        self.on("remove directory", name, |directory, name| {
            let (parent, last) = beneath::open_parent(directory.as_fd(), name)?;
            Ok(rustix::fs::unlinkat(parent, last, AtFlags::REMOVEDIR)?)
        })
    }
}

fn read(directory: &OwnedFd, name: &Path) -> io::Result<Vec<u8>> {
    reading::to_end(&beneath::open(directory.as_fd(), name, READ, Mode::empty())?.into())
}
