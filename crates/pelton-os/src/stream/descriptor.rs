//! Streams over descriptors that are not the engine's own sockets: pipes, FIFOs, terminals, devices, and descriptors that
//! somebody else owns.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::nonblocking::{self, Borrowed, NonBlocking};
use super::pipe_write::PipeWrite;
use super::{DescriptorOwner, Sink, StreamKind, send_file_in_kernel};
use crate::Space;
use crate::socket::SEND_FLAGS;

/// What a descriptor is, as far as system calls on it differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Nature {
    Socket,
    /// A pipe or a FIFO.
    Pipe,
    Terminal,
    /// Anything else that can be read or written and waited for.
    Device,
}

/// A stream over any descriptor.
pub(crate) struct Descriptor {
    held: Held,
    nature: Nature,
    kind: StreamKind,
    /// How a pipe is written to.
    pipe_write: PipeWrite,
    /// It was in blocking mode when the stream was opened.
    was_blocking: bool,
    /// `O_NONBLOCK` was set on a description that others may share.
    borrowed_flag: Option<Borrowed>,
}

/// Who owns the descriptor.
enum Held {
    Owned(OwnedFd),
    Borrowed {
        owner: Box<dyn DescriptorOwner>,
        /// The number that it had first.
        number: RawFd,
        /// A description of the engine's own, through which the same file is used.
        own: Option<OwnedFd>,
    },
    /// The engine has closed it.
    Closed,
}

impl Held {
    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Held::Owned(fd) => Ok(fd.as_fd()),
            Held::Borrowed { owner, number, own } => {
                let lent = owner.descriptor().filter(|fd| fd.as_raw_fd() == *number).ok_or_else(closed_by_owner)?;
                Ok(own.as_ref().map_or(lent, AsFd::as_fd))
            }
            Held::Closed => Err(Errno::PIPE.into()),
        }
    }
}

fn closed_by_owner() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the owner of the descriptor has closed it")
}

impl Descriptor {
    /// Takes over a descriptor.
    pub(crate) fn owned(fd: OwnedFd) -> io::Result<Descriptor> {
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Descriptor::open(Held::Owned(fd))
    }

    /// Borrows a descriptor.
    pub(crate) fn borrowed(owner: Box<dyn DescriptorOwner>) -> io::Result<Descriptor> {
        let number = owner.descriptor().ok_or_else(closed_by_owner)?.as_raw_fd();
        Descriptor::open(Held::Borrowed { owner, number, own: None })
    }

    /// Borrows a socket. Unlike [`borrowed`](Descriptor::borrowed), it makes no system call.
    pub(crate) fn borrowed_socket(owner: Box<dyn DescriptorOwner>) -> io::Result<Descriptor> {
        let fd = owner.descriptor().ok_or_else(closed_by_owner)?;
        #[cfg(target_vendor = "apple")]
        socket2::SockRef::from(&fd).set_nosigpipe(true)?;
        let number = fd.as_raw_fd();
        Ok(Descriptor {
            held: Held::Borrowed { owner, number, own: None },
            nature: Nature::Socket,
            kind: StreamKind::Socket,
            pipe_write: PipeWrite::Plain,
            was_blocking: true,
            borrowed_flag: None,
        })
    }

    /// Borrows a listening socket. No flag of `accept` keeps it from blocking, so the mode of the socket changes while it is
    /// borrowed.
    pub(crate) fn borrowed_listener(owner: Box<dyn DescriptorOwner>) -> io::Result<Descriptor> {
        let mut descriptor = Descriptor::borrowed_socket(owner)?;
        let fd = descriptor.fd()?;
        if let NonBlocking::Set(flag) = nonblocking::make(fd, Nature::Socket, rustix::fs::fcntl_getfl(fd)?)? {
            descriptor.borrowed_flag = Some(flag);
        }
        Ok(descriptor)
    }

    fn open(mut held: Held) -> io::Result<Descriptor> {
        let fd = held.fd()?;
        let nature = nature(fd)?;
        let flags = rustix::fs::fcntl_getfl(fd)?;
        let kind = match flags & OFlags::RWMODE {
            OFlags::RDONLY => StreamKind::ReadOnly,
            OFlags::WRONLY => StreamKind::WriteOnly,
            _ if nature == Nature::Socket => StreamKind::Socket,
            _ => StreamKind::TwoWay,
        };
        let writes_to_pipe = nature == Nature::Pipe && kind != StreamKind::ReadOnly;
        let pipe_write = if writes_to_pipe { PipeWrite::select(fd)? } else { PipeWrite::Plain };
        let was_blocking = !flags.contains(OFlags::NONBLOCK);
        let mut borrowed_flag = None;
        if nature == Nature::Socket {
            // Calls on sockets take a flag instead, so that the mode of a borrowed one does not change.
            #[cfg(target_vendor = "apple")]
            socket2::SockRef::from(&fd).set_nosigpipe(true)?;
        } else {
            match nonblocking::make(fd, nature, flags)? {
                NonBlocking::Already => {}
                NonBlocking::Set(flag) => borrowed_flag = Some(flag),
                NonBlocking::Reopened(new) => match &mut held {
                    Held::Borrowed { own, .. } => *own = Some(new),
                    owned => *owned = Held::Owned(new),
                },
            }
        }
        Ok(Descriptor { held, nature, kind, pipe_write, was_blocking, borrowed_flag })
    }

    pub(crate) fn kind(&self) -> StreamKind {
        self.kind
    }

