//! Opening what is below a directory, and nothing else.
//!
//! Names have been checked, but what they lead to may be a symbolic link, or become one while it is looked at. So that is left to the
//! kernel where it can: `openat2` does not leave the directory it begins in, whatever the links say, and follows none of those
//! in `/proc` that lead to other processes' files. Elsewhere the name is walked segment by segment, and no link is followed at
//! all.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What a file is opened with. It must not block, as opening a FIFO would, nor make a terminal this process's own; what it is shows
/// when it is open.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// `openat2` gives up if directories are renamed while it looks whether it has left the root.
#[cfg(target_os = "linux")]
const ATTEMPTS: usize = 8;

/// A directory below which files are opened.
#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
    path: PathBuf,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Root> {
        // What is relative stays relative to where it was begun.
        let path = std::path::absolute(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Root { directory: rustix::fs::open(&path, flags, Mode::empty())?, path })
    }

    /// What is under its path now.
    pub(super) fn opened_again(&self) -> io::Result<Root> {
        Root::open(&self.path)
    }

    /// Opens what has this name, whatever it is. The root itself has none.
    pub(super) fn file(&self, name: &[u8]) -> Result<File, Errno> {
        let name = name.strip_suffix(b"/").unwrap_or(name);
        let name = if name.is_empty() { b"." } else { name };
        #[cfg(target_os = "linux")]
        {
            match self.beneath(name) {
                // It is older than Linux 5.6, or something between here and the kernel does not know the call.
                Err(Errno::NOSYS | Errno::PERM) => {}
                opened => return opened.map(File::from),
            }
        }
        self.walk(name).map(File::from)
    }

    #[cfg(target_os = "linux")]
    fn beneath(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        use rustix::fs::ResolveFlags;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 1..ATTEMPTS {
            match rustix::fs::openat2(&self.directory, name, READ, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        rustix::fs::openat2(&self.directory, name, READ, Mode::empty(), resolve)
    }

    /// Opens segment by segment, without following links.
    fn walk(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = READ | OFlags::NOFOLLOW;
        let (directories, last) = match name.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&name[..at], &name[at + 1..]),
            None => (&[][..], name),
        };
        let mut at = None;
        for segment in directories.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()) {
            let from = at.as_ref().unwrap_or(&self.directory);
            at = Some(rustix::fs::openat(from, segment, flags | OFlags::DIRECTORY, Mode::empty())?);
        }
        rustix::fs::openat(at.as_ref().unwrap_or(&self.directory), last, flags, Mode::empty())
    }
}

/// The status that tells a client why something could not be opened. It is not told what leads out, or what is not a file.
pub(super) fn status_of(error: Errno) -> u16 {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::XDEV | Errno::LOOP | Errno::NXIO | Errno::NODEV => {
            404
        }
        // What some systems say to a link that is not to be followed, and to a name that they cannot have.
        Errno::MLINK | Errno::ILSEQ | Errno::INVAL => 404,
        Errno::ACCESS | Errno::PERM => 403,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => 503,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A directory `in` with links in it that lead everywhere, next to a file `out`.
    fn tree(test: &str) -> PathBuf {
        let tree = std::env::temp_dir().join(format!("pelton-resolve-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir_all(tree.join("in/sub/deep")).unwrap();
        fs::write(tree.join("out"), "out").unwrap();
        fs::write(tree.join("in/file"), "file").unwrap();
        fs::write(tree.join("in/sub/file"), "sub").unwrap();
        symlink("../out", tree.join("in/leads-out")).unwrap();
        symlink(tree.join("out"), tree.join("in/absolute")).unwrap();
        symlink(tree.join("in/file"), tree.join("in/absolute-back-in")).unwrap();
        symlink("..", tree.join("in/up")).unwrap();
        symlink("loop", tree.join("in/loop")).unwrap();
        symlink("/proc/self/cwd", tree.join("in/magic")).unwrap();
        symlink("sub/file", tree.join("in/stays-in")).unwrap();
        symlink("sub", tree.join("in/sub-too")).unwrap();
        symlink("../file", tree.join("in/sub/up-and-in")).unwrap();
        tree
    }

    fn read(opened: Result<impl Into<File>, Errno>) -> Result<String, u16> {
        opened.map_err(status_of).map(|file| io::read_to_string(file.into()).unwrap())
    }

    const OUT: [&str; 8] =
        ["leads-out", "absolute", "absolute-back-in", "up/out", "up/in/file", "loop", "magic/Cargo.toml", "missing"];

    #[test]
    fn nothing_outside_is_opened_and_links_inside_are_followed_where_the_kernel_sees_to_it() {
        let tree = tree("kernel");
        let root = Root::open(&tree.join("in")).unwrap();
        let name = |name: &str| read(root.file(name.as_bytes()));
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("sub/file"), Ok("sub".to_owned()));
        assert_eq!(name("file/x"), Err(404));
        assert!(root.file(b"").unwrap().metadata().unwrap().is_dir());
        assert!(root.file(b"sub/").unwrap().metadata().unwrap().is_dir());
        for out in OUT {
            assert_eq!(name(out), Err(404), "{out}");
        }
        if cfg!(target_os = "linux") {
            assert_eq!(name("stays-in"), Ok("sub".to_owned()));
            assert_eq!(name("sub-too/file"), Ok("sub".to_owned()));
            assert_eq!(name("sub/up-and-in"), Ok("file".to_owned()));
        }
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn walking_follows_no_link_at_all() {
        let tree = tree("walk");
        let root = Root::open(&tree.join("in")).unwrap();
        let name = |name: &str| read(root.walk(name.as_bytes()));
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("sub/file"), Ok("sub".to_owned()));
        assert!(File::from(root.walk(b"sub/deep").unwrap()).metadata().unwrap().is_dir());
        assert!(File::from(root.walk(b".").unwrap()).metadata().unwrap().is_dir());
        for link in OUT.iter().chain(&["stays-in", "sub-too/file", "sub/up-and-in"]) {
            assert_eq!(name(link), Err(404), "{link}");
        }
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn clients_are_told_what_they_may_know() {
        for (error, expected) in [
            (Errno::NOENT, 404),
            (Errno::XDEV, 404),
            (Errno::LOOP, 404),
            (Errno::ACCESS, 403),
            (Errno::MFILE, 503),
            (Errno::IO, 500),
        ] {
            assert_eq!(status_of(error), expected, "{error}");
        }
    }

    #[test]
    fn a_root_that_is_not_a_directory_is_an_error() {
        let tree = tree("root");
        assert!(Root::open(&tree.join("out")).is_err());
        assert!(Root::open(&tree.join("missing")).is_err());
        fs::remove_dir_all(tree).unwrap();
    }
}
