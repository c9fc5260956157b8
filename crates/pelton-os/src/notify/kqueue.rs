//! A kernel queue for changes of files (`EVFILT_VNODE`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::kqueue::{Event, EventFilter, EventFlags, VnodeEvents, kevent, kqueue};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

/// What happened to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Happened {
    pub(super) deleted: bool,
    pub(super) moved: bool,
    pub(super) written: bool,
    pub(super) attributes: bool,
}

pub(super) struct Queue(OwnedFd);

impl Queue {
    pub(super) fn new() -> io::Result<Queue> {
        let queue = kqueue()?;
        fcntl_setfd(&queue, FdFlags::CLOEXEC)?;
        Ok(Queue(queue))
    }

    /// Opens a file to be added, relative to a directory. Fails with `Unsupported` for a symbolic link on systems that cannot open one.
    pub(super) fn open(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
        // Does not keep the volume from being unmounted, and O_SYMLINK opens the link itself.
        #[cfg(any(target_os = "macos", target_os = "ios"))]
        let flags = OFlags::from_bits_retain((libc::O_EVTONLY | libc::O_SYMLINK) as u32);
        #[cfg(not(any(target_os = "macos", target_os = "ios")))]
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(at, path, flags | OFlags::CLOEXEC, Mode::empty()) {
            // What systems say of a symbolic link.
            Err(Errno::LOOP | Errno::MLINK) => Err(io::ErrorKind::Unsupported.into()),
            outcome => Ok(outcome?),
        }
    }

    /// Reports what happens to a file from now on, until it is closed.
    pub(super) fn add(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let vnode = file.as_raw_fd();
        let flags = VnodeEvents::DELETE
            | VnodeEvents::RENAME
            | VnodeEvents::REVOKE
            | VnodeEvents::WRITE
            | VnodeEvents::EXTEND
            | VnodeEvents::ATTRIBUTES;
        let change =
            Event::new(EventFilter::Vnode { vnode, flags }, EventFlags::ADD | EventFlags::CLEAR, std::ptr::null_mut());
        // SAFETY: the descriptor is open, as the borrow shows. The kernel drops the filter when it is closed.
        unsafe { kevent(&self.0, &[change], &mut Vec::<Event>::new(), Some(Duration::ZERO)) }?;
        Ok(())
    }

    /// Appends what has happened. Returns whether this was all.
    pub(super) fn read(&mut self, happened: &mut Vec<(RawFd, Happened)>) -> io::Result<bool> {
        let mut events = Vec::with_capacity(256);
        // SAFETY: there are no changes, so no descriptor is referred to.
        let count = unsafe { kevent(&self.0, &[], rustix::buffer::spare_capacity(&mut events), Some(Duration::ZERO)) }?;
        for event in &events {
            let EventFilter::Vnode { vnode, flags } = event.filter() else { continue };
            let what = Happened {
                deleted: flags.intersects(VnodeEvents::DELETE | VnodeEvents::REVOKE),
                moved: flags.contains(VnodeEvents::RENAME),
                written: flags.intersects(VnodeEvents::WRITE | VnodeEvents::EXTEND),
                attributes: flags.contains(VnodeEvents::ATTRIBUTES),
            };
            happened.push((vnode, what));
        }
        Ok(count < 256)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
