//! Pollers: the kernel's ways of saying which descriptors are ready, one per file, behind one trait.
//!
//! What every poller does, and what the readiness engine above it may rely on:
//!
//! 1. Registrations are by descriptor. [`add`](Poller::add) is called at most once for a descriptor until it is
//!    [removed](Poller::remove), except that a descriptor may have been closed, and its number taken by another, behind
//!    everybody's back: a poller whose kernel forgets closed descriptors takes the new one; one that keeps its own list
//!    answers `AlreadyExists`.
//! 2. Interest is never [`Interest::NONE`]: the engine removes the descriptor instead. So a hang-up, which no kernel lets
//!    one mask, cannot make a wait return over and over for a source that asked for nothing.
//! 3. [`wait`](Poller::wait) makes exactly one system call. It returns when something is ready, when the timeout is over,
//!    or when a signal interrupts it (which is no error). It is never early: a timeout that the kernel cannot express is
//!    rounded up.
//! 4. [`next`](Poller::next) gives what the last wait found, at most once per descriptor, reading and writing together.
//! 5. With [`Mode::OneShot`] a descriptor stays registered after it was reported but is silent, hang-ups included, until
//!    [`modify`](Poller::modify).
//! 6. Removing a descriptor that was closed in the meantime succeeds. Events for it that the last wait found may still
//!    come out of `next`; their token tells.
//! 7. A closed descriptor never makes `wait` fail or spin: either the kernel forgets it by itself, or it is reported once
//!    as [`Readiness::CLOSED`] and is silent from then on.
//! 8. A poller is `Send`, so that the blocking part of a turn can be handed to code that insists on it.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use crate::{Interest, Mode, Readiness, Token};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod epoll;
#[cfg(kqueue)]
mod kqueue;
mod poll;
mod select;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub use epoll::Epoll;
#[cfg(kqueue)]
pub use kqueue::Kqueue;
pub use poll::Poll;
pub use select::Select;

/// One of the kernel's ways to wait for many descriptors at once. The module documentation is its contract.
pub trait Poller: Send {
    /// Starts to report `fd`, under the name `token`.
    fn add(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Changes what is reported of `fd`, and arms it again if it was one-shot and has fired.
    fn modify(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Stops reporting `fd`.
    fn remove(&mut self, fd: RawFd) -> io::Result<()>;

    /// Starts to report the loopbreaker's `fd` as [`Token::LOOPBREAKER`], by `trigger` if the poller can, and says which it
    /// is.
    fn add_loopbreaker(&mut self, fd: RawFd, trigger: Trigger) -> io::Result<Trigger>;

    /// Sleeps until something is ready or `timeout` is over (`None`: however long it takes).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// The next thing the last wait found.
    fn next(&mut self) -> Option<(Token, Readiness)>;

    /// Forgets every registration and starts afresh with a kernel object of its own, under the same descriptor number if
    /// it has one. Leaves alone whatever kernel object it had, which another process may share.
    fn renew(&mut self) -> io::Result<()>;

    /// The descriptor that is readable while this poller has something to report, if the kernel has such a thing.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// What the last wait found, for pollers whose kernel keeps no list.
#[derive(Default)]
struct Found {
    list: Vec<(Token, Readiness)>,
    next: usize,
}

impl Found {
    fn clear(&mut self) {
        self.list.clear();
        self.next = 0;
    }

    fn push(&mut self, token: Token, readiness: Readiness) {
        self.list.push((token, readiness));
    }

    fn next(&mut self) -> Option<(Token, Readiness)> {
        let found = *self.list.get(self.next)?;
        self.next += 1;
        Some(found)
    }
}

/// The outcome of a wait that the kernel ended with an error. A signal is no error.
fn wait_failed() -> io::Result<()> {
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

fn already_watched(poller: &str, fd: RawFd) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, format!("{poller} already watches descriptor {fd}"))
}

/// Whether a descriptor that stays ready is reported again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// Each wait reports it until it is read empty.
    Level,
    /// It is reported once per write; there is no need to ever read it.
    Edge,
}
