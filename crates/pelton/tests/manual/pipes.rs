//! Pipes and terminals as manual connections.

use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice, PipeReader, PipeWriter, Read, Write, pipe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pelton::{Chunk, Connection, ConnectionId, EventLoop, Io, Reactor, Reason, Socket, Space, StreamKind};
use pelton_testing::{Log, On, on_every_engine, pattern, poll, run_until};

on_every_engine![
    a_read_end_is_received_to_its_end_and_given_back_open,
    a_write_end_is_told_that_nobody_reads_any_more,
    a_write_end_is_told_only_while_it_wants_to_know,
    a_write_end_sends_what_fits_and_queues_the_rest,
    a_queue_that_nobody_will_read_is_dropped_with_the_systems_error,
    a_write_end_that_only_writes_is_not_readable,
    a_hung_up_terminal_is_the_systems_error,
];

#[derive(Clone, Default)]
struct Manual {
    log: Log,
    readable: Rc<Cell<usize>>,
    writable: Rc<Cell<usize>>,
}

impl Connection for Manual {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        panic!("the connection is manual");
    }

    fn readable(&mut self, _: &mut Io<'_>) {
        self.readable.set(self.readable.get() + 1);
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        self.writable.set(self.writable.get() + 1);
        if let Some(error) = io.take_send_error() {
            self.log.add(format!("failed: {:?}", error.kind()));
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

fn lend(reactor: &mut EventLoop, fd: &Arc<impl std::os::fd::AsFd + Send + Sync + 'static>) -> (ConnectionId, Manual) {
    let manual = Manual::default();
    let id = reactor.adopt_manual(Socket::borrowed(fd.clone()), manual.clone()).unwrap();
    (id, manual)
}

fn both() -> (Arc<PipeReader>, Arc<PipeWriter>) {
    let (reader, writer) = pipe().unwrap();
    (Arc::new(reader), Arc::new(writer))
}

fn receive(io: &mut Io<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 1000];
    let count = io.receive_into(&mut [Space::from(&mut bytes[..])])?;
    Ok(bytes[..count].to_vec())
}

fn send(io: &mut Io<'_>, bytes: &'static [u8]) -> io::Result<usize> {
    io.send_or_keep(&[IoSlice::new(bytes)], |_, sent| Bytes::from_static(&bytes[sent..]))
}

fn a_read_end_is_received_to_its_end_and_given_back_open(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = both();
    let (id, manual) = lend(&mut reactor, &reader);
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::ReadOnly);
    (&*writer).write_all(b"hello").unwrap();
    poll(&mut reactor);
    assert_eq!(manual.readable.get(), 0, "it is paused");
    reactor.connection(id).unwrap().resume();
    run_until(&mut reactor, |_| manual.readable.get() > 2);
    let mut io = reactor.connection(id).unwrap();
    assert_eq!(receive(&mut io).unwrap(), b"hello");
    assert_eq!(receive(&mut io).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(send(&mut io, b"x").is_err());
    let before = manual.readable.get();
    drop(writer);
    run_until(&mut reactor, |_| manual.readable.get() > before);
    let mut io = reactor.connection(id).unwrap();
    assert_eq!((receive(&mut io).unwrap(), receive(&mut io).unwrap()), (vec![], vec![]), "the end stays");
    assert!(reactor.release_connection(id));
    assert_eq!(Arc::strong_count(&reader), 1);
    assert!(super::is_blocking(&*reader));
}

fn a_write_end_is_told_that_nobody_reads_any_more(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = both();
    let (id, manual) = lend(&mut reactor, &writer);
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::WriteOnly);
    reactor.connection(id).unwrap().resume();
    poll(&mut reactor);
    let mut io = reactor.connection(id).unwrap();
    assert_eq!(receive(&mut io).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(send(&mut io, b"x").unwrap(), 1);
    drop(reader);
    run_until(&mut reactor, |_| manual.readable.get() > 0);
    let mut io = reactor.connection(id).unwrap();
    assert_eq!(receive(&mut io).unwrap(), b"", "nothing more will be read");
    assert_eq!(send(&mut io, b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert!(manual.log.is_empty(), "ending it is left to the handler");
    reactor.release_connection(id);
    assert_eq!(manual.log.take(), ["closed: closed by this side"]);
}

fn a_write_end_is_told_only_while_it_wants_to_know(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = both();
    let (id, manual) = lend(&mut reactor, &writer);
    drop(reader);
    let turns = Rc::new(Cell::new(0));
    let (counted, over) = (turns.clone(), Rc::new(Cell::new(false)));
    let flag = over.clone();
    reactor.after(Duration::from_millis(30), move |_| flag.set(true));
    run_until(&mut reactor, move |_| {
        counted.set(counted.get() + 1);
        over.get()
    });
    assert_eq!(manual.readable.get(), 0);
    assert!(turns.get() < 20, "{} looks in 30 ms", turns.get());
    reactor.connection(id).unwrap().resume();
    run_until(&mut reactor, |_| manual.readable.get() > 2);
    reactor.connection(id).unwrap().pause();
    let before = manual.readable.get();
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(manual.readable.get(), before);
}

fn a_write_end_sends_what_fits_and_queues_the_rest(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = both();
    let (id, manual) = lend(&mut reactor, &writer);
    reactor.connection(id).unwrap().resume();
    let bytes: &'static [u8] = Vec::leak(pattern(1_000_000));
    let sent = send(&mut reactor.connection(id).unwrap(), bytes).unwrap();
    assert!((1..bytes.len()).contains(&sent));
    assert_eq!(reactor.connection(id).unwrap().queued(), bytes.len() - sent);
    poll(&mut reactor);
    assert_eq!(manual.writable.get(), 0);
    let mut received = Vec::new();
    let mut block = [0; 10_000];
    while received.len() < bytes.len() {
        let count = (&*reader).read(&mut block).unwrap();
        received.extend_from_slice(&block[..count]);
        poll(&mut reactor);
    }
    assert!(received == bytes);
    assert_eq!(reactor.queued(), 0);
    assert!(manual.writable.get() > 0 && manual.readable.get() == 0);
}

fn a_queue_that_nobody_will_read_is_dropped_with_the_systems_error(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = both();
    let (id, manual) = lend(&mut reactor, &writer);
    send(&mut reactor.connection(id).unwrap(), &[7; 1_000_000]).unwrap();
    drop(reader);
    run_until(&mut reactor, |_| !manual.log.is_empty());
    assert_eq!(manual.log.take(), ["failed: BrokenPipe"]);
    assert_eq!(reactor.queued(), 0);
    assert!(reactor.connection(id).is_some(), "ending it is left to the handler");
}

fn a_write_end_that_only_writes_is_not_readable(on: On) {
    let mut reactor = on.reactor();
    let (reader, writer) = both();
    let (id, manual) = lend(&mut reactor, &writer);
    reactor.connection(id).unwrap().resume();
    for _ in 0..5 {
        send(&mut reactor.connection(id).unwrap(), b"x").unwrap();
        poll(&mut reactor);
    }
    assert_eq!(manual.readable.get(), 0);
    drop(reader);
    run_until(&mut reactor, |_| manual.readable.get() > 0);
}

fn a_hung_up_terminal_is_the_systems_error(on: On) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let path = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut reactor = on.reactor();
    let screen = Arc::new(screen);
    let (id, manual) = lend(&mut reactor, &screen);
    reactor.connection(id).unwrap().resume();
    (&terminal).write_all(b"bye").unwrap();
    run_until(&mut reactor, |_| manual.readable.get() > 0);
    assert_eq!(receive(&mut reactor.connection(id).unwrap()).unwrap(), b"bye");
    drop(terminal);
    let before = manual.readable.get();
    run_until(&mut reactor, |_| manual.readable.get() > before);
    let error = receive(&mut reactor.connection(id).unwrap()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
}
