//! The kernel interface, as the C headers of each system have it.
//!
//! The declarations are libc's, which has them right where the systems differ: FreeBSD's `struct kevent` ends in four
//! words of extension, NetBSD counts filters from 0 in 32 bits, has lists measured in `size_t`, and calls the function
//! `__kevent50`. What is left of the differences is levelled here, by names for the types that differ.

pub use libc::{EV_ADD, EV_CLEAR, EV_DELETE, EV_DISABLE, EV_DISPATCH, EV_ENABLE, EV_EOF, EV_ERROR, EV_RECEIPT};
pub use libc::{EVFILT_READ, EVFILT_WRITE, kevent, kevent as Event, kqueue};

pub(super) use crate::descriptor::replace;

/// What `Event::flags` is.
#[cfg(not(target_os = "netbsd"))]
pub type Flags = u16;
#[cfg(target_os = "netbsd")]
pub type Flags = u32;

/// What lists are measured in.
#[cfg(not(target_os = "netbsd"))]
pub type Count = libc::c_int;
#[cfg(target_os = "netbsd")]
pub type Count = libc::size_t;

/// Whether a queue is there in a forked child. These kernels close it.
pub const SURVIVES_FORK: bool = false;

/// An event with nothing in it.
pub fn blank() -> Event {
    // SAFETY: the structure is made of integers and one raw pointer, all of which may be zero.
    unsafe { std::mem::zeroed() }
}
