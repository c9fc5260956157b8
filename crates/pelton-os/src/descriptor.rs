//! Borrowing and replacing descriptors by number.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Borrows the descriptor with this number for one system call.
///
/// Whoever watches a descriptor promises to unwatch it before closing it. The reactor does not rely on the promise: what
/// it does with a watched number is to name it to a poller, and a poller's answer to a number that is closed by now, or
/// taken by another file, is an error or an event nobody hears of. It never reads, writes or closes one.
pub(crate) fn borrow(fd: &RawFd) -> BorrowedFd<'_> {
    debug_assert!(*fd >= 0);
    // SAFETY: -1 is excluded by every caller having it from an `AsFd`; a number that is not open any more makes the call
    // it is lent to fail with EBADF, which touches no memory.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

/// Puts `new` in the place of `old`, under `old`'s number, so that whoever remembers the number now means the new one.
pub(crate) fn replace(old: &OwnedFd, new: OwnedFd) -> io::Result<()> {
    // SAFETY: `old` stays open throughout and keeps owning its number; the second owner is never dropped. What `dup2`
    // needs unique access for is to not pull a file from under a call in flight on another thread; the callers are in a
    // forked child, which has no other thread, or own the only user of the number.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old.as_raw_fd()) });
    rustix::io::dup2(&new, &mut old)?;
    Ok(rustix::io::fcntl_setfd(&*old, rustix::io::FdFlags::CLOEXEC)?)
}
