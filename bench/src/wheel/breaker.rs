//! The minimum of an event loop: an eventfd that interrupts an `epoll_wait`. The floor that loops are compared with.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Room for the events of one wait.
pub type Ready = [EpollEvent; 64];

pub fn ready() -> Ready {
    [EpollEvent::empty(); 64]
}

/// An epoll set that watches one eventfd. Any thread may wake it.
pub struct Breaker {
    epoll: Epoll,
    eventfd: EventFd,
}

impl Breaker {
    pub fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
        let eventfd = eventfd(0)?;
        epoll.add(&eventfd, EpollEvent::new(EpollFlags::EPOLLIN, 0)).context("watch an eventfd")?;
        Ok(Self { epoll, eventfd })
    }

    /// Ends the current wait, or else the next one.
    pub fn wake(&self) {
        match self.eventfd.write(1) {
            // A full counter means that the loop has been woken already.
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => panic!("write to an eventfd: {error}"),
        }
    }

    /// Sleeps until woken, and consumes the wake-up.
    pub fn sleep(&self, ready: &mut Ready) -> Result<()> {
        self.poll(ready, EpollTimeout::NONE)?;
        self.eventfd.read().context("read an eventfd")?;
        Ok(())
    }

    /// Waits for at most `timeout` and returns how many descriptors are ready.
    pub fn poll(&self, ready: &mut Ready, timeout: EpollTimeout) -> Result<usize> {
        loop {
            match self.epoll.wait(ready, timeout) {
                Err(Errno::EINTR) => {}
                found => return found.context("wait for an epoll set"),
            }
        }
    }
}

/// Returns a non-blocking eventfd that holds `value`: readable unless that is zero.
pub fn eventfd(value: u32) -> Result<EventFd> {
    EventFd::from_value_and_flags(value, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).context("create an eventfd")
}