    /// Returns the descriptor that the engine uses. Fails if its owner has closed it.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.held.fd()
    }

    /// Returns the number that the poller knows, also after the owner has closed it.
    pub(crate) fn number(&self) -> RawFd {
        match &self.held {
            Held::Owned(fd) | Held::Borrowed { own: Some(fd), .. } => fd.as_raw_fd(),
            Held::Borrowed { number, .. } => *number,
            Held::Closed => -1,
        }
    }

    /// Returns whether the descriptor is somebody else's, who has closed it.
    pub(crate) fn is_closed_by_owner(&self) -> bool {
        matches!(self.held, Held::Borrowed { .. }) && self.held.fd().is_err()
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = self.fd()?;
        match self.nature {
            Nature::Socket => Ok(rustix::net::recv(fd, buffer, RecvFlags::DONTWAIT)?.0),
            Nature::Terminal => match rustix::io::read(fd, buffer) {
                // The other side of a pseudo-terminal is gone, or the line was hung up.
                Err(Errno::IO) => Ok(0),
                outcome => Ok(outcome?),
            },
            Nature::Pipe | Nature::Device => Ok(rustix::io::read(fd, buffer)?),
        }
    }

    pub(crate) fn receive_into(&self, spaces: &mut [Space<'_>]) -> io::Result<usize> {
        let fd = self.fd()?;
        if self.nature == Nature::Socket {
            return super::receive_into(fd, spaces, RecvFlags::DONTWAIT);
        }
        if self.kind == StreamKind::WriteOnly {
            return if self.has_lost_reader() { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        // One call fills one space.
        let Some(space) = spaces.first_mut() else { return Ok(0) };
        Ok(rustix::io::read(fd, space.memory())?.0.len())
    }

    /// Returns whether nobody reads any more what is written.
    pub(crate) fn has_lost_reader(&self) -> bool {
        let Ok(fd) = self.fd() else { return true };
        let mut polled = [PollFd::new(&fd, PollFlags::empty())];
        let found = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        found.is_ok() && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
    }

    /// Tells the other side that nothing more will be sent, as far as that is possible.
    ///
    /// A socket is half-closed, and a descriptor that only sends is closed. Others, such as terminals, cannot tell.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        match self.kind {
            StreamKind::Socket => Ok(rustix::net::shutdown(self.fd()?, rustix::net::Shutdown::Write)?),
            StreamKind::WriteOnly => {
                self.close();
                Ok(())
            }
            StreamKind::TwoWay | StreamKind::ReadOnly => Ok(()),
        }
    }

    /// Restores what was changed, and closes the descriptor or returns it to its owner.
    fn close(&mut self) {
        if let (Some(flag), Ok(fd)) = (self.borrowed_flag.take(), self.held.fd()) {
            flag.restore(fd);
        }
        self.held = Held::Closed;
    }

    /// Returns the descriptor, blocking as it was before, or the stream itself if somebody else owns it.
    pub(crate) fn into_fd(mut self: Box<Self>) -> Result<OwnedFd, Box<Descriptor>> {
        match std::mem::replace(&mut self.held, Held::Closed) {
            Held::Owned(fd) => {
                match self.borrowed_flag.take() {
                    Some(flag) => flag.restore(fd.as_fd()),
                    None if self.was_blocking => nonblocking::set_blocking_if_open(fd.as_fd()),
                    None => {}
                }
                Ok(fd)
            }
            held => {
                self.held = held;
                Err(self)
            }
        }
    }

    pub(crate) fn has_unread(&self) -> bool {
        let is_socket = self.nature == Nature::Socket;
        is_socket && self.fd().is_ok_and(|fd| rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > 0))
    }

    pub(crate) fn undelivered(&self) -> Option<u64> {
        let fd = self.fd().ok()?;
        match self.nature {
            // What the reader has not read. Both ends can ask.
            Nature::Pipe => rustix::io::ioctl_fionread(fd).ok(),
            Nature::Socket | Nature::Terminal => crate::send_queue::length(fd),
            Nature::Device => None,
        }
    }
}

fn nature(fd: BorrowedFd<'_>) -> io::Result<Nature> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
    let what = match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device",
        FileType::Socket => return Ok(Nature::Socket),
        FileType::Fifo => return Ok(Nature::Pipe),
        FileType::CharacterDevice if crate::descriptor::is_terminal(fd) => return Ok(Nature::Terminal),
        _ => return Ok(Nature::Device),
    };
    let text = format!("{what} is always ready and cannot be waited for: use pelton::fs, which works on other threads");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

impl Sink for Descriptor {
    fn send_one(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.nature == Nature::Socket {
            const FLAGS: SendFlags = SendFlags::from_bits_retain(SEND_FLAGS as u32).union(SendFlags::DONTWAIT);
            return Ok(rustix::net::send(self.fd()?, bytes, FLAGS)?);
        }
        self.send(&[IoSlice::new(bytes)])
    }

    fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = self.fd()?;
        match self.nature {
            Nature::Socket => {
                socket2::SockRef::from(&fd).send_vectored_with_flags(slices, SEND_FLAGS | libc::MSG_DONTWAIT)
            }
            Nature::Pipe => self.pipe_write.write(fd, slices),
            Nature::Terminal => match rustix::io::writev(fd, slices) {
                // The line was hung up.
                Err(Errno::IO) => Err(Errno::PIPE.into()),
                outcome => Ok(outcome?),
            },
            Nature::Device => Ok(rustix::io::writev(fd, slices)?),
        }
    }

    fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        if self.nature == Nature::Socket
            && !self.was_blocking
            && let Some(outcome) = send_file_in_kernel(self.fd()?, file, offset, count)
        {
            return outcome;
        }
        self.send_file_by_copying(file, offset, count)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({}, {:?}, {:?})", self.number(), self.nature, self.kind)
    }
}
