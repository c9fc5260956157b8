//! An emulation of the kernel queue for tests on Linux: like it, this says which file something happened to, and no names.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What happened to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Happened {
    pub(super) deleted: bool,
    pub(super) moved: bool,
    pub(super) written: bool,
    pub(super) attributes: bool,
}

type Identity = (u64, u64);

/// The file that a descriptor refers to, if it is open.
fn identity(file: RawFd) -> Option<Identity> {
    let metadata = std::fs::metadata(format!("/proc/self/fd/{file}")).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

pub(super) struct Queue {
    inotify: OwnedFd,
    files: HashMap<i32, (Identity, Vec<RawFd>)>,
}

impl Queue {
    pub(super) fn new() -> io::Result<Queue> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Queue { inotify, files: HashMap::new() })
    }

    pub(super) fn open(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(at, path, flags, Mode::empty()) {
            Err(Errno::LOOP) => Err(io::ErrorKind::Unsupported.into()),
            outcome => Ok(outcome?),
        }
    }

    pub(super) fn add(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let watch = inotify::add_watch(&self.inotify, path, flags)?;
        let identity = identity(file.as_raw_fd()).unwrap_or_default();
        let (_, files) = self.files.entry(watch).or_insert_with(|| (identity, Vec::new()));
        files.retain(|other| *other != file.as_raw_fd());
        files.push(file.as_raw_fd());
        Ok(())
    }

    pub(super) fn read(&mut self, happened: &mut Vec<(RawFd, Happened)>) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => return Ok(true),
                Err(error) => return Err(error.into()),
            };
            let events = event.events();
            let entries = ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
            let own = event.file_name().is_none();
            // The link count of a file that is deleted while it is open changes; the number of names decides.
            let what = Happened {
                deleted: events.contains(ReadFlags::DELETE_SELF),
                moved: events.contains(ReadFlags::MOVE_SELF),
                written: events.intersects(entries) || own && events.contains(ReadFlags::MODIFY),
                attributes: own && events.contains(ReadFlags::ATTRIB),
            };
            if what != Happened::default() {
                let Some((expected, files)) = self.files.get(&event.wd()) else { continue };
                // The kernel forgets a file that is closed. Its number may belong to another one.
                let open = files.iter().filter(|file| identity(**file) == Some(*expected));
                happened.extend(open.map(|file| (*file, what)));
            }
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
