//! The kernel interface, as in the C headers of each system.
//!
//! The declarations are libc's, which has the differences between systems right: FreeBSD's `struct kevent` ends in four words
//! of extension. NetBSD counts filters from 0 in 32 bits, measures lists in `size_t`, and calls the function `__kevent50`. The
//! type names below cover the remaining differences.

pub use libc::{EV_ADD, EV_CLEAR, EV_DELETE, EV_DISABLE, EV_DISPATCH, EV_ENABLE, EV_EOF, EV_ERROR, EV_RECEIPT};
pub use libc::{EVFILT_READ, EVFILT_WRITE, kevent, kevent as Event, kqueue};

pub(super) use crate::descriptor::replace;

/// The type of `Event::flags`.
#[cfg(not(target_os = "netbsd"))]
pub type Flags = u16;
#[cfg(target_os = "netbsd")]
pub type Flags = u32;

/// The type of list lengths.
#[cfg(not(target_os = "netbsd"))]
pub type Count = libc::c_int;
#[cfg(target_os = "netbsd")]
pub type Count = libc::size_t;

/// Whether a forked child inherits a queue. These kernels close it.
pub const SURVIVES_FORK: bool = false;

/// Returns an empty event.
pub fn blank() -> Event {
    // SAFETY: the structure consists of integers and one raw pointer, for which zero is valid.
    unsafe { std::mem::zeroed() }
}
