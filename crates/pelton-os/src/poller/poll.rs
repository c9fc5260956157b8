//! `poll`, which every Unix has. The list of descriptors is passed to the kernel with each wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use super::{Found, Poller, Trigger, already_watched, wait_failed};
use crate::{Interest, Mode, Readiness, Token};

/// A poller on `poll`. It has no limits, but each wait takes time proportional to the number of descriptors.
///
/// Timeouts have nanosecond resolution where the system has `ppoll`. Apple's systems do not: there they are rounded up to
/// milliseconds.
#[derive(Default)]
pub struct Poll {
    /// The list for the kernel. A one-shot that has fired keeps its place but is [`SILENCED`], including hang-ups.
    asked: Vec<libc::pollfd>,
    /// Who registered each element of `asked`, at the same index.
    watched: Vec<Watched>,
    places: HashMap<RawFd, usize>,
    /// Results are copied from `asked` at once, because removing a descriptor moves another one.
    found: Found,
}

struct Watched {
    fd: RawFd,
    token: Token,
    mode: Mode,
}

impl Poll {
    /// Creates an empty list.
    pub fn new() -> Poll {
        Poll::default()
    }

    /// Removes the descriptor at `place`. The last one moves to its place.
    fn take_out(&mut self, place: usize) {
        self.asked.swap_remove(place);
        self.places.remove(&self.watched.swap_remove(place).fd);
        if let Some(moved) = self.watched.get(place) {
            self.places.insert(moved.fd, place);
        }
    }

    /// Records the `found` descriptors that the kernel has marked.
    fn collect(&mut self, mut found: usize) {
        let mut place = 0;
        while found > 0 && place < self.asked.len() {
            let asked = &mut self.asked[place];
            if asked.revents == 0 {
                place += 1;
                continue;
            }
            found -= 1;
            let watched = &self.watched[place];
            if asked.revents & libc::POLLNVAL != 0 {
                // It was closed while it was watched, and its number may be reused. So it is not only silenced but removed, and
                // can be added again. Another descriptor is at this place now.
                self.found.push(watched.token, Readiness::CLOSED);
                self.take_out(place);
                continue;
            }
            self.found.push(watched.token, readiness(asked.revents));
            if watched.mode == Mode::OneShot {
                asked.fd = SILENCED;
            }
            place += 1;
        }
    }
}

/// Instead of a descriptor's number: the kernel skips the element.
const SILENCED: RawFd = -1;

fn question(fd: RawFd, interest: Interest) -> libc::pollfd {
    let mut events = 0;
    if interest.readable() {
        events |= libc::POLLIN;
    }
    if interest.writable() {
        events |= libc::POLLOUT;
    }
    libc::pollfd { fd, events, revents: 0 }
}

fn readiness(revents: libc::c_short) -> Readiness {
    let mut readiness = Readiness::NONE;
    for (bit, part) in [
        (libc::POLLIN, Readiness::READABLE),
        (libc::POLLOUT, Readiness::WRITABLE),
        (libc::POLLHUP, Readiness::HANGUP),
        (libc::POLLERR, Readiness::ERROR),
    ] {
        if revents & bit != 0 {
            readiness |= part;
        }
    }
    readiness
}

#[cfg(not(target_vendor = "apple"))]
fn wait_for(asked: &mut [libc::pollfd], timeout: Option<Duration>) -> libc::c_int {
    // NetBSD's older name for the same call.
    #[cfg(target_os = "netbsd")]
    use libc::pollts as ppoll;
    #[cfg(not(target_os = "netbsd"))]
    use libc::ppoll;

    let timeout = timeout.map(crate::clock::timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice is exclusively borrowed during the call, and the kernel accesses `len` elements of it. `timeout` is
    // null or points to a timespec that outlives the call. A null signal mask leaves the mask unchanged.
    unsafe { ppoll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, timeout, std::ptr::null()) }
}

#[cfg(target_vendor = "apple")]
fn wait_for(asked: &mut [libc::pollfd], timeout: Option<Duration>) -> libc::c_int {
    let timeout = crate::clock::round_up_to_millis(timeout);
    // SAFETY: the slice is exclusively borrowed during the call, and the kernel accesses `len` elements of it.
    unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, timeout) }
}

impl Poller for Poll {
    fn add(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        match self.places.entry(fd) {
            Entry::Occupied(_) => return Err(already_watched("poll", fd)),
            Entry::Vacant(entry) => entry.insert(self.asked.len()),
        };
        self.asked.push(question(fd, interest));
        self.watched.push(Watched { fd, token, mode });
        Ok(())
    }

    fn modify(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let Some(&place) = self.places.get(&fd) else {
            return Err(rustix::io::Errno::NOENT.into());
        };
        self.asked[place] = question(fd, interest);
        self.watched[place] = Watched { fd, token, mode };
        Ok(())
    }

    fn remove(&mut self, fd: RawFd) -> io::Result<()> {
        // A missing descriptor was closed in the meantime, and that was reported.
        if let Some(&place) = self.places.get(&fd) {
            self.take_out(place);
        }
        Ok(())
    }

    fn add_loopbreaker(&mut self, fd: RawFd, _: Trigger) -> io::Result<Trigger> {
        self.add(fd, Token::LOOPBREAKER, Interest::READABLE, Mode::Level)?;
        Ok(Trigger::Level)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.found.clear();
        match usize::try_from(wait_for(&mut self.asked, timeout)) {
            Ok(found) => {
                self.collect(found);
                Ok(())
            }
            Err(_) => wait_failed(),
        }
    }

    fn next(&mut self) -> Option<(Token, Readiness)> {
        self.found.next()
    }

    fn renew(&mut self) -> io::Result<()> {
        *self = Poll::new();
        Ok(())
    }

    /// Returns `None`: the kernel has the list only during a wait.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
