//! Opening what is below a directory, and nothing else.
//!
//! A name without `..` may still lead out of the directory by a symbolic link, or by one that is put there while the name is
//! looked up. So the lookup is left to the kernel where it can do that: `openat2` with `RESOLVE_BENEATH` does not leave the directory it
//! begins in, and `RESOLVE_NO_MAGICLINKS` refuses the links in `/proc` that lead to other processes' files. Elsewhere the name is
//! walked segment by segment, and no link is followed at all.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `openat2` gives up with `EAGAIN` if directories are renamed while it checks that it has not left the root.
#[cfg(target_os = "linux")]
const ATTEMPTS: usize = 8;

/// Why a name is refused although the system has no objection.
fn leads_out() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name leads out of the directory")
}

/// The name, if it can only lead down.
fn checked(name: &Path) -> io::Result<&Path> {
    let down = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    if !name.components().all(down) {
        return Err(leads_out());
    }
    // The system would call it an invalid argument. To those who pass on what a client asks for, it is a name like any other.
    if name.as_os_str().as_bytes().contains(&0) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no file has a null byte in its name"));
    }
    Ok(if name.as_os_str().is_empty() { Path::new(".") } else { name })
}

/// Opens `name` below `directory`. `mode` is for files that are made.
pub(super) fn open(directory: BorrowedFd<'_>, name: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let name = checked(name)?;
    let flags = flags | OFlags::CLOEXEC;
    #[cfg(target_os = "linux")]
    match beneath(directory, name, flags, mode) {
        // Linux before 5.6, or a sandbox that does not know the call. (A kernel that knows it says so of the root itself, too.)
        Err(Errno::NOSYS | Errno::PERM) if !knows_the_call(directory) => {}
        opened => return opened.map_err(describe),
    }
    walk(directory, name, flags, mode).map_err(describe)
}

/// Opens the directory that `name` is in, and gives the last segment of the name.
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

/// Tells a name that may not be opened from a call that may not be made.
#[cfg(target_os = "linux")]
fn knows_the_call(directory: BorrowedFd<'_>) -> bool {
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

/// With `O_PATH`, Linux opens a link that it does not follow: the link itself, which is nothing that was asked for.
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

/// The system's errors about links say little to those who did not ask for these flags.
fn describe(error: Errno) -> io::Error {
    match error {
        Errno::XDEV => leads_out(),
        Errno::NAMETOOLONG => io::Error::new(io::ErrorKind::NotFound, "no file has a name of this length"),
        // What some systems say to a link that is not to be followed.
        Errno::LOOP | Errno::MLINK => {
            io::Error::new(io::ErrorKind::NotFound, "the name leads over a link that is not followed")
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

    /// A directory `in` with links in it that lead everywhere, next to a file `out`.
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

    /// More than the 255 bytes that a name may have, which are not as many as a path may have.
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
    fn nothing_outside_is_opened_and_links_inside_are_followed_where_the_kernel_sees_to_it() {
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
    fn walking_follows_no_link_at_all() {
        let (tree, root) = tree("walk");
        let name = |name: &str| {
            let walked = checked(Path::new(name))
                .and_then(|name| walk(root.as_fd(), name, OFlags::RDONLY, Mode::empty()).map_err(describe));
            read(walked)
        };
        assert_eq!(name("file"), Ok("file".to_owned()));
        assert_eq!(name("sub/file"), Ok("sub".to_owned()));
        for link in OUT.iter().chain(&["stays-in", "sub-too/file", "sub/up-and-in"]) {
            // A link where a directory should be is none.
            let kinds = [Err(io::ErrorKind::NotFound), Err(io::ErrorKind::NotADirectory)];
            assert!(kinds.contains(&name(link)), "{link}: {:?}", name(link));
            // A look at it gives nothing of the link, either.
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
