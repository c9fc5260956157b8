//! Opens files below a directory, and nothing else.
//!
//! Names are validated, but a file may be a symbolic link, or become one during the check. Where possible the kernel handles
//! that: `openat2` does not leave its starting directory, wherever links point, and does not follow the magic links in `/proc`.
//! Elsewhere the name is walked segment by segment, and no link is followed.
//!
//! Only regular files and directories are ever opened. Opening a FIFO unblocks a writer that waits for a reader, and closing it
//! kills that writer; opening a device may start it. So the type is checked first. On Linux, `O_PATH` gets hold of the inode
//! without opening it, and `/proc` opens that same inode. Elsewhere the type is checked by name, and again once the file is
//! open.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The flags for opening a file. If it was replaced by a FIFO or a terminal since the check, opening must not block or acquire
/// a controlling terminal.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The flags for looking up a name. `openat2` accepts no others with `O_PATH`.
#[cfg(target_os = "linux")]
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// `openat2` fails if a directory is renamed while it resolves a name; walking fails if the file was replaced after the check.
const ATTEMPTS: usize = 8;

/// A directory to open files in.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

/// A regular file or a directory that was looked up.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) metadata: Metadata,
    access: Access,
}

/// A descriptor of something that was looked up.
#[derive(Debug)]
enum Access {
    /// An `O_PATH` descriptor, which cannot be read.
    #[cfg(target_os = "linux")]
    Look(File),
    Read(File),
}

impl Directory {
    pub(super) fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Looks up a name; an empty one is the directory itself. Fails with `ENOENT` for anything but regular files and
    /// directories.
    pub(super) fn look(&self, name: &[u8]) -> Result<Seen, Errno> {
        #[cfg(target_os = "linux")]
        {
            match self.beneath(name, LOOK) {
                // The kernel is older than Linux 5.6, or a sandbox blocks the call.
                Err(Errno::NOSYS | Errno::PERM) => {}
                looked => {
                    let path = File::from(looked?);
                    let metadata = metadata(&path)?;
                    return Seen::new(metadata, Access::Look(path));
                }
            }
        }
        self.walk(name)
    }

    /// Opens for reading what was looked up under this name.
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables, reason = "it is open already"))]
    pub(super) fn read(&self, name: &[u8], seen: Seen) -> Result<File, Errno> {
        match seen.access {
            Access::Read(file) => Ok(file),
            #[cfg(target_os = "linux")]
            Access::Look(path) => match rustix::fs::open(in_proc(&path), READ, Mode::empty()) {
                // There is no `/proc` here.
                Err(Errno::NOENT) => self.read_again(name, &seen.metadata),
                opened => opened.map(File::from),
            },
        }
    }

    /// Whether it can be opened for reading.
    pub(super) fn may_read(&self, name: &[u8], seen: Seen) -> bool {
        #[cfg(target_os = "linux")]
        if let Access::Look(path) = &seen.access {
            use rustix::fs::{Access, CWD, accessat};
            match accessat(CWD, in_proc(path), Access::READ_OK, AtFlags::EACCESS) {
                // There is no `/proc`, or no such call.
                Err(Errno::NOENT | Errno::NOSYS | Errno::PERM) => {}
                answer => return answer.is_ok(),
            }
        }
        self.read(name, seen).is_ok()
    }

    /// Opens by name what was looked up, and fails if it was replaced.
    #[cfg(target_os = "linux")]
    fn read_again(&self, name: &[u8], looked_at: &Metadata) -> Result<File, Errno> {
        let file = File::from(self.beneath(name, READ)?);
        if is_same(&metadata(&file)?, looked_at.dev(), looked_at.ino()) { Ok(file) } else { Err(Errno::AGAIN) }
    }

    #[cfg(target_os = "linux")]
    fn beneath(&self, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        use rustix::fs::ResolveFlags;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let name = tidy(name);
        for _ in 1..ATTEMPTS {
            match rustix::fs::openat2(&self.0, name, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        rustix::fs::openat2(&self.0, name, flags, Mode::empty(), resolve)
    }

    /// Walks the name segment by segment without following links.
    fn walk(&self, name: &[u8]) -> Result<Seen, Errno> {
        let name = tidy(name);
        let (directories, last) = match name.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&name[..at], &name[at + 1..]),
            None => (&[][..], name),
        };
        let mut at = None;
        for segment in directories.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()) {
            let from = at.as_ref().unwrap_or(&self.0);
            let flags = READ | OFlags::NOFOLLOW | OFlags::DIRECTORY;
            at = Some(rustix::fs::openat(from, segment, flags, Mode::empty())?);
        }
        let directory = at.as_ref().unwrap_or(&self.0);
        for _ in 0..ATTEMPTS {
            if let Some(seen) = look_and_open(directory, last)? {
                return Ok(seen);
            }
        }
        Err(Errno::AGAIN)
    }
}

/// Opens a regular file or a directory, not following links. Returns `None` if it was replaced during the check.
fn look_and_open(directory: &OwnedFd, name: &[u8]) -> Result<Option<Seen>, Errno> {
    let looked_at = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(looked_at.st_mode) {
        FileType::RegularFile | FileType::Directory => {}
        FileType::Symlink => return Err(Errno::LOOP),
        _ => return Err(Errno::NOENT),
    }
    let file = File::from(rustix::fs::openat(directory, name, READ | OFlags::NOFOLLOW, Mode::empty())?);
    let metadata = metadata(&file)?;
    // The types of these fields differ between systems.
    #[allow(clippy::unnecessary_cast, reason = "not on every system")]
    let same = is_same(&metadata, looked_at.st_dev as u64, looked_at.st_ino as u64);
    if same { Seen::new(metadata, Access::Read(file)).map(Some) } else { Ok(None) }
}

