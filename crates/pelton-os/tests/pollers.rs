//! Tests each poller against the contract in `pelton_os::poller`.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pelton_os::poller::{Poller, Select, Trigger};
use pelton_os::{Interest, Loopbreaker, Mode, Readiness, Token};

/// Tests close descriptors and rely on their numbers staying free, so they must not run in parallel.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

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
            let _alone = super::ONE_AT_A_TIME.lock().unwrap_or_else(super::PoisonError::into_inner);
            super::$behaviour($poller);
        })*
    };
}

on_every_poller! {
    a_readable_descriptor_is_reported_under_its_token,
    a_writable_descriptor_is_reported_under_its_token,
    reading_and_writing_come_in_one_report,
    level_repeats_until_drained,
    a_wait_discards_the_results_of_the_one_before,
    one_shot_is_silent_until_modified,
    one_shot_is_silent_on_the_side_that_did_not_fire,
    one_shot_is_silent_after_a_hang_up_until_modified,
    one_shot_armed_again_before_the_next_wait_is_reported_by_it,
    modify_changes_interest_and_token,
    modify_changes_the_mode,
    the_end_of_the_other_side_shows_as_readable,
    a_connection_gone_in_both_directions_shows_as_a_hang_up,
    a_half_closed_connection_is_no_hang_up,
    a_pipe_without_a_reader_shows_as_writable,
    a_removed_descriptor_is_silent_and_can_be_added_again,
    removing_after_closing_succeeds,
    adding_twice_is_an_error,
    a_closed_descriptor_neither_fails_nor_spins_the_wait,
    a_reused_number_is_accepted_once_the_poller_knows,
    modifying_does_not_watch_a_reused_number,
    removing_between_wait_and_next_loses_no_report_of_others,
    five_hundred_descriptors_each_get_their_own_reports,
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
    its_descriptor_is_readable_while_there_are_results,
}

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
    let found = Vec::from_iter(std::iter::from_fn(|| poller.next()));
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

fn a_readable_descriptor_is_reported_under_its_token(mut poller: impl Poller) {
    let (read, mut write) = pipe().unwrap();
    poller.add(fd(&read), token(3), Interest::READABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, NOW), []);
    write.write_all(b"x").unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(3), Readiness::READABLE)]);
}

fn a_writable_descriptor_is_reported_under_its_token(mut poller: impl Poller) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    poller.add(fd(&ours), token(4), Interest::WRITABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(4), Readiness::WRITABLE)]);
    ours.set_nonblocking(true).unwrap();
    while (&ours).write(&[0; 4096]).is_ok() {}
    assert_eq!(wait(&mut poller, NOW), []);
    drop(theirs);
}

fn reading_and_writing_come_in_one_report(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    for mode in [Mode::Level, Mode::OneShot] {
        poller.add(fd(&ours), token(1), both(), mode).unwrap();
        assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE | Readiness::WRITABLE)]);
        poller.remove(fd(&ours)).unwrap();
    }
}

fn level_repeats_until_drained(mut poller: impl Poller) {
    let (mut read, _write) = full_pipe();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE)]);
    }
    read.read_exact(&mut [0]).unwrap();
    assert_silent(&mut poller);
}

fn a_wait_discards_the_results_of_the_one_before(mut poller: impl Poller) {
    let (mut read, _write) = full_pipe();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    poller.wait(Some(DEADLINE)).unwrap();
    read.read_exact(&mut [0]).unwrap();
    assert_silent(&mut poller);
}

fn one_shot_is_silent_until_modified(mut poller: impl Poller) {
    let (read, mut write) = full_pipe();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::OneShot).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE)]);
        assert_silent(&mut poller);
        write.write_all(b"more").unwrap();
        assert_silent(&mut poller);
        poller.modify(fd(&read), token(1), Interest::READABLE, Mode::OneShot).unwrap();
    }
}

fn one_shot_is_silent_on_the_side_that_did_not_fire(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    poller.add(fd(&ours), token(1), both(), Mode::OneShot).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::WRITABLE)]);
    theirs.write_all(b"x").unwrap();
    assert_silent(&mut poller);
    assert_silent(&mut poller);
    poller.modify(fd(&ours), token(1), Interest::READABLE, Mode::OneShot).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE)]);
    poller.modify(fd(&ours), token(1), both(), Mode::OneShot).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE | Readiness::WRITABLE)]);
    assert_silent(&mut poller);
}

