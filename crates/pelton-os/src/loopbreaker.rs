//! The loopbreaker: how another thread gets a sleeping loop to look up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use crate::descriptor::replace;
use crate::fork;
use crate::poller::Trigger;

/// A descriptor that becomes readable when somebody calls [`wake`](Loopbreaker::wake): an `eventfd`, or a pipe where the
/// system has none.
///
/// It also is a [`std::task::Wake`], so an engine hands it out as an ordinary [`std::task::Waker`].
pub struct Loopbreaker {
    read: OwnedFd,
    /// `None`: the eventfd is both ends.
    write: Option<OwnedFd>,
    /// The process that made it, as a number of forks: a child must not wake its parent.
    forks: AtomicU64,
}

impl Loopbreaker {
    /// Opens an eventfd, or a pipe if there is none to be had.
    pub fn new() -> io::Result<Loopbreaker> {
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
        match eventfd() {
            Ok(read) => return Ok(Loopbreaker { read, write: None, forks: AtomicU64::new(fork::count()) }),
            // No descriptors left: a pipe would need two.
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

    /// How a poller should report it. A pipe that is never read fills up in the end, and a write that fails for that may
    /// be no event, and wake nobody; a counter can be left unread.
    pub fn trigger(&self) -> Trigger {
        if self.write.is_none() { Trigger::Edge } else { Trigger::Level }
    }

    /// Makes the descriptor readable. Does nothing in a forked child, which shares it with the loop of its parent.
    pub fn wake(&self) {
        if self.forks.load(Ordering::Relaxed) != fork::count() {
            return;
        }
        // An eventfd takes exactly eight bytes; to a pipe they are as good as one. A full pipe (or counter) means that
        // a wake-up is pending already, so that error is the goal reached. There is no other: both ends are open.
        let _ = rustix::io::write(self.write.as_ref().unwrap_or(&self.read), &1u64.to_ne_bytes());
    }

    /// Reads it empty, so that a level-triggered poller falls silent.
    pub fn drain(&self) {
        let mut bytes = [0; 512];
        // A short read has emptied it; an error is EAGAIN, empty already.
        while rustix::io::read(&self.read, &mut bytes) == Ok(bytes.len()) {}
    }

    /// In a forked child: becomes a loopbreaker of its own, under the same descriptor numbers, for everybody who has it.
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
