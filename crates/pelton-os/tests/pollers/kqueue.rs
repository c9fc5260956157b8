//! The emulated kqueue alone.

use std::io::{Write, pipe};
use std::os::fd::AsFd;
use std::sync::PoisonError;

use pelton_os::poller::Poller;
use pelton_os::{Interest, Loopbreaker, Mode, Readiness};

use super::{DEADLINE, ONE_AT_A_TIME, assert_silent, fd, full_pipe, is_readable, token, wait};

#[test]
fn kqueue_forgets_a_closed_descriptor_that_has_a_duplicate() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut poller = pelton_os::poller::Kqueue::new().unwrap();
    let loopbreaker = Loopbreaker::new().unwrap();
    poller.add_loopbreaker(fd(&loopbreaker.as_fd()), loopbreaker.trigger()).unwrap();
    let (read, mut write) = pipe().unwrap();
    let (other, _other_write) = full_pipe();
    let _duplicate = read.try_clone().unwrap();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    drop(read);
    write.write_all(b"x").unwrap();
    assert_silent(&mut poller);
    assert!(!is_readable(&poller.as_fd().unwrap()));
    poller.add(fd(&other), token(2), Interest::READABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::READABLE)]);
    loopbreaker.wake();
    assert_eq!(wait(&mut poller, DEADLINE).len(), 2);
}
