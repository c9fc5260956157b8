//! Descriptors that are removed, closed or reused.

use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;

use pelton_os::poller::{Poller, Select, Trigger};
use pelton_os::{Interest, Mode, Readiness};

use super::{DEADLINE, NOW, assert_silent, both, fd, full_pipe, token, wait};

on_every_poller! {
    a_removed_descriptor_is_silent_and_can_be_added_again,
    removing_after_closing_succeeds,
    adding_twice_is_an_error,
    a_closed_descriptor_neither_fails_nor_spins_the_wait,
    a_reused_number_is_accepted_once_the_poller_knows,
    modifying_does_not_watch_a_reused_number,
    removing_between_wait_and_next_loses_no_report_of_others,
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
