//! Owners of borrowed descriptors.

use std::os::fd::{AsFd, BorrowedFd};

/// Owns a descriptor that an engine may use as a stream, and must not close.
///
/// Everything that [has a descriptor](AsFd) is such an owner, for example an `Arc<UnixStream>`, or [`std::io::Stdin`]. The
/// engine keeps the owner until it is done with the stream, and then drops it.
///
/// Implement this for owners that may close their descriptor earlier, such as the socket object of another language. The engine
/// asks for the descriptor before each system call on it. After `None`, or another number than the first time, it does not touch
/// the number again, which may belong to another file by then, and the stream ends with an error.
pub trait DescriptorOwner: Send {
    /// Returns the descriptor, or `None` if it was closed.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

impl<T: AsFd + Send> DescriptorOwner for T {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}
