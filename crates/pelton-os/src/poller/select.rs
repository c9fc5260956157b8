//! `select`, the oldest poller. It has one bit per descriptor number, so the numbers are limited.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use super::{Found, Poller, Trigger, already_watched, wait_failed};
use crate::descriptor::borrow;
use crate::{Interest, Mode, Readiness, Token, clock};

/// A poller on `select`, for descriptors numbered below `FD_SETSIZE`: 1,024 on most systems.
///
/// It cannot report hang-ups or errors. They appear as readable or writable, and the following read or write tells. Each wait
/// takes time proportional to the highest number.
pub struct Select {
    /// Who registered each descriptor, at the index of its number. Ends with the highest one.
    watched: Vec<Option<Watched>>,
    read: Set,
    write: Set,
    found: Found,
}

struct Watched {
    token: Token,
    mode: Mode,
}

impl Select {
    /// Creates empty sets.
    pub fn new() -> Select {
        Select { watched: Vec::new(), read: Set::new(), write: Set::new(), found: Found::default() }
    }

    fn arm(&mut self, fd: RawFd, interest: Interest) {
        self.read.set(fd, interest.readable());
        self.write.set(fd, interest.writable());
    }

    fn forget(&mut self, fd: RawFd) {
        self.watched[fd as usize] = None;
        self.arm(fd, Interest::NONE);
        while self.watched.last().is_some_and(Option::is_none) {
            self.watched.pop();
        }
    }

    /// Records what is left in the sets after a wait that marked `found` bits.
    fn collect(&mut self, read: &Set, write: &Set, mut found: usize) {
        for fd in 0..self.watched.len() as RawFd {
            if found == 0 {
                break;
            }
            let Some(Watched { token, mode }) = self.watched[fd as usize] else { continue };
            let mut readiness = Readiness::NONE;
            for (set, part) in [(read, Readiness::READABLE), (write, Readiness::WRITABLE)] {
                if set.has(fd) {
                    readiness |= part;
                    found -= 1;
                }
            }
            if readiness.is_none() {
                continue;
            }
            self.found.push(token, readiness);
            if mode == Mode::OneShot {
                self.arm(fd, Interest::NONE);
            }
        }
    }

    /// The kernel has refused the sets because of a closed descriptor, without saying which. Checks each one, and reports and
    /// removes those that are closed, so that their numbers can be added again.
    fn report_closed(&mut self) {
        // From the highest down, because removing one shortens the list.
        for fd in (0..self.watched.len() as RawFd).rev() {
            // A one-shot that has fired is in no set. The kernel did not refuse it, and it has to stay silent.
            if !self.read.has(fd) && !self.write.has(fd) {
                continue;
            }
            if rustix::io::fcntl_getfd(borrow(&fd)) == Err(rustix::io::Errno::BADF)
                && let Some(Watched { token, .. }) = self.watched[fd as usize]
            {
                self.found.push(token, Readiness::CLOSED);
                self.forget(fd);
            }
        }
    }
}

impl Default for Select {
    fn default() -> Select {
        Select::new()
    }
}

impl Poller for Select {
    fn add(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let place = place_of(fd)?;
        if self.watched.get(place).is_some_and(Option::is_some) {
            return Err(already_watched("select", fd));
        }
        if place >= self.watched.len() {
            self.watched.resize_with(place + 1, || None);
        }
        self.watched[place] = Some(Watched { token, mode });
        self.arm(fd, interest);
        Ok(())
    }

    fn modify(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        match self.watched.get_mut(place_of(fd)?) {
            Some(Some(watched)) => *watched = Watched { token, mode },
            _ => return Err(rustix::io::Errno::NOENT.into()),
        }
        self.arm(fd, interest);
        Ok(())
    }

    fn remove(&mut self, fd: RawFd) -> io::Result<()> {
        // A missing descriptor was closed in the meantime, and that was reported.
        if self.watched.get(place_of(fd)?).is_some_and(Option::is_some) {
            self.forget(fd);
        }
        Ok(())
    }

    fn add_loopbreaker(&mut self, fd: RawFd, _: Trigger) -> io::Result<Trigger> {
        self.add(fd, Token::LOOPBREAKER, Interest::READABLE, Mode::Level)?;
        Ok(Trigger::Level)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.found.clear();
        let (mut read, mut write) = (self.read, self.write);
        let timeout = timeout.map(clock::timespec);
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the kernel accesses the bits below the given number, which is at most FD_SETSIZE, of two sets of that size.
        // `timeout` is null or points to a timespec that outlives the call. There is no third set and no signal mask.
        let found = unsafe {
            let limit = self.watched.len() as libc::c_int;
            libc::pselect(limit, &mut read.0, &mut write.0, std::ptr::null_mut(), timeout, std::ptr::null())
        };
        match usize::try_from(found) {
            Ok(found) => self.collect(&read, &write, found),
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) => self.report_closed(),
            Err(_) => return wait_failed(),
        }
        Ok(())
    }

    fn next(&mut self) -> Option<(Token, Readiness)> {
        self.found.next()
    }

    fn renew(&mut self) -> io::Result<()> {
        *self = Select::new();
        Ok(())
    }

    /// Returns `None`: the kernel has the sets only during a wait.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Returns the index of `fd` in the sets, or an error if it does not fit.
fn place_of(fd: RawFd) -> io::Result<usize> {
    match usize::try_from(fd) {
        Ok(place) if place < libc::FD_SETSIZE => Ok(place),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "select cannot watch descriptor {fd}: it takes numbers below {} (FD_SETSIZE); use epoll, kqueue or poll",
                libc::FD_SETSIZE
            ),
        )),
    }
}

/// A set of descriptors below FD_SETSIZE.
#[derive(Clone, Copy)]
struct Set(libc::fd_set);

impl Set {
    fn new() -> Set {
        // SAFETY: on every system the structure is an array of integers. All zeroes is a valid value, the empty set.
        Set(unsafe { std::mem::zeroed() })
    }

    fn set(&mut self, fd: RawFd, on: bool) {
        // SAFETY: the pointer is to a live set. A number out of range would panic instead of accessing memory.
        unsafe { if on { libc::FD_SET(fd, &mut self.0) } else { libc::FD_CLR(fd, &mut self.0) } }
    }

    fn has(&self, fd: RawFd) -> bool {
        // SAFETY: the pointer is to a live set. A number out of range would panic instead of accessing memory.
        unsafe { libc::FD_ISSET(fd, &self.0) }
    }
}
