//! Streams of bytes, as the readiness engine moves them: sockets, and every other descriptor that can be waited for.
//!
//! ```text
//! mod.rs          what a stream is; what both kinds of stream do
//! descriptor.rs   pipes, terminals, devices, and descriptors that somebody else owns
//! nonblocking.rs  making a descriptor non-blocking without disturbing others who use it
//! owner.rs        owners of borrowed descriptors
//! pipe_write.rs   writing to pipes without a signal
//! ```

mod descriptor;
mod nonblocking;
mod owner;
mod pipe_write;

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;

pub(crate) use descriptor::Descriptor;
pub use owner::DescriptorOwner;
use rustix::net::RecvFlags;

use crate::socket::SystemSocket;
use crate::{Address, Space, Splice};

/// Bytes to copy at a time from a file that the kernel cannot send directly.
const COPIED_AT_ONCE: usize = 16 * 1024;

/// The directions of a stream, and how they end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// A socket: it sends and receives, and each direction can end by itself.
    Socket,
    /// It sends and receives, but the other side cannot be told that nothing more will be sent: a terminal or another device.
    TwoWay,
    /// It only receives: the read end of a pipe.
    ReadOnly,
    /// It only sends: the write end of a pipe.
    WriteOnly,
}

/// A stream that an engine owns.
pub(crate) enum Stream {
    /// A socket of the engine. This is the common case and takes the shortest path.
    Socket(SystemSocket),
    Descriptor(Box<Descriptor>),
}

impl Stream {
    pub(crate) fn kind(&self) -> StreamKind {
        match self {
            Stream::Socket(_) => StreamKind::Socket,
            Stream::Descriptor(descriptor) => descriptor.kind(),
        }
    }

    /// Returns the number to register with a poller.
    pub(crate) fn number(&self) -> RawFd {
        match self {
            Stream::Socket(socket) => socket.as_fd().as_raw_fd(),
            Stream::Descriptor(descriptor) => descriptor.number(),
        }
    }

    /// Returns the descriptor. Fails if it belongs to somebody else, who has closed it.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Stream::Socket(socket) => Ok(socket.as_fd()),
            Stream::Descriptor(descriptor) => descriptor.fd(),
        }
    }

    /// Returns whether closing it with unread input would lose sent bytes, and there is unread input.
    pub(crate) fn has_unread(&self) -> bool {
        match self {
            Stream::Socket(socket) => socket.has_unread(),
            Stream::Descriptor(descriptor) => descriptor.has_unread(),
        }
    }

    pub(crate) fn undelivered(&self) -> Option<u64> {
        match self {
            Stream::Socket(socket) => socket.undelivered(),
            Stream::Descriptor(descriptor) => descriptor.undelivered(),
        }
    }
}

/// Takes bytes without blocking.
pub(crate) trait Sink {
    fn send_one(&self, bytes: &[u8]) -> io::Result<usize>;

    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends up to `count` bytes of `file`. Returns 0 at the end of the file.
    fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        self.send_file_by_copying(file, offset, count)
    }

    /// Sends up to `most` bytes of a pipe.
    fn send_splice(&self, pipe: &Splice, most: usize) -> io::Result<usize> {
        let _ = (pipe, most);
        // Only sockets are the targets of a splice.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send_file_by_copying(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        let mut block = [0; COPIED_AT_ONCE];
        let wanted = count.min(block.len());
        let read = file.read_at(&mut block[..wanted], offset)?;
        if read == 0 { Ok(0) } else { self.send_one(&block[..read]) }
    }
}

/// Sends up to `count` bytes of `file` to a non-blocking socket inside the kernel. Returns `None` if the kernel cannot.
pub(crate) fn send_file_in_kernel(
    socket: BorrowedFd<'_>,
    file: &File,
    offset: u64,
    count: usize,
) -> Option<io::Result<usize>> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let mut offset = offset;
        match rustix::fs::sendfile(socket, file, Some(&mut offset), count) {
            // Files of some special file systems cannot be sent this way.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => None,
            outcome => Some(outcome.map_err(io::Error::from)),
        }
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = (socket, file, offset, count);
        None
    }
}

/// Receives from a socket into one or two spaces, one after the other. Others stay as they are.
pub(crate) fn receive_into(socket: BorrowedFd<'_>, spaces: &mut [Space<'_>], flags: RecvFlags) -> io::Result<usize> {
    match spaces {
        [] => Ok(0),
        [space] => Ok(rustix::net::recv(socket, space.memory(), flags)?.0.0.len()),
        [first, second, ..] => {
            let mut slices = [first, second].map(|space| socket2::MaybeUninitSlice::new(space.memory()));
            let flags = flags.bits() as std::ffi::c_int;
            Ok(socket2::SockRef::from(&socket).recv_vectored_with_flags(&mut slices, flags)?.0)
        }
    }
}

pub(crate) fn local_address(fd: BorrowedFd<'_>) -> io::Result<Address> {
    Ok(Address::from_socket(&socket2::SockRef::from(&fd).local_addr()?))
}

pub(crate) fn peer_address(fd: BorrowedFd<'_>) -> io::Result<Address> {
    Ok(Address::from_socket(&socket2::SockRef::from(&fd).peer_addr()?))
}
