//! What a wait reports, and how often: tokens, levels, one-shot.

use std::io::{Read, Write, pipe};
use std::os::unix::net::UnixStream;

use pelton_os::poller::Poller;
use pelton_os::{Interest, Mode, Readiness};

use super::{DEADLINE, NOW, assert_silent, both, fd, full_pipe, is_readable, token, wait};

on_every_poller! {
    a_readable_descriptor_is_reported_under_its_token,
    a_writable_descriptor_is_reported_under_its_token,
    reading_and_writing_are_combined_in_one_report,
    level_repeats_until_drained,
    a_wait_discards_the_results_of_the_one_before,
    one_shot_is_silent_until_modified,
    one_shot_is_silent_on_the_side_that_did_not_fire,
    one_shot_is_silent_after_a_hang_up_until_modified,
    one_shot_armed_again_before_the_next_wait_is_reported_by_it,
    modify_changes_interest_and_token,
    modify_changes_the_mode,
    five_hundred_descriptors_each_get_their_own_reports,
    its_descriptor_is_readable_while_there_are_results,
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

fn reading_and_writing_are_combined_in_one_report(mut poller: impl Poller) {
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
