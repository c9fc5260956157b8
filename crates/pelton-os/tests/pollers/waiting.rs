//! Timeouts, signals, loopbreakers and forks.

use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pelton_os::poller::{Poller, Trigger};
use pelton_os::{Interest, Loopbreaker, Mode, Readiness, Token};

use super::{DEADLINE, NOW, assert_silent, both, fd, full_pipe, token, wait};

on_every_poller! {
    a_timeout_is_never_early,
    a_short_timeout_is_not_rounded_to_milliseconds,
    a_signal_ends_the_wait_without_an_error,
    a_loopbreaker_wakes_a_blocked_wait,
    a_pipe_loopbreaker_wakes_a_blocked_wait,
    many_wakes_are_one_report_and_the_next_is_another,
    many_wakes_of_a_pipe_are_one_report_and_the_next_is_another,
    a_pipe_that_has_filled_up_still_wakes,
    renew_forgets_everything_and_keeps_the_number,
    a_forked_child_renews_without_disturbing_its_parent,
}

fn a_timeout_is_never_early(mut poller: impl Poller) {
    let (read, _write) = pipe().unwrap();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    for micros in [1, 100, 999, 1_000, 1_001, 2_500, 12_345] {
        let timeout = Duration::from_micros(micros);
        let start = Instant::now();
        assert_eq!(wait(&mut poller, timeout), []);
        assert!(start.elapsed() >= timeout, "{timeout:?} ended after {:?}", start.elapsed());
    }
    // A timeout beyond what any system can count is as good as none.
    drop(_write);
    assert_eq!(wait(&mut poller, Duration::MAX).len(), 1);
}

fn a_short_timeout_is_not_rounded_to_milliseconds(mut poller: impl Poller) {
    if cfg!(target_vendor = "apple") {
        return;
    }
    let times = (0..50).map(|_| {
        let start = Instant::now();
        poller.wait(Some(Duration::from_micros(20))).unwrap();
        start.elapsed()
    });
    let best = times.min().unwrap();
    assert!(best < Duration::from_micros(900), "the shortest of fifty waits of 20 µs took {best:?}");
}

fn a_signal_ends_the_wait_without_an_error(mut poller: impl Poller) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the structure may be zero: no flags (so that calls are not restarted) and an empty mask. The handler does
    // nothing, which is always safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    // The results of the wait before must not come out again either.
    let (mut read, _write) = full_pipe();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE).len(), 1);
    read.read_exact(&mut [0]).unwrap();
    // SAFETY: the call only returns the thread's own id.
    let waiting = unsafe { libc::pthread_self() } as usize;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One signal could arrive before the wait begins, so they keep coming.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one to end, so it exists, and it has a handler for the signal.
                unsafe { libc::pthread_kill(waiting as libc::pthread_t, libc::SIGUSR1) };
                std::thread::yield_now();
            }
        });
        let start = Instant::now();
        let waited = poller.wait(Some(DEADLINE));
        over.store(true, Ordering::Relaxed);
        waited.unwrap();
        assert_eq!(poller.next(), None);
        assert!(start.elapsed() < DEADLINE, "the wait slept through the signals");
    });
}

fn wakes_a_blocked_wait(poller: &mut impl Poller, loopbreaker: &Loopbreaker) {
    poller.add_loopbreaker(fd(&loopbreaker.as_fd()), loopbreaker.trigger()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| loopbreaker.wake());
        assert_eq!(wait(poller, DEADLINE), [(Token::LOOPBREAKER, Readiness::READABLE)]);
    });
}

fn a_loopbreaker_wakes_a_blocked_wait(mut poller: impl Poller) {
    wakes_a_blocked_wait(&mut poller, &Loopbreaker::new().unwrap());
}

fn a_pipe_loopbreaker_wakes_a_blocked_wait(mut poller: impl Poller) {
    wakes_a_blocked_wait(&mut poller, &Loopbreaker::pipe().unwrap());
}

fn wakes_coalesce(poller: &mut impl Poller, loopbreaker: &Loopbreaker) {
    let trigger = poller.add_loopbreaker(fd(&loopbreaker.as_fd()), loopbreaker.trigger()).unwrap();
    for _ in 0..5 {
        (0..20).for_each(|_| loopbreaker.wake());
        assert_eq!(wait(poller, DEADLINE), [(Token::LOOPBREAKER, Readiness::READABLE)]);
        if trigger == Trigger::Level {
            loopbreaker.drain();
        }
        assert_silent(poller);
    }
}

fn many_wakes_are_one_report_and_the_next_is_another(mut poller: impl Poller) {
    wakes_coalesce(&mut poller, &Loopbreaker::new().unwrap());
}

fn many_wakes_of_a_pipe_are_one_report_and_the_next_is_another(mut poller: impl Poller) {
    wakes_coalesce(&mut poller, &Loopbreaker::pipe().unwrap());
}

/// Wakes it more often than the pipe has room for.
fn a_pipe_that_has_filled_up_still_wakes(mut poller: impl Poller) {
    let loopbreaker = Loopbreaker::pipe().unwrap();
    let trigger = poller.add_loopbreaker(fd(&loopbreaker.as_fd()), loopbreaker.trigger()).unwrap();
    (0..20_000).for_each(|_| loopbreaker.wake());
    for _ in 0..3 {
        assert_eq!(wait(&mut poller, NOW), [(Token::LOOPBREAKER, Readiness::READABLE)]);
        if trigger == Trigger::Level {
            loopbreaker.drain();
        }
        loopbreaker.wake();
    }
}

fn renew_forgets_everything_and_keeps_the_number(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let number = poller.as_fd().map(|fd| fd.as_raw_fd());
    poller.add(fd(&ours), token(1), both(), Mode::Level).unwrap();
    poller.wait(Some(DEADLINE)).unwrap();
    poller.renew().unwrap();
    assert_eq!(poller.next(), None);
    assert_silent(&mut poller);
    assert_eq!(poller.as_fd().map(|fd| fd.as_raw_fd()), number);
    poller.add(fd(&ours), token(2), Interest::READABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::READABLE)]);
}

fn a_forked_child_renews_without_disturbing_its_parent(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    poller.add(fd(&ours), token(1), Interest::READABLE, Mode::Level).unwrap();
    // SAFETY: the child calls only the poller and `_exit`. No other thread holds their locks, because tests run one at a time.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut code = 0;
        for (place, holds) in [
            poller.renew().is_ok(),
            poller.remove(fd(&ours)).is_ok(),
            poller.wait(Some(NOW)).is_ok() && poller.next().is_none(),
            poller.add(fd(&ours), token(2), Interest::READABLE, Mode::Level).is_ok(),
            poller.wait(Some(DEADLINE)).is_ok() && poller.next() == Some((token(2), Readiness::READABLE)),
        ]
        .into_iter()
        .enumerate()
        {
            code |= i32::from(!holds) << place;
        }
        // SAFETY: it ends the child immediately, without running the parent's cleanup.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to a live integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's steps that failed, as bits: {:#b}", status >> 8);
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE)]);
}
