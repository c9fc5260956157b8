//! Tests each poller against the contract in `pelton_os::poller`.

/// Generates a `#[test]` per poller for each function.
macro_rules! on_every_poller {
    ($($behaviour:ident),* $(,)?) => {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        mod epoll {
            on_every_poller!(@one pelton_os::poller::Epoll::new().unwrap(), $($behaviour)*);
        }
        #[cfg(any(feature = "emulated-kqueue", target_vendor = "apple", target_os = "freebsd", target_os = "netbsd",
                  target_os = "openbsd", target_os = "dragonfly"))]
        mod kqueue {
            on_every_poller!(@one pelton_os::poller::Kqueue::new().unwrap(), $($behaviour)*);
        }
        mod poll {
            on_every_poller!(@one pelton_os::poller::Poll::new(), $($behaviour)*);
        }
        mod select {
            on_every_poller!(@one pelton_os::poller::Select::new(), $($behaviour)*);
        }
    };
    (@one $poller:expr, $($behaviour:ident)*) => {
        $(#[test]
        fn $behaviour() {
            let _alone = crate::ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            super::$behaviour($poller);
        })*
    };
}

mod descriptors;
mod hang_ups;
#[cfg(feature = "emulated-kqueue")]
mod kqueue;
mod reports;
mod waiting;

use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pelton_os::poller::Poller;
use pelton_os::{Interest, Readiness, Token};

/// Tests close descriptors and rely on their numbers staying free, so they must not run in parallel.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A deadline for events that must happen.
const DEADLINE: Duration = Duration::from_secs(10);

const NOW: Duration = Duration::ZERO;

/// Long enough to notice a wait that returns at once.
const MOMENT: Duration = Duration::from_millis(15);

fn both() -> Interest {
    Interest::READABLE | Interest::WRITABLE
}

fn token(index: usize) -> Token {
    Token::new(index as u32, 7)
}

/// Waits and takes out all results.
fn wait(poller: &mut impl Poller, timeout: Duration) -> Vec<(Token, Readiness)> {
    let start = Instant::now();
    poller.wait(Some(timeout)).unwrap();
    let found = std::iter::from_fn(|| poller.next());
    let found = Vec::from_iter(found.map(|(token, readiness)| (token, readiness.without(Readiness::MARKED))));
    assert!(found.is_empty() || start.elapsed() < DEADLINE, "the wait slept although a descriptor was ready");
    found
}

fn assert_silent(poller: &mut impl Poller) {
    let start = Instant::now();
    assert_eq!(wait(poller, MOMENT), []);
    assert!(start.elapsed() >= MOMENT, "a wait without results ended after {:?}", start.elapsed());
}

fn fd(source: &impl AsRawFd) -> RawFd {
    source.as_raw_fd()
}

fn is_readable(source: &impl AsRawFd) -> bool {
    let mut asked = libc::pollfd { fd: fd(source), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one live structure.
    unsafe { libc::poll(&mut asked, 1, 0) == 1 }
}

/// A pipe with a byte in it.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (read, mut write) = pipe().unwrap();
    write.write_all(b"x").unwrap();
    (read, write)
}