fn one_shot_is_silent_after_a_hang_up_until_modified(mut poller: impl Poller) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (other, mut other_write) = pipe().unwrap();
    poller.add(fd(&ours), token(1), Interest::READABLE, Mode::OneShot).unwrap();
    poller.add(fd(&other), token(2), Interest::READABLE, Mode::OneShot).unwrap();
    drop(theirs);
    assert_eq!(wait(&mut poller, DEADLINE).len(), 1);
    assert_silent(&mut poller);
    // A hang-up after it has fired is not reported either.
    other_write.write_all(b"x").unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::READABLE)]);
    drop(other_write);
    assert_silent(&mut poller);
    poller.modify(fd(&ours), token(1), Interest::READABLE, Mode::OneShot).unwrap();
    let found = wait(&mut poller, DEADLINE);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, token(1));
    assert!(found[0].1.seen_with(Interest::READABLE).contains(Readiness::READABLE));
}

fn one_shot_armed_again_before_the_next_wait_is_reported_by_it(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    poller.add(fd(&ours), token(1), both(), Mode::OneShot).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::WRITABLE)]);
        poller.modify(fd(&ours), token(1), both(), Mode::OneShot).unwrap();
    }
    // The same with a new registration of the descriptor, for the side that did not fire before.
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::WRITABLE)]);
    poller.remove(fd(&ours)).unwrap();
    poller.add(fd(&ours), token(2), Interest::READABLE, Mode::OneShot).unwrap();
    theirs.write_all(b"x").unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::READABLE)]);
}

fn modify_changes_interest_and_token(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    poller.add(fd(&ours), token(1), Interest::READABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE)]);
    poller.modify(fd(&ours), token(2), Interest::WRITABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::WRITABLE)]);
    poller.modify(fd(&ours), token(2), both(), Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::READABLE | Readiness::WRITABLE)]);
    poller.modify(fd(&ours), token(3), Interest::READABLE, Mode::Level).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(3), Readiness::READABLE)]);
    let (unknown, _write) = pipe().unwrap();
    assert!(poller.modify(fd(&unknown), token(4), Interest::READABLE, Mode::Level).is_err());
}

fn modify_changes_the_mode(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let ready = [(token(1), Readiness::READABLE | Readiness::WRITABLE)];
    poller.add(fd(&ours), token(1), both(), Mode::Level).unwrap();
    for _ in 0..2 {
        poller.modify(fd(&ours), token(1), both(), Mode::OneShot).unwrap();
        assert_eq!(wait(&mut poller, DEADLINE), ready);
        assert_silent(&mut poller);
        poller.modify(fd(&ours), token(1), both(), Mode::Level).unwrap();
        for _ in 0..3 {
            assert_eq!(wait(&mut poller, DEADLINE), ready);
        }
    }
}

fn the_end_of_the_other_side_shows_as_readable(mut poller: impl Poller) {
    let (read, write) = pipe().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    poller.add(fd(&ours), token(2), both(), Mode::Level).unwrap();
    drop((write, theirs));
    let mut found = wait(&mut poller, DEADLINE);
    found.sort_by_key(|(token, _)| *token);
    let [(first, pipe), (second, socket)] = found[..] else { panic!("found {found:?}") };
    assert_eq!((first, second), (token(1), token(2)));
    assert!(pipe.seen_with(Interest::READABLE).contains(Readiness::READABLE));
    assert!(socket.seen_with(both()).contains(Readiness::READABLE | Readiness::WRITABLE));
}

fn a_connection_gone_in_both_directions_shows_as_a_hang_up(mut poller: impl Poller) {
    // `select` cannot report it.
    if std::any::type_name_of_val(&poller).ends_with("Select") {
        return;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    poller.add(fd(&ours), token(1), both(), Mode::Level).unwrap();
    drop(theirs);
    let everything = Readiness::READABLE | Readiness::WRITABLE | Readiness::HANGUP;
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), everything)]);
}

fn a_half_closed_connection_is_no_hang_up(mut poller: impl Poller) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    poller.add(fd(&ours), token(1), both(), Mode::Level).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE | Readiness::WRITABLE)]);
}

