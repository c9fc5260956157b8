//! Making a descriptor non-blocking without disturbing others who use it.
//!
//! `O_NONBLOCK` belongs to the *open file description*, which duplicates of a descriptor share, also in other processes: the
//! shell, and everything it has started, share the description of their terminal. A program that sets the flag there and exits
//! leaves a terminal on which reads of other programs fail. So:
//!
//! - A pipe or a terminal is opened once more where that is possible, through `/proc/self/fd` or the terminal's name. That gives
//!   a description of its own, and nobody else sees the flag.
//! - Otherwise the flag is set, and cleared again when the stream is closed, dropped or detached.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::descriptor::Nature;
use crate::{fault, fork};

/// A flag that was set on a description that others may share.
#[derive(Debug)]
pub(super) struct Borrowed {
    /// The fork count of the process that has set it: a forked child must not clear it for its parent.
    forks: u64,
}

impl Borrowed {
    /// Clears the flag again.
    pub(super) fn restore(self, fd: BorrowedFd<'_>) {
        if self.forks == fork::count() {
            set_blocking_if_open(fd);
        }
    }
}

/// The outcome of making a descriptor non-blocking.
pub(super) enum NonBlocking {
    /// It was already non-blocking.
    Already,
    /// It was opened again, as a description of its own.
    Reopened(OwnedFd),
    /// The flag was set.
    Set(Borrowed),
}

/// Makes `fd` non-blocking, as politely as possible.
pub(super) fn make(fd: BorrowedFd<'_>, nature: Nature, flags: OFlags) -> io::Result<NonBlocking> {
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(NonBlocking::Already);
    }
    if let Some(own) = reopen(fd, nature, flags) {
        return Ok(NonBlocking::Reopened(own));
    }
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    Ok(NonBlocking::Set(Borrowed { forks: fork::count() }))
}

/// Clears the flag. A descriptor that its owner has closed without a word has no flag to clear.
pub(super) fn set_blocking_if_open(fd: BorrowedFd<'_>) {
    let Ok(flags) = fcntl_getfl(fd) else { return };
    if let Err(error) = fcntl_setfl(fd, flags.difference(OFlags::NONBLOCK)) {
        fault::report_here("stream", &format_args!("could not make a descriptor blocking again: {error}"));
    }
}

/// Opens the file of `fd` once more. Returns `None` if that is not possible, or would not be the same stream.
fn reopen(fd: BorrowedFd<'_>, nature: Nature, flags: OFlags) -> Option<OwnedFd> {
    if !is_reopenable(fd, nature) {
        return None;
    }
    let mode = flags & (OFlags::RWMODE | KEPT) | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    // It fails without /proc, and for a file of another user.
    rustix::fs::open(path(fd)?, mode, rustix::fs::Mode::empty()).ok()
}

/// Flags that a reopened descriptor keeps: a pipe in packet mode has `O_DIRECT`.
#[cfg(any(target_os = "linux", target_os = "android"))]
const KEPT: OFlags = OFlags::APPEND.union(OFlags::DIRECT);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const KEPT: OFlags = OFlags::APPEND;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn path(fd: BorrowedFd<'_>) -> Option<String> {
    use std::os::fd::AsRawFd;

    Some(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn path(fd: BorrowedFd<'_>) -> Option<std::ffi::CString> {
    crate::descriptor::terminal_name(fd)
}

/// Returns whether opening it again gives the same stream.
///
/// Not the master of a pseudo-terminal: that opens a new pseudo-terminal. Nor other devices, of which each opening may have
/// state of its own. Nor a FIFO with a name: a reader that was opened while there is no writer is not told that the last one has
/// gone.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_reopenable(fd: BorrowedFd<'_>, nature: Nature) -> bool {
    /// The file system of pipes without a name.
    const PIPEFS_MAGIC: u64 = 0x5049_5045;
    /// `/dev/ptmx`, the device of all masters.
    const MASTER: (u32, u32) = (5, 2);

    match nature {
        Nature::Pipe => rustix::fs::fstatfs(fd).is_ok_and(|system| system.f_type as u64 == PIPEFS_MAGIC),
        Nature::Terminal => rustix::fs::fstat(fd).is_ok_and(|stat| {
            let device = stat.st_rdev;
            (rustix::fs::major(device), rustix::fs::minor(device)) != MASTER
        }),
        Nature::Socket | Nature::Device => false,
    }
}

/// Elsewhere only terminals have a name to open. A master of a pseudo-terminal has none.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_reopenable(_: BorrowedFd<'_>, nature: Nature) -> bool {
    nature == Nature::Terminal
}
