//! Opens files below a directory, and nowhere else.
//!
//! A name without `..` may still lead out of the directory through a symbolic link, even one created during the lookup.
//! Where possible, the kernel therefore does the lookup: `openat2` with `RESOLVE_BENEATH` does not leave the directory
//! where it starts, and `RESOLVE_NO_MAGICLINKS` refuses the links in `/proc` that lead to files of other processes.
//! Elsewhere the name is walked segment by segment without following any link.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How often `openat2` is tried. It fails with `EAGAIN` if directories are renamed while it checks that it has not left
/// the root.
#[cfg(target_os = "linux")]
const ATTEMPTS: usize = 8;

/// The error for a name that the system would accept but that leads out of the directory.
fn leads_out() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name leads out of the directory")
}

/// Returns the name if it contains no component that leads up.
fn checked(name: &Path) -> io::Result<&Path> {
    let down = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    if !name.components().all(down) {
        return Err(leads_out());
    }
    // The system would report an invalid argument. Report it like any other missing name, because it may come from a
    // client's request.
    if name.as_os_str().as_bytes().contains(&0) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "a file name cannot contain a null byte"));
    }
    Ok(if name.as_os_str().is_empty() { Path::new(".") } else { name })
}

/// Opens `name` below `directory`. `mode` applies to created files.
pub(super) fn open(directory: BorrowedFd<'_>, name: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let name = checked(name)?;
    let flags = flags | OFlags::CLOEXEC;
    #[cfg(target_os = "linux")]
    match beneath(directory, name, flags, mode) {
        // Linux before 5.6, or a sandbox that blocks the call. If the call works for the root itself, the error is
        // about the name.
        Err(Errno::NOSYS | Errno::PERM) if !is_supported(directory) => {}
        opened => return opened.map_err(describe),
    }
    walk(directory, name, flags, mode).map_err(describe)
}

/// Opens the parent directory of `name`. Returns it with the last segment of the name.
pub(super) fn open_parent<'a>(directory: BorrowedFd<'_>, name: &'a Path) -> io::Result<(OwnedFd, &'a Path)> {
    let name = checked(name)?;
    let last = name.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name is empty"))?;
    let parent = name.parent().unwrap_or(Path::new(""));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Ok((open(directory, parent, flags, Mode::empty())?, Path::new(last)))
}

#[cfg(target_os = "linux")]
fn beneath(directory: BorrowedFd<'_>, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let attempt = || rustix::fs::openat2(directory, name, flags, mode, resolve);
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    attempt()
}

/// Returns whether `openat2` works here, to distinguish a name that may not be opened from a call that is not
/// permitted.
#[cfg(target_os = "linux")]
fn is_supported(directory: BorrowedFd<'_>) -> bool {
    beneath(directory, Path::new("."), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// Opens segment by segment, without following links.
fn walk(directory: BorrowedFd<'_>, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut segments = name.components().peekable();
    let mut at: Option<OwnedFd> = None;
    while let Some(segment) = segments.next() {
        let from = at.as_ref().map_or(directory, |at| at.as_fd());
        if segments.peek().is_none() {
            let opened = rustix::fs::openat(from, segment.as_os_str(), flags | OFlags::NOFOLLOW, mode)?;
            return refuse_link(opened, flags);
        }
        let down = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = Some(rustix::fs::openat(from, segment.as_os_str(), down, Mode::empty())?);
    }
    rustix::fs::openat(directory, ".", flags, mode)
}

/// Refuses a symbolic link. With `O_PATH` and `O_NOFOLLOW`, Linux opens the link itself instead of failing.
fn refuse_link(opened: OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    #[cfg(target_os = "linux")]
    if flags.contains(OFlags::PATH)
        && rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).is_symlink()
    {
        return Err(Errno::LOOP);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = flags;
    Ok(opened)
}

/// Describes errors about links, which would not make sense to callers who do not know these flags.
fn describe(error: Errno) -> io::Error {
    match error {
        Errno::XDEV => leads_out(),
        Errno::NAMETOOLONG => io::Error::new(io::ErrorKind::NotFound, "the name is too long for a file"),
        // Some systems return `EMLINK` for a link that is not followed.
        Errno::LOOP | Errno::MLINK => {
            io::Error::new(io::ErrorKind::NotFound, "the name contains a link that is not followed")
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A directory `in` with links to various targets, next to a file `out`.
    fn tree(test: &str) -> (PathBuf, File) {
        let tree = std::env::temp_dir().join(format!("pelton-beneath-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir_all(tree.join("in/sub/deep")).unwrap();
        fs::write(tree.join("out"), "out").unwrap();
        fs::write(tree.join("in/file"), "file").unwrap();
        fs::write(tree.join("in/sub/file"), "sub").unwrap();
        for (to, from) in [
            ("../out", "leads-out"),
            ("..", "up"),
            ("loop", "loop"),
            ("/proc/self/cwd", "magic"),
            ("/etc", "absolute"),
            ("sub/file", "stays-in"),
            ("sub", "sub-too"),
            ("../file", "sub/up-and-in"),
        ] {
            symlink(to, tree.join("in").join(from)).unwrap();
        }
        let root = File::open(tree.join("in")).unwrap();
        (tree, root)
    }

    fn read(opened: io::Result<OwnedFd>) -> Result<String, io::ErrorKind> {
        opened.map_err(|error| error.kind()).map(|file| io::read_to_string(File::from(file)).unwrap())
    }

    /// More than the 255 bytes of the longest name, but less than the longest path.
    const TOO_LONG: &str = match std::str::from_utf8(&[b'x'; 300]) {
        Ok(name) => name,
        Err(_) => unreachable!(),
    };

    const OUT: [&str; 14] = [
        "leads-out",
        "up/out",
        "up/in/file",
        "loop",
        "magic/Cargo.toml",
        "absolute/hostname",
        "missing",
        "..",
        "../out",
        "sub/../../out",
        "sub/../file",
        "/etc/hostname",
        "sub/fi\0le",
        TOO_LONG,
    ];

    #[test]
    fn files_outside_are_not_opened_and_links_inside_are_followed_on_linux() {
        let (tree, root) = tree("kernel");
        let name = |name: &str| read(open(root.as_fd(), Path::new(name), OFlags::RDONLY, Mode::empty()));
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("./sub//file"), Ok("sub".to_owned()));
        for out in OUT {
            assert_eq!(name(out), Err(io::ErrorKind::NotFound), "{out}");
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
        let (tree, root) = tree("walk");
        let name = |name: &str| {
            let walked = checked(Path::new(name))
                .and_then(|name| walk(root.as_fd(), name, OFlags::RDONLY, Mode::empty()).map_err(describe));
            read(walked)
        };
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("sub/file"), Ok("sub".to_owned()));
        for link in OUT.iter().chain(&["stays-in", "sub-too/file", "sub/up-and-in"]) {
            // A link in place of a directory is not a directory.
            let kinds = [Err(io::ErrorKind::NotFound), Err(io::ErrorKind::NotADirectory)];
            assert!(kinds.contains(&name(link)), "{link}: {:?}", name(link));
            // `metadata` does not reveal the link either.
            #[cfg(target_os = "linux")]
            if let Ok(name) = checked(Path::new(link)) {
                assert!(walk(root.as_fd(), name, OFlags::PATH, Mode::empty()).is_err(), "{link}");
            }
        }
        #[cfg(target_os = "linux")]
        assert!(walk(root.as_fd(), Path::new("sub/file"), OFlags::PATH, Mode::empty()).is_ok());
        fs::remove_dir_all(tree).unwrap();
    }
}