impl Seen {
    fn new(metadata: Metadata, access: Access) -> Result<Seen, Errno> {
        if metadata.is_file() || metadata.is_dir() { Ok(Seen { metadata, access }) } else { Err(Errno::NOENT) }
    }
}

fn metadata(file: &File) -> Result<Metadata, Errno> {
    file.metadata().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn is_same(metadata: &Metadata, device: u64, inode: u64) -> bool {
    metadata.dev() == device && metadata.ino() == inode
}

/// The path to the inode that a descriptor refers to. `thread-self` works even if the main thread has ended.
#[cfg(target_os = "linux")]
fn in_proc(path: &File) -> String {
    format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(path))
}

/// The name for the kernel: without a trailing slash, and never empty.
fn tidy(name: &[u8]) -> &[u8] {
    match name.strip_suffix(b"/").unwrap_or(name) {
        [] => b".",
        name => name,
    }
}

/// The status for an error. Files outside the root and special files look like missing ones.
pub(super) fn status_of(error: Errno) -> u16 {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::XDEV | Errno::LOOP | Errno::NXIO | Errno::NODEV => {
            404
        }
        // Some systems return these for a link that must not be followed and for an invalid name.
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

    /// A directory `in` with links to various places, next to a file `out`.
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

    fn read(directory: &Directory, name: &str, seen: Result<Seen, Errno>) -> Result<String, u16> {
        let file = seen.and_then(|seen| directory.read(name.as_bytes(), seen));
        file.map_err(status_of).map(|file| io::read_to_string(file).unwrap())
    }

    const OUT: [&str; 8] =
        ["leads-out", "absolute", "absolute-back-in", "up/out", "up/in/file", "loop", "magic/Cargo.toml", "missing"];

    #[test]
    fn files_outside_are_not_opened_and_links_inside_are_followed_on_linux() {
        let tree = tree("kernel");
        let root = Directory::open(&tree.join("in")).unwrap();
        let name = |name: &str| read(&root, name, root.look(name.as_bytes()));
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("sub/file"), Ok("sub".to_owned()));
        assert_eq!(name("file/x"), Err(404));
        assert!(root.look(b"").unwrap().metadata.is_dir());
        assert!(root.look(b"sub/").unwrap().metadata.is_dir());
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
    fn walking_follows_no_links() {
        let tree = tree("walk");
        let root = Directory::open(&tree.join("in")).unwrap();
        let name = |name: &str| read(&root, name, root.walk(name.as_bytes()));
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("sub/file"), Ok("sub".to_owned()));
        assert!(root.walk(b"sub/deep").unwrap().metadata.is_dir());
        assert!(root.walk(b".").unwrap().metadata.is_dir());
        for link in OUT.iter().chain(&["stays-in", "sub-too/file", "sub/up-and-in"]) {
            assert_eq!(name(link), Err(404), "{link}");
        }
        fs::remove_dir_all(tree).unwrap();
    }

    #[test]
    fn status_reveals_nothing_outside_the_root() {
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
        assert!(Directory::open(&tree.join("out")).is_err());
        assert!(Directory::open(&tree.join("missing")).is_err());
        fs::remove_dir_all(tree).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn special_files_are_not_opened() {
        use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
        let tree = tree("special");
        rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("in/fifo"), Mode::RWXU).unwrap();
        symlink("fifo", tree.join("in/to-fifo")).unwrap();
        let root = Directory::open(&tree.join("in")).unwrap();
        let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&opened, tree.join("in/fifo"), WatchFlags::OPEN).unwrap();
        let is_opened = || rustix::io::read(&opened, &mut [0; 1000]) != Err(Errno::AGAIN);
        for name in ["fifo", "to-fifo"] {
            assert_eq!(root.look(name.as_bytes()).map(|seen| seen.metadata.mode()), Err(Errno::NOENT), "{name}");
            assert!(root.walk(name.as_bytes()).is_err(), "{name}");
            assert!(!is_opened(), "{name}");
        }
        File::options().read(true).write(true).open(tree.join("in/fifo")).unwrap();
        assert!(is_opened(), "the watch reports opening");
        fs::remove_dir_all(tree).unwrap();
    }

    /// Simulates a system without `/proc`.
    #[cfg(target_os = "linux")]
    #[test]
    fn replaced_file_is_not_read() {
        let tree = tree("replaced");
        let root = Directory::open(&tree.join("in")).unwrap();
        let seen = root.look(b"file").unwrap();
        let again = root.read_again(b"file", &seen.metadata).unwrap();
        assert_eq!(io::read_to_string(again).unwrap(), "file");
        fs::write(tree.join("in/new"), "new").unwrap();
        fs::rename(tree.join("in/new"), tree.join("in/file")).unwrap();
        assert_eq!(root.read_again(b"file", &seen.metadata).map(|_| ()), Err(Errno::AGAIN));
        assert_eq!(read(&root, "file", Ok(seen)), Ok("file".to_owned()), "the original inode is read");
        fs::remove_dir_all(tree).unwrap();
    }
}
