//! The loopbreaker, which wakes a sleeping loop from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use crate::descriptor::replace;
use crate::fork;
use crate::poller::Trigger;

/// A descriptor that becomes readable when [`wake`](Loopbreaker::wake) is called: an `eventfd`, or a pipe on systems without
/// one.
///
/// It implements [`std::task::Wake`], so that an engine can hand it out as an ordinary [`std::task::Waker`].
pub struct Loopbreaker {
    read: OwnedFd,
    /// `None` for an eventfd, which has one descriptor for both.
    write: Option<OwnedFd>,
    /// The fork count of the process that created it: a child must not wake its parent.
    forks: AtomicU64,
}

impl Loopbreaker {
    /// Opens an eventfd, or a pipe if the system has no eventfd.
    pub fn new() -> io::Result<Loopbreaker> {
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
        match eventfd() {
            Ok(read) => return Ok(Loopbreaker { read, write: None, forks: AtomicU64::new(fork::count()) }),
            // Out of descriptors. A pipe would need two.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => return Err(error),
            Err(error) => tracing::debug!(%error, "no eventfd; the loopbreaker is a pipe"),
        }
        Loopbreaker::pipe()
    }

    /// Opens a pipe.
    pub fn pipe() -> io::Result<Loopbreaker> {
        let (read, write) = pipe()?;
        Ok(Loopbreaker { read, write: Some(write), forks: AtomicU64::new(fork::count()) })
    }

    /// Returns how a poller should report it. An eventfd can be left unread. A pipe cannot: it would fill up, and a write to a
    /// full pipe may not trigger an edge.
    pub fn trigger(&self) -> Trigger {
        if self.write.is_none() { Trigger::Edge } else { Trigger::Level }
    }

    /// Makes the descriptor readable. Does nothing in a forked child, which shares the descriptor with its parent's loop.
    pub fn wake(&self) {
        if self.forks.load(Ordering::Relaxed) != fork::count() {
            return;
        }
        // An eventfd needs exactly eight bytes, and a pipe takes them too. If the pipe or the counter is full, a wake-up is
        // already pending. No other error is possible while both ends are open.
        let _ = rustix::io::write(self.write.as_ref().unwrap_or(&self.read), &1u64.to_ne_bytes());
    }

    /// Reads everything, so that a level-triggered poller stops reporting it.
    pub fn drain(&self) {
        let mut bytes = [0; 512];
        // A short read has emptied it. The only error is EAGAIN: it was empty.
        while rustix::io::read(&self.read, &mut bytes) == Ok(bytes.len()) {}
    }

    /// In a forked child: opens a new descriptor under the same number, for every holder of this loopbreaker.
    pub fn renew(&self) -> io::Result<()> {
        match &self.write {
            #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
            None => replace(&self.read, eventfd()?)?,
            #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
            None => unreachable!("without eventfd there are always two ends"),
            Some(write) => {
                let (fresh_read, fresh_write) = pipe()?;
                replace(&self.read, fresh_read)?;
                replace(write, fresh_write)?;
            }
        }
        self.forks.store(fork::count(), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn eventfd() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

#[cfg(not(target_vendor = "apple"))]
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::pipe::{PipeFlags, pipe_with};
    Ok(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Apple's systems have no `pipe2`.
#[cfg(target_vendor = "apple")]
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = rustix::pipe::pipe()?;
    for end in [&ends.0, &ends.1] {
        rustix::io::ioctl_fioclex(end)?;
        rustix::io::ioctl_fionbio(end, true)?;
    }
    Ok(ends)
}

impl AsFd for Loopbreaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

impl Wake for Loopbreaker {
    fn wake(self: Arc<Self>) {
        Loopbreaker::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Loopbreaker::wake(self);
    }
}