fn a_pipe_without_a_reader_shows_as_writable(mut poller: impl Poller) {
    let (read, late) = pipe().unwrap();
    poller.add(fd(&late), token(1), Interest::WRITABLE, Mode::OneShot).unwrap();
    drop(read);
    let (read, early) = pipe().unwrap();
    drop(read);
    poller.add(fd(&early), token(2), Interest::WRITABLE, Mode::OneShot).unwrap();
    let mut found = wait(&mut poller, DEADLINE);
    found.sort_by_key(|(token, _)| *token);
    assert_eq!(found.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [token(1), token(2)]);
    for (_, readiness) in found {
        assert!(readiness.seen_with(Interest::WRITABLE).contains(Readiness::WRITABLE));
    }
    assert_silent(&mut poller);
    poller.modify(fd(&early), token(3), Interest::WRITABLE, Mode::Level).unwrap();
    for _ in 0..3 {
        assert_eq!(wait(&mut poller, DEADLINE)[0].0, token(3));
    }
    poller.remove(fd(&early)).unwrap();
    assert_silent(&mut poller);
    // No state is left under the number.
    let (ours, _theirs) = UnixStream::pair().unwrap();
    // SAFETY: both are open, and `early` keeps owning its number, which now refers to another file.
    assert_eq!(unsafe { libc::dup2(fd(&ours), fd(&early)) }, fd(&early));
    poller.add(fd(&early), token(4), Interest::READABLE, Mode::Level).unwrap();
    assert_silent(&mut poller);
}

fn a_removed_descriptor_is_silent_and_can_be_added_again(mut poller: impl Poller) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    for mode in [Mode::Level, Mode::OneShot] {
        poller.add(fd(&ours), token(1), both(), mode).unwrap();
        assert_eq!(wait(&mut poller, DEADLINE).len(), 1);
        poller.remove(fd(&ours)).unwrap();
        assert_silent(&mut poller);
    }
}

fn removing_after_closing_succeeds(mut poller: impl Poller) {
    for (mode, interest) in [(Mode::Level, both()), (Mode::OneShot, Interest::READABLE)] {
        for taken in [false, true] {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let number = fd(&ours);
            poller.add(number, token(1), interest, mode).unwrap();
            wait(&mut poller, NOW);
            drop(ours);
            // The number may belong to another file by now, which the poller must ignore.
            let stranger = taken.then(full_pipe);
            assert!(stranger.as_ref().is_none_or(|(read, _)| fd(read) == number));
            poller.remove(number).unwrap();
            poller.remove(number).unwrap();
            assert_silent(&mut poller);
        }
    }
}

fn adding_twice_is_an_error(mut poller: impl Poller) {
    let (read, _write) = full_pipe();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::OneShot).unwrap();
    let again = |poller: &mut dyn Poller| poller.add(fd(&read), token(2), Interest::READABLE, Mode::Level).unwrap_err();
    assert_eq!(again(&mut poller).kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::READABLE)]);
    // A one-shot that has fired is still registered, and adding it again does not arm it.
    assert_eq!(again(&mut poller).kind(), io::ErrorKind::AlreadyExists);
    assert_silent(&mut poller);
}

fn a_closed_descriptor_neither_fails_nor_spins_the_wait(mut poller: impl Poller) {
    let (mut read, _write) = full_pipe();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    for (index, mode) in [(2, Mode::Level), (3, Mode::OneShot)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        poller.add(fd(&ours), token(index), Interest::READABLE, mode).unwrap();
        drop((ours, theirs));
        let found = [wait(&mut poller, NOW), wait(&mut poller, NOW), wait(&mut poller, NOW)].concat();
        let closed: Vec<_> = found.iter().filter(|(found, _)| *found == token(index)).collect();
        // Kernels that keep a list drop it silently.
        assert!(closed.is_empty() || closed == [&(token(index), Readiness::CLOSED)], "found {closed:?}");
        assert!(found.contains(&(token(1), Readiness::READABLE)), "the others are still reported");
    }
    read.read_exact(&mut [0]).unwrap();
    assert_silent(&mut poller);
}

fn a_reused_number_is_accepted_once_the_poller_knows(mut poller: impl Poller) {
    for mode in [Mode::Level, Mode::OneShot] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        let number = fd(&ours);
        poller.add(number, token(1), Interest::READABLE, mode).unwrap();
        poller.wait(Some(DEADLINE)).unwrap();
        drop(ours);
        if poller.as_fd().is_none() && mode == Mode::Level {
            // The poller, not the kernel, keeps the list, and learns of it from the next wait.
            assert_eq!(wait(&mut poller, DEADLINE), [(token(1), Readiness::CLOSED)]);
        }
        let (read, _write) = full_pipe();
        assert_eq!(fd(&read), number);
        match poller.add(number, token(2), Interest::READABLE, Mode::Level) {
            Ok(()) => assert_eq!(wait(&mut poller, DEADLINE), [(token(2), Readiness::READABLE)]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
                assert!(poller.as_fd().is_none() && mode == Mode::OneShot, "a kernel that keeps a list notices");
            }
        }
        poller.remove(number).unwrap();
    }
}

