//! A kernel queue, made safe.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::{Errno, FdFlags};

use super::abi::{self, Count, Event, Flags};
use super::wait_failed;
use crate::clock::timespec;
use crate::descriptor::borrow;
use crate::fork;

/// How many events one wait takes out at most; the rest come with the next. 32 KiB of them, twice that on FreeBSD.
const EVENTS_PER_WAIT: usize = 1024;

/// How many changes [`Queue::apply`] takes: two filters, each deleted and added.
pub const CHANGES_AT_ONCE: usize = 4;

/// The side of a descriptor that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    Read,
    Write,
}

/// What the kernel is to do about a filter of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub fd: RawFd,
    pub filter: Filter,
    pub flags: Flags,
}

/// What the kernel says about a filter of a descriptor.
pub struct Found {
    pub fd: RawFd,
    pub filter: Filter,
    /// There is nothing more to come (or, for writing, to be had) from the other side.
    pub ended: bool,
    /// The end is due to an error, which the next operation on the descriptor will give.
    pub failed: bool,
}

pub struct Queue {
    fd: ManuallyDrop<OwnedFd>,
    /// The process that opened it, as a number of forks. In another one the number may be anybody's.
    forks: u64,
    events: Vec<Event>,
}

// SAFETY: what keeps it from being `Send` by itself is the `udata` pointer in the events, which is null throughout.
unsafe impl Send for Queue {}

impl Queue {
    pub fn open() -> io::Result<Queue> {
        let fd = ManuallyDrop::new(open()?);
        Ok(Queue { fd, forks: fork::count(), events: Vec::with_capacity(EVENTS_PER_WAIT) })
    }

    /// Makes up to [`CHANGES_AT_ONCE`] changes, each whatever became of those before it, and says how each went.
    pub fn apply(&self, changes: &[Change]) -> io::Result<[Option<Errno>; CHANGES_AT_ONCE]> {
        let mut receipts = [None; CHANGES_AT_ONCE];
        let mut asked = [abi::blank(); CHANGES_AT_ONCE];
        let mut answers = asked;
        for (event, change) in asked.iter_mut().zip(changes) {
            *event = change.to_event(abi::EV_RECEIPT);
        }
        let count = changes.len().min(CHANGES_AT_ONCE) as Count;
        let timeout = timespec(Duration::ZERO);
        // SAFETY: both lists have at least `count` places, and the timespec outlives the call.
        let answered = unsafe {
            abi::kevent(self.fd.as_raw_fd(), asked.as_ptr(), count, answers.as_mut_ptr(), count, &raw const timeout)
        };
        let Ok(answered) = usize::try_from(answered) else {
            return match io::Error::last_os_error() {
                // "When kevent() call fails with EINTR error, all changes in the changelist have been applied."
                error if error.kind() == io::ErrorKind::Interrupted => Ok(receipts),
                error => Err(error),
            };
        };
        for (receipt, answer) in receipts.iter_mut().zip(&answers[..answered]) {
            if answer.flags & abi::EV_ERROR != 0 && answer.data != 0 {
                *receipt = Some(Errno::from_raw_os_error(answer.data as i32));
            }
        }
        Ok(receipts)
    }

    /// Makes `changes`, then waits for events. A change that fails ends the wait.
    pub fn wait(&mut self, changes: &mut Changes, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        let timeout = timeout.map(timespec);
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the changes are a live list of that length; there is room for EVENTS_PER_WAIT events; `timeout` is null
        // or points at a timespec that outlives the call.
        let found = unsafe {
            abi::kevent(
                self.fd.as_raw_fd(),
                changes.0.as_ptr(),
                changes.0.len() as Count,
                self.events.as_mut_ptr(),
                EVENTS_PER_WAIT as Count,
                timeout,
            )
        };
        // They have been made, also if the call was interrupted, or else their descriptors are gone.
        changes.0.clear();
        match usize::try_from(found) {
            // SAFETY: the kernel has filled in the first `found` events, at most EVENTS_PER_WAIT, the capacity.
            Ok(found) => unsafe { self.events.set_len(found) },
            Err(_) => return wait_failed(),
        }
        Ok(())
    }

    /// What the last wait found.
    pub fn found(&self) -> impl Iterator<Item = Found> {
        // An error here is that of a change whose descriptor was closed: there is nothing left to change.
        self.events.iter().filter(|event| event.flags & abi::EV_ERROR == 0).map(|event| Found {
            fd: event.ident as RawFd,
            filter: if event.filter == abi::EVFILT_READ { Filter::Read } else { Filter::Write },
            ended: event.flags & abi::EV_EOF != 0,
            failed: event.flags & abi::EV_EOF != 0 && event.fflags != 0,
        })
    }

    /// Becomes a new queue, under the number of the old one.
    ///
    /// In a forked child of a system that closes queues there, the number is free, and is taken again; unless the child
    /// has opened something else under it, which is left alone: then the queue gets another number.
    pub fn renew(&mut self) -> io::Result<()> {
        self.events.clear();
        let fresh = open()?;
        if self.owns_its_number() || rustix::io::fcntl_getfd(borrow(&self.fd.as_raw_fd())) == Err(Errno::BADF) {
            abi::replace(&self.fd, fresh)?;
        } else {
            self.fd = ManuallyDrop::new(fresh);
        }
        self.forks = fork::count();
        Ok(())
    }

    fn owns_its_number(&self) -> bool {
        abi::SURVIVES_FORK || self.forks == fork::count()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.owns_its_number() {
            // SAFETY: it is not used again, being dropped.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: it takes nothing and touches no memory.
    let fd = match unsafe { abi::kqueue() } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: a descriptor that the kernel has just opened for us.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    // Not every system can open one with the flag set.
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}

impl Change {
    fn to_event(self, more: Flags) -> Event {
        let mut event = abi::blank();
        event.ident = self.fd as usize;
        event.filter = match self.filter {
            Filter::Read => abi::EVFILT_READ,
            Filter::Write => abi::EVFILT_WRITE,
        };
        event.flags = self.flags | more;
        event
    }
}

/// Changes to be made with the next wait.
#[derive(Default)]
pub struct Changes(Vec<Event>);

// SAFETY: as for `Queue`.
unsafe impl Send for Changes {}

impl Changes {
    pub fn push(&mut self, change: Change) {
        self.0.push(change.to_event(0));
    }
}
