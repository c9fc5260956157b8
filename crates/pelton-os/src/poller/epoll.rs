//! Linux's `epoll`, level-triggered except for sockets that are added for their changes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::{Poller, Trigger, wait_failed};
use crate::descriptor::{borrow, replace};
use crate::{Interest, Mode, Readiness, Token, clock};

/// Descriptors that one wait reports at most. The next wait reports the others. 12 KiB of events.
const EVENTS_PER_WAIT: usize = 1024;

/// A poller on `epoll`, with nanosecond timeouts where the kernel has `epoll_pwait2` (Linux 5.11).
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    next: usize,
    precision: Precision,
}

/// The resolution of the kernel's timeouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Precision {
    Nanoseconds,
    Milliseconds,
}

impl Epoll {
    /// Opens an epoll object.
    pub fn new() -> io::Result<Epoll> {
        let fd = epoll::create(CreateFlags::CLOEXEC)?;
        let events = Vec::with_capacity(EVENTS_PER_WAIT);
        let mut epoll = Epoll { fd, events, next: 0, precision: Precision::Nanoseconds };
        // An empty wait shows whether `epoll_pwait2` exists. Seccomp filters that are older than the call answer EPERM.
        match epoll.wait_precisely(Some(Duration::ZERO)) {
            Ok(()) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                epoll.precision = Precision::Milliseconds;
            }
            Err(error) => return Err(error),
        }
        Ok(epoll)
    }

    fn wait_precisely(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(clock::timespec);
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `events` has room for EVENTS_PER_WAIT events. `timeout` is null or points to a live timespec. The signal mask
        // is null, so its size is ignored.
        let found = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_PER_WAIT as libc::c_int,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        self.found(found)
    }

    fn wait_roughly(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // SAFETY: `events` has room for EVENTS_PER_WAIT events.
        let found = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_PER_WAIT as libc::c_int,
                clock::round_up_to_millis(timeout),
            )
        };
        self.found(found.into())
    }

    /// Takes over the kernel's result: `found` events, or an error if negative.
    fn found(&mut self, found: libc::c_long) -> io::Result<()> {
        if let Ok(found) = usize::try_from(found) {
            // SAFETY: the kernel has filled in the first `found` events, and found is at most EVENTS_PER_WAIT, the capacity.
            unsafe { self.events.set_len(found) };
            return Ok(());
        }
        wait_failed()
    }
}

fn flags(interest: Interest, mode: Mode) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN | EventFlags::RDHUP, interest.readable());
    flags.set(EventFlags::OUT, interest.writable());
    flags.set(EventFlags::ONESHOT, mode == Mode::OneShot);
    flags
}

fn readiness(events: u32) -> Readiness {
    let flags = EventFlags::from_bits_retain(events);
    let mut readiness = Readiness::NONE;
    if flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
        readiness |= Readiness::READABLE;
    }
    if flags.intersects(EventFlags::RDHUP | EventFlags::PRI) {
        readiness |= Readiness::MARKED;
    }
    if flags.contains(EventFlags::OUT) {
        readiness |= Readiness::WRITABLE;
    }
    if flags.contains(EventFlags::HUP) {
        readiness |= Readiness::HANGUP;
    }
    if flags.contains(EventFlags::ERR) {
        readiness |= Readiness::ERROR;
    }
    readiness
}

/// What is reported of a socket that is added for its changes. Urgent data is included because a read stops before it.
const CHANGES: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::PRI).union(EventFlags::ET);

impl Poller for Epoll {
    fn reports_changes(&self) -> bool {
        true
    }

    fn add_for_changes(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.fd, borrow(&fd), EventData::new_u64(token.to_bits()), CHANGES)?)
    }

    fn add(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        Ok(epoll::add(&self.fd, borrow(&fd), EventData::new_u64(token.to_bits()), flags(interest, mode))?)
    }

    fn modify(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        Ok(epoll::modify(&self.fd, borrow(&fd), EventData::new_u64(token.to_bits()), flags(interest, mode))?)
    }

    fn remove(&mut self, fd: RawFd) -> io::Result<()> {
        match epoll::delete(&self.fd, borrow(&fd)) {
            // It was closed in the meantime, and its number perhaps reused. The kernel has already removed it.
            Ok(()) | Err(Errno::BADF | Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn add_loopbreaker(&mut self, fd: RawFd, trigger: Trigger) -> io::Result<Trigger> {
        let data = EventData::new_u64(Token::LOOPBREAKER.to_bits());
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::ET, trigger == Trigger::Edge);
        epoll::add(&self.fd, borrow(&fd), data, flags)?;
        Ok(trigger)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.events.clear();
        self.next = 0;
        match (self.precision, timeout) {
            // The older call is cheaper, and just as precise for these timeouts.
            (_, None | Some(Duration::ZERO)) | (Precision::Milliseconds, _) => self.wait_roughly(timeout),
            (Precision::Nanoseconds, _) => self.wait_precisely(timeout),
        }
    }

    fn next(&mut self) -> Option<(Token, Readiness)> {
        let event = *self.events.get(self.next)?;
        self.next += 1;
        Some((Token::from_bits(event.u64), readiness(event.events)))
    }

    fn renew(&mut self) -> io::Result<()> {
        self.events.clear();
        self.next = 0;
        replace(&self.fd, epoll::create(CreateFlags::CLOEXEC)?)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_kernel_without_nanosecond_waits_rounds_up_and_is_never_early() {
        let mut epoll = Epoll::new().unwrap();
        epoll.precision = Precision::Milliseconds;
        let start = Instant::now();
        epoll.wait(Some(Duration::from_micros(1_200))).unwrap();
        assert!(start.elapsed() >= Duration::from_micros(1_200));
        assert_eq!(epoll.next(), None);
    }

    #[test]
    fn nanosecond_waits_are_not_rounded_to_milliseconds() {
        let mut epoll = Epoll::new().unwrap();
        assert_eq!(epoll.precision, Precision::Nanoseconds, "this kernel has no epoll_pwait2");
        let best = (0..50).map(|_| {
            let start = Instant::now();
            epoll.wait(Some(Duration::from_micros(20))).unwrap();
            start.elapsed()
        });
        assert!(best.min().unwrap() < Duration::from_micros(900));
    }
}