fn modifying_does_not_watch_a_reused_number(mut poller: impl Poller) {
    // Only kernels that keep a list can tell.
    if poller.as_fd().is_none() {
        return;
    }
    for (mode, interest) in
        [(Mode::Level, Interest::READABLE), (Mode::OneShot, Interest::WRITABLE), (Mode::Level, both())]
    {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let number = fd(&ours);
        poller.add(number, token(1), Interest::READABLE, Mode::Level).unwrap();
        drop(ours);
        let (stranger, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(fd(&stranger), number);
        theirs.write_all(b"x").unwrap();
        poller.modify(number, token(1), interest, mode).unwrap_err();
        assert_silent(&mut poller);
        poller.remove(number).unwrap();
        poller.add(number, token(2), interest, mode).unwrap();
        assert_eq!(wait(&mut poller, DEADLINE).len(), 1);
        poller.remove(number).unwrap();
    }
}

fn removing_between_wait_and_next_loses_no_report_of_others(mut poller: impl Poller) {
    let mut pipes: Vec<_> = (0..20).map(|_| Some(full_pipe())).collect();
    for (index, pipe) in pipes.iter().enumerate() {
        poller.add(fd(&pipe.as_ref().unwrap().0), token(index), Interest::READABLE, Mode::Level).unwrap();
    }
    poller.wait(Some(DEADLINE)).unwrap();
    let mut found = vec![poller.next().unwrap().0, poller.next().unwrap().0];
    let gone = [0, 3, 9, 18, 19].map(token);
    for token in gone {
        let (read, _write) = pipes[token.index() as usize].take().unwrap();
        poller.remove(fd(&read)).unwrap();
    }
    found.extend(std::iter::from_fn(|| poller.next()).map(|(token, _)| token));
    found.retain(|token| !gone.contains(token));
    found.sort();
    assert_eq!(found, (0..20).map(token).filter(|token| !gone.contains(token)).collect::<Vec<_>>());
    assert_eq!(wait(&mut poller, DEADLINE).len(), 15);
}

fn five_hundred_descriptors_each_get_their_own_reports(mut poller: impl Poller) {
    let pairs: Vec<_> = (0..250).map(|_| UnixStream::pair().unwrap()).collect();
    let sockets: Vec<_> = pairs.iter().flat_map(|(one, other)| [one, other]).collect();
    for (index, socket) in sockets.iter().enumerate() {
        poller.add(fd(*socket), token(index), Interest::READABLE, Mode::Level).unwrap();
    }
    let write_to = |index: usize| {
        let mut peer: &UnixStream = sockets[index ^ 1];
        peer.write_all(b"x").unwrap();
    };
    let tokens = |poller: &mut _| {
        let mut tokens: Vec<_> = wait(poller, NOW).into_iter().map(|(token, _)| token).collect();
        tokens.sort();
        tokens
    };
    let ready: Vec<_> = (0..500).filter(|index| index % 7 == 0).collect();
    ready.iter().for_each(|index| write_to(*index));
    assert_eq!(tokens(&mut poller), ready.iter().map(|index| token(*index)).collect::<Vec<_>>());
    let left = |index: &usize| !index.is_multiple_of(3);
    for index in (0..500).filter(|index| !left(index)) {
        poller.remove(fd(sockets[index])).unwrap();
    }
    let ready: Vec<_> = ready.into_iter().filter(left).map(token).collect();
    assert_eq!(tokens(&mut poller), ready);
    (0..500).filter(left).for_each(write_to);
    assert_eq!(tokens(&mut poller), (0..500).filter(left).map(token).collect::<Vec<_>>());
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

fn its_descriptor_is_readable_while_there_are_results(mut poller: impl Poller) {
    let (mut read, mut write) = pipe().unwrap();
    poller.add(fd(&read), token(1), Interest::READABLE, Mode::Level).unwrap();
    let Some(own) = poller.as_fd().map(|fd| fd.try_clone_to_owned().unwrap()) else { return };
    assert!(!is_readable(&own));
    write.write_all(b"x").unwrap();
    assert!(is_readable(&own));
    read.read_exact(&mut [0]).unwrap();
    wait(&mut poller, NOW);
    assert!(!is_readable(&own));
}

#[cfg(feature = "emulated-kqueue")]
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

#[test]
fn select_says_which_descriptor_it_cannot_watch_and_why() {
    let mut select = Select::new();
    let limit = libc::FD_SETSIZE as RawFd;
    let error = select.add(limit, token(1), Interest::READABLE, Mode::Level).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    assert!(error.to_string().starts_with(&format!("select cannot watch descriptor {limit}: ")), "{error}");
    assert_eq!(select.add_loopbreaker(limit, Trigger::Level).unwrap_err().kind(), io::ErrorKind::Unsupported);
    select.add(limit - 1, token(1), Interest::READABLE, Mode::Level).unwrap();
}
