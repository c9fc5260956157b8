//! A pipe through which the kernel moves bytes from one socket to another.

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The size of the pipe: with the default of 64 KiB, moving bytes this way costs as much as copying them.
const SIZE: usize = 1024 * 1024;

/// A pipe that holds received bytes inside the kernel until they are sent on.
///
/// An engine [fills](crate::engine::StreamEngine::splice) it from one stream, and [sends](crate::Outbox::push_splice) from it
/// to another. Only Linux has the calls for it.
#[derive(Debug)]
pub struct Splice {
    reader: OwnedFd,
    writer: OwnedFd,
    len: Cell<usize>,
}

impl Splice {
    /// Opens a pipe. Fails if the system cannot move bytes this way, or gives no pipe that is large enough to be of use.
    pub fn new() -> io::Result<Splice> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
            let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
            // Refused if the user has too many large pipes already.
            fcntl_setpipe_size(&writer, SIZE)?;
            Ok(Splice { reader, writer, len: Cell::new(0) })
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let _ = SIZE;
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Returns how many bytes it holds.
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Returns whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves bytes from a socket into the pipe, as many as there are and fit. Returns 0 at the end of the stream.
    pub(crate) fn fill(&self, from: BorrowedFd<'_>) -> io::Result<usize> {
        let count = splice(from, &self.writer, SIZE)?;
        self.len.set(self.len.get() + count);
        Ok(count)
    }

    /// Moves up to `most` bytes from the pipe to a socket.
    pub(crate) fn send_to(&self, to: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        let count = splice(&self.reader, to, most.min(self.len()))?;
        self.len.set(self.len.get() - count);
        Ok(count)
    }

    /// Takes all bytes out, for a recipient that has to see them.
    pub fn take(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::io::read(&self.reader, &mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.len.set(0);
        Ok(bytes)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn splice(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd, most: usize) -> io::Result<usize> {
    use rustix::pipe::SpliceFlags;
    Ok(rustix::pipe::splice(from, None, to, None, most, SpliceFlags::NONBLOCK)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn splice(_: impl std::os::fd::AsFd, _: impl std::os::fd::AsFd, _: usize) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
