//! Descriptors that somebody else owns. Owners that close theirs early are tested with the engine alone, in `pelton-os`.

use std::cell::Cell;
use std::io::{Read, Write, pipe};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use pelton::{Io, Socket, StreamKind};
use pelton_testing::{Echo, Log, On, on_every_engine, poll, run_until, run_with};

use super::{Logging, adopt, is_blocking, read_to_the_end, run_to_the_end};

on_every_engine![
    a_borrowed_socket_is_used_and_given_back_open,
    a_borrowed_pipe_is_used_and_given_back_open,
    a_borrowed_socket_half_closes,
    detaching_gives_it_back,
    a_dropped_reactor_gives_it_back,
    a_borrowed_pipe_cannot_listen,
    bytes_that_a_blocking_socket_has_no_room_for_wait,
];

fn a_borrowed_socket_is_used_and_given_back_open(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Arc::new(ours);
    let id = reactor.adopt(Socket::borrowed(ours.clone()), Echo).unwrap();
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::Socket);
    let mut echoed = [0; 5];
    let mut peer = theirs.try_clone().unwrap();
    run_with(&mut reactor, move || {
        peer.write_all(b"hello").unwrap();
        peer.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"hello");
    });
    assert!(is_blocking(&ours), "its mode is the owner's");
    assert_eq!(Arc::strong_count(&ours), 2);
    reactor.connection(id).unwrap().close();
    run_to_the_end(&mut reactor);
    assert_eq!(Arc::strong_count(&ours), 1, "the engine has let go");
    (&*ours).write_all(b"still open").unwrap();
    let mut received = [0; 10];
    theirs.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"still open");
}

fn a_borrowed_pipe_is_used_and_given_back_open(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (mut reader, writer) = pipe().unwrap();
    let writer = Arc::new(writer);
    let id =
        reactor.adopt(Socket::borrowed(writer.clone()), Logging::and(&log, |io| io.send(b"lent, ").unwrap())).unwrap();
    poll(&mut reactor);
    // It cannot be closed on the owner's behalf.
    reactor.connection(id).unwrap().finish();
    run_to_the_end(&mut reactor);
    assert_eq!(Arc::strong_count(&writer), 1);
    assert!(is_blocking(&*writer));
    (&*writer).write_all(b"given back").unwrap();
    drop(writer);
    let mut received = String::new();
    reader.read_to_string(&mut received).unwrap();
    assert_eq!(received, "lent, given back");
}

fn a_borrowed_socket_half_closes(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let opened = |io: &mut Io<'_>| {
        io.send(b"request").unwrap();
        io.finish();
    };
    reactor.adopt(Socket::borrowed(ours), Logging::and(&log, opened)).unwrap();
    let request = run_with(&mut reactor, move || {
        let mut request = String::new();
        theirs.read_to_string(&mut request).unwrap();
        theirs.write_all(b"answer").unwrap();
        request
    });
    assert_eq!(request, "request");
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "received answer", "peer finished", "closed: finished by the other side"]);
}

fn detaching_gives_it_back(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Arc::new(ours);
    let taken = Rc::new(Cell::new(None));
    let detached = taken.clone();
    let opened = move |io: &mut Io<'_>| {
        let detached = detached.clone();
        io.detach(move |_, given| detached.set(Some(given))).unwrap();
    };
    reactor.adopt(Socket::borrowed(ours.clone()), Logging::and(&log, opened)).unwrap();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: detached"]);
    let again = taken.take().unwrap().socket.into_fd().unwrap_err();
    assert_eq!(Arc::strong_count(&ours), 2, "what was detached still borrows it");
    adopt(&mut reactor, again, &log);
    theirs.write_all(b"again").unwrap();
    drop(theirs);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("again"));
    assert_eq!(Arc::strong_count(&ours), 1);
}

fn a_dropped_reactor_gives_it_back(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Arc::new(ours);
    adopt(&mut reactor, Socket::borrowed(ours.clone()), &Log::default());
    poll(&mut reactor);
    drop(reactor);
    assert_eq!(Arc::strong_count(&ours), 1);
    (&*ours).write_all(b"x").unwrap();
    theirs.read_exact(&mut [0]).unwrap();
}

fn a_borrowed_pipe_cannot_listen(on: On) {
    let mut reactor = on.reactor();
    let (reader, _writer) = pipe().unwrap();
    let error = reactor.adopt_listener(Socket::borrowed(reader), |_| Echo).unwrap_err().to_string();
    assert!(error.contains("adopt a listening socket"), "{error}");
}

fn bytes_that_a_blocking_socket_has_no_room_for_wait(on: On) {
    let mut reactor = on.reactor();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    assert!(is_blocking(&ours));
    let path = std::env::current_exe().unwrap();
    let expected = std::fs::read(&path).unwrap()[..1_000_000].to_vec();
    let opened = move |io: &mut Io<'_>| {
        io.send(&[b'x'; 1_000_000]).unwrap();
        io.send_file(std::fs::File::open(&path).unwrap(), 0..1_000_000).unwrap();
        io.finish();
    };
    reactor.adopt(Socket::borrowed(ours), Logging::and(&Log::default(), opened)).unwrap();
    poll(&mut reactor);
    assert!(reactor.queued() > 0);
    let received = run_with(&mut reactor, move || {
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received[..1_000_000].iter().all(|byte| *byte == b'x') && received[1_000_000..] == expected);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}
