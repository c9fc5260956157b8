//! Pollers: the kernel interfaces that report which descriptors are ready, one per file, behind one trait.
//!
//! The contract of a poller, on which the readiness engine relies:
//!
//! 1. Registrations are by descriptor. [`add`](Poller::add) is called at most once for a descriptor before it is
//!    [removed](Poller::remove). But a descriptor may have been closed and its number reused without notice. Then a poller whose
//!    kernel drops closed descriptors accepts the new one, and a poller that keeps its own list answers `AlreadyExists`.
//! 2. Interest is never [`Interest::NONE`]: the engine removes the descriptor instead. No kernel can mask a hang-up, so
//!    otherwise one could make waits return over and over for a source without interest.
//! 3. [`wait`](Poller::wait) makes exactly one system call. It returns when a descriptor is ready, when the timeout has
//!    expired, or when a signal interrupts it, which is no error. It never returns early: a timeout that the kernel cannot express
//!    is rounded up.
//! 4. [`next`](Poller::next) returns what the last wait found, at most once per descriptor, with reading and writing combined.
//! 5. With [`Mode::OneShot`] a descriptor stays registered after it was reported, but is silent until
//!    [`modify`](Poller::modify). This includes hang-ups.
//! 6. Removing a descriptor that was closed in the meantime succeeds. `next` may still return events for it that the last wait
//!    found. Their token tells.
//! 7. A closed descriptor never makes `wait` fail or spin. Either the kernel drops it, or the poller reports it once as
//!    [`Readiness::CLOSED`] and not again.
//! 8. A poller that [reports changes](Poller::reports_changes) reports a descriptor that was
//!    [added for its changes](Poller::add_for_changes) when it is ready at first, and whenever more arrives, room is made after there
//!    was none, or an end or error occurs; not again while it stays ready. This holds for TCP sockets.
//! 9. A poller is `Send`, so that the blocking part of a turn can be passed to code that requires it.

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

/// A kernel interface that waits for many descriptors at once. The module documentation is its contract.
pub trait Poller: Send {
    /// Returns whether it can report changes instead of states: [`add_for_changes`](Poller::add_for_changes). Then it also forgets a
    /// descriptor that is closed without being [removed](Poller::remove), if there is no duplicate of it.
    fn reports_changes(&self) -> bool {
        false
    }

    /// Starts to report each change of `fd`, a TCP socket, in both directions, under `token`.
    fn add_for_changes(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        let _ = (fd, token);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Starts to report `fd` under `token`.
    fn add(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Changes what is reported about `fd`, and arms a one-shot that has fired.
    fn modify(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Stops reporting `fd`.
    fn remove(&mut self, fd: RawFd) -> io::Result<()>;

    /// Starts to report the loopbreaker's `fd` as [`Token::LOOPBREAKER`], with `trigger` if the poller can. Returns the trigger
    /// that it uses.
    fn add_loopbreaker(&mut self, fd: RawFd, trigger: Trigger) -> io::Result<Trigger>;

    /// Sleeps until a descriptor is ready or `timeout` has expired (`None`: without a limit).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Returns the next result of the last wait.
    fn next(&mut self) -> Option<(Token, Readiness)>;

    /// Drops every registration and opens a new kernel object, under the same descriptor number if there is one. Does not
    /// change the old kernel object, which another process may share.
    fn renew(&mut self) -> io::Result<()>;

    /// Returns a descriptor that is readable while there are results, if the kernel has one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// The results of the last wait, for pollers whose kernel keeps no list.
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

/// Returns the outcome of a wait that ended with an error. A signal is no error.
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
    /// Each wait reports it until everything is read.
    Level,
    /// It is reported once per write and never has to be read.
    Edge,
}
