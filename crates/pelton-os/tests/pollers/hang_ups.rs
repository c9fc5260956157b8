//! The end of the other side.

use std::io::pipe;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use pelton_os::poller::Poller;
use pelton_os::{Interest, Mode, Readiness};

use super::{DEADLINE, assert_silent, both, fd, token, wait};

on_every_poller! {
    the_end_of_the_other_side_shows_as_readable,
    a_connection_gone_in_both_directions_shows_as_a_hang_up,
    a_half_closed_connection_is_no_hang_up,
    a_pipe_without_a_reader_shows_as_writable,
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
