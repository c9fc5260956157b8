//! A safe interface to a kernel queue.

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

/// Events that one wait returns at most. The next wait returns the others. 32 KiB, or 64 KiB on FreeBSD.
const EVENTS_PER_WAIT: usize = 1024;

/// Changes that [`Queue::apply`] takes at most: two filters, each deleted and added.
pub const CHANGES_AT_ONCE: usize = 4;

/// The side of a descriptor that is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    Read,
    Write,
}

/// A change to a filter of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub fd: RawFd,
    pub filter: Filter,
    pub flags: Flags,
}

/// An event of a filter of a descriptor.
pub struct Found {
    pub fd: RawFd,
    pub filter: Filter,
    /// The other side has finished sending, or, for writing, reading.
    pub ended: bool,
    /// It has ended because of an error, which the next operation on the descriptor returns.
    pub failed: bool,
}

pub struct Queue {
    fd: ManuallyDrop<OwnedFd>,
    /// The fork count of the process that opened it. In another process the descriptor number may belong to anything.
    forks: u64,
    events: Vec<Event>,
}

// SAFETY: only the `udata` pointer in the events prevents `Send`, and it is always null.
unsafe impl Send for Queue {}

impl Queue {
    pub fn open() -> io::Result<Queue> {
        let fd = ManuallyDrop::new(open()?);
        Ok(Queue { fd, forks: fork::count(), events: Vec::with_capacity(EVENTS_PER_WAIT) })
    }

    /// Makes up to [`CHANGES_AT_ONCE`] changes, each regardless of the others' outcome, and returns the outcome of each.
    pub fn apply(&self, changes: &[Change]) -> io::Result<[Option<Errno>; CHANGES_AT_ONCE]> {
        let mut receipts = [None; CHANGES_AT_ONCE];
        let mut asked = [abi::blank(); CHANGES_AT_ONCE];
        let mut answers = asked;
        for (event, change) in asked.iter_mut().zip(changes) {
            *event = change.to_event(abi::EV_RECEIPT);
        }
        let count = changes.len().min(CHANGES_AT_ONCE) as Count;
        let timeout = timespec(Duration::ZERO);
        // SAFETY: both lists have at least `count` elements, and the timespec outlives the call.
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
        // SAFETY: the changes are a live list of that length. There is room for EVENTS_PER_WAIT events. `timeout` is null or
        // points to a timespec that outlives the call.
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
        // The changes have been made, even if the call was interrupted, or their descriptors are closed.
        changes.0.clear();
        match usize::try_from(found) {
            // SAFETY: the kernel has filled in the first `found` events, and found is at most EVENTS_PER_WAIT, the capacity.
            Ok(found) => unsafe { self.events.set_len(found) },
            Err(_) => return wait_failed(),
        }
        Ok(())
    }

    /// Returns what the last wait found.
    pub fn found(&self) -> impl Iterator<Item = Found> {
        // An error here means that the descriptor of a change was closed, so there is nothing to change.
        self.events.iter().filter(|event| event.flags & abi::EV_ERROR == 0).map(|event| Found {
            fd: event.ident as RawFd,
            filter: if event.filter == abi::EVFILT_READ { Filter::Read } else { Filter::Write },
            ended: event.flags & abi::EV_EOF != 0,
            failed: event.flags & abi::EV_EOF != 0 && event.fflags != 0,
        })
    }

    /// Opens a new queue under the number of the old one.
    ///
    /// In a forked child of a system that closes queues there, the number is free and is taken again. If the child has opened
    /// something else under it, the queue gets another number.
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
            // SAFETY: the field is not used again, because the queue is being dropped.
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
    // SAFETY: the call takes no arguments and touches no memory.
    let fd = match unsafe { abi::kqueue() } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just opened this descriptor for us.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    // Not every system can set the flag when it opens a queue.
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

/// Changes to make with the next wait.
#[derive(Default)]
pub struct Changes(Vec<Event>);

// SAFETY: as for `Queue`.
unsafe impl Send for Changes {}

impl Changes {
    pub fn push(&mut self, change: Change) {
        self.0.push(change.to_event(0));
    }
}
