//! Borrowing and replacing descriptors by number, and asking about terminals.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Borrows the descriptor with this number for one system call.
///
/// Owners of watched descriptors are told to unwatch them before closing them, but nothing here relies on that. The engine only
/// passes a watched number to a poller, and never reads, writes or closes it. If the number is closed, or belongs to another
/// file by then, the result is an error or an event with a stale token.
pub(crate) fn borrow(fd: &RawFd) -> BorrowedFd<'_> {
    debug_assert!(*fd >= 0);
    // SAFETY: the number is not -1, because every caller got it from an `AsFd`. If it is no longer open, the system call fails
    // with EBADF and touches no memory.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

/// Replaces the file under `old`'s number by `new`, so that every holder of the number uses the new file.
pub(crate) fn replace(old: &OwnedFd, new: OwnedFd) -> io::Result<()> {
    // SAFETY: `old` stays open and keeps owning its number, and the second owner is never dropped. `dup2` takes unique access
    // so that no file is replaced during a system call on another thread. The callers are in a forked child, which has no other
    // threads, or own the only user of the number.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old.as_raw_fd()) });
    rustix::io::dup2(&new, &mut old)?;
    Ok(rustix::io::fcntl_setfd(&*old, rustix::io::FdFlags::CLOEXEC)?)
}

/// Returns whether it is a terminal.
pub(crate) fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open while it is borrowed, and the call only queries it.
    unsafe { libc::isatty(fd.as_raw_fd()) == 1 }
}

/// Returns the path of a terminal, if it has one.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn terminal_name(fd: BorrowedFd<'_>) -> Option<std::ffi::CString> {
    let mut name = [0u8; 256];
    // SAFETY: the descriptor is open while it is borrowed. The call writes at most `len` bytes to a local variable of
    // that size.
    let error = unsafe { libc::ttyname_r(fd.as_raw_fd(), name.as_mut_ptr().cast(), name.len()) };
    if error != 0 {
        return None;
    }
    Some(std::ffi::CStr::from_bytes_until_nul(&name).ok()?.to_owned())
}
