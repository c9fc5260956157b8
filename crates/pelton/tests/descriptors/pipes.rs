//! Pipes.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Write, pipe};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use futures::AsyncReadExt;
use pelton::net::Stream;
use pelton::{Chunk, Connection, Io, Reactor, SendError, StreamKind, WaterMarks};
use pelton_testing::{
    DEADLINE, Log, On, activity, block_on, descriptors, on_every_engine, pattern, poll, run_until, run_with,
};

use super::{Logging, adopt, is_blocking, read_to_the_end, run_to_the_end, run_until_more};

on_every_engine![
    the_read_end_receives_until_the_last_writer_is_gone,
    a_writer_waits_while_the_handler_reads_nothing,
    the_write_end_waits_for_its_reader_and_reports_room,
    a_send_on_the_read_end_is_refused,
    a_write_end_hears_that_its_reader_is_gone,
    a_reader_that_goes_while_bytes_are_queued_resets_the_connection,
    finishing_the_write_end_closes_it,
    closing_after_writing_sends_everything_first,
    the_read_end_does_not_linger,
    a_hang_up_on_a_paused_pipe_costs_nothing,
    a_file_is_sent_through_a_pipe,
    a_detached_pipe_is_as_it_was_and_can_be_adopted_again,
    a_pipe_moves_to_another_reactor,
    others_who_share_a_pipe_keep_its_mode,
    ten_thousand_pipes_leave_nothing,
];

fn the_read_end_receives_until_the_last_writer_is_gone(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, mut writer) = pipe().unwrap();
    let id = adopt(&mut reactor, reader, &log);
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::ReadOnly);
    writer.write_all(b"one ").unwrap();
    let mut other = writer.try_clone().unwrap();
    drop(writer);
    run_until_more(&mut reactor, &log);
    other.write_all(b"two").unwrap();
    drop(other);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("one two"));
}

struct Collector {
    collected: Rc<RefCell<Vec<u8>>>,
}

impl Connection for Collector {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.pause();
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.collected.borrow_mut().extend_from_slice(&chunk);
    }
}

fn a_writer_waits_while_the_handler_reads_nothing(on: On) {
    let mut reactor = on.reactor();
    let collected = Rc::new(RefCell::new(Vec::new()));
    let (reader, mut writer) = pipe().unwrap();
    let id = reactor.adopt(reader, Collector { collected: collected.clone() }).unwrap();
    poll(&mut reactor);
    let writing = thread::spawn(move || writer.write_all(&pattern(1_000_000)).unwrap());
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns while it is paused");
    assert!(!writing.is_finished(), "a pipe does not hold that much");
    assert_eq!(collected.borrow().len(), 0);
    reactor.connection(id).unwrap().resume();
    run_to_the_end(&mut reactor);
    writing.join().unwrap();
    assert!(*collected.borrow() == pattern(1_000_000));
}

fn the_write_end_waits_for_its_reader_and_reports_room(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (mut reader, writer) = pipe().unwrap();
    let id = reactor
        .adopt(
            writer,
            Logging::and(&log, |io| {
                io.set_water_marks(WaterMarks { low: 1_000, high: 2_000, most: 1_000_000 });
                io.send(&pattern(1_000_000)).unwrap();
                assert!(matches!(io.send(b"x"), Err(SendError::Full { .. })));
            }),
        )
        .unwrap();
    assert_eq!(reactor.connection(id).unwrap().stream_kind(), StreamKind::WriteOnly);
    poll(&mut reactor);
    assert!(reactor.queued() > 0, "a pipe does not hold that much");
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns while nobody reads");
    let received = run_with(&mut reactor, move || {
        let mut received = vec![0; 1_000_000];
        reader.read_exact(&mut received).unwrap();
        (received, reader)
    });
    assert!(received.0 == pattern(1_000_000));
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["opened", "drained"]);
    assert_eq!(reactor.connection_count(), 1, "it stays open for more");
}

fn a_send_on_the_read_end_is_refused(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, writer) = pipe().unwrap();
    let errors = log.clone();
    let opened = move |io: &mut Io<'_>| errors.add(io.send(b"x").unwrap_err().to_string());
    reactor.adopt(reader, Logging::and(&log, opened)).unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["opened", "send: the descriptor is open for reading only"]);
    assert_eq!(reactor.connection_count(), 1, "it still receives");
    drop(writer);
    run_to_the_end(&mut reactor);
}

fn a_write_end_hears_that_its_reader_is_gone(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, writer) = pipe().unwrap();
    adopt(&mut reactor, writer, &log);
    poll(&mut reactor);
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns while nothing happens");
    drop(reader);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: reset by the other side"]);
}

fn a_reader_that_goes_while_bytes_are_queued_resets_the_connection(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, writer) = pipe().unwrap();
    reactor.adopt(writer, Logging::and(&log, |io| io.send(&[0; 200_000]).unwrap())).unwrap();
    poll(&mut reactor);
    assert!(reactor.queued() > 0);
    drop(reader);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: reset by the other side"]);
    assert_eq!(reactor.queued(), 0);
}

fn finishing_the_write_end_closes_it(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (mut reader, writer) = pipe().unwrap();
    let opened = |io: &mut Io<'_>| {
        io.send(b"the last words").unwrap();
        io.finish();
    };
    reactor.adopt(writer, Logging::and(&log, opened)).unwrap();
    run_to_the_end(&mut reactor);
    let mut received = String::new();
    reader.read_to_string(&mut received).unwrap();
    assert_eq!(received, "the last words");
    assert_eq!(log.take(), ["opened", "closed: finished by the other side"]);
}

fn closing_after_writing_sends_everything_first(on: On) {
    let mut reactor = on.reactor();
    let (mut reader, writer) = pipe().unwrap();
    let opened = |io: &mut Io<'_>| {
        io.send(&pattern(300_000)).unwrap();
        io.close_after_writing();
    };
    reactor.adopt(writer, Logging::and(&Log::default(), opened)).unwrap();
    let received = run_with(&mut reactor, move || {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == pattern(300_000));
    run_to_the_end(&mut reactor);
}

/// A socket would wait for the other side to finish.
fn the_read_end_does_not_linger(on: On) {
    let mut reactor = on.reactor();
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(b"one byte is enough").unwrap();
    block_on(&mut reactor, async {
        let mut stream = Stream::adopt(reader).unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
    });
    let before = reactor.clock();
    run_to_the_end(&mut reactor);
    assert!(reactor.clock() - before < Duration::from_secs(2), "closing loses nothing that the other side needs");
}

fn a_hang_up_on_a_paused_pipe_costs_nothing(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, mut writer) = pipe().unwrap();
    let id = reactor.adopt(reader, Logging::and(&log, |io| io.pause())).unwrap();
    writer.write_all(b"data").unwrap();
    drop(writer);
    poll(&mut reactor);
    let (turns, _) = activity(&mut reactor, &Log::default());
    assert!(turns <= 3, "{turns} turns");
    reactor.connection(id).unwrap().resume();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("data"));
}

fn a_file_is_sent_through_a_pipe(on: On) {
    let mut reactor = on.reactor();
    let path = std::env::current_exe().unwrap();
    let expected = std::fs::read(&path).unwrap()[..1_500_000].to_vec();
    let (mut reader, writer) = pipe().unwrap();
    let opened = move |io: &mut Io<'_>| {
        io.send(b"head").unwrap();
        io.send_file(File::open(&path).unwrap(), 0..1_500_000).unwrap();
        io.finish();
    };
    reactor.adopt(writer, Logging::and(&Log::default(), opened)).unwrap();
    let received = run_with(&mut reactor, move || {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received.starts_with(b"head") && received[4..] == expected);
}

fn a_detached_pipe_is_as_it_was_and_can_be_adopted_again(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(b"unread").unwrap();
    let taken = Rc::new(Cell::new(None));
    let detached = taken.clone();
    let opened = move |io: &mut Io<'_>| {
        let detached = detached.clone();
        io.detach(move |_, given| detached.set(Some(given))).unwrap();
    };
    reactor.adopt(reader, Logging::and(&log, opened)).unwrap();
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), ["opened", "closed: detached"]);
    let again = taken.take().unwrap();
    assert!(again.socket.as_fd().is_some());
    reactor.adopt_detached(again, Logging::to(&log)).unwrap();
    run_until_more(&mut reactor, &log);
    writer.write_all(b" bytes").unwrap();
    drop(writer);
    run_to_the_end(&mut reactor);
    assert_eq!(log.take(), read_to_the_end("unread bytes"));

    let (reader, mut writer) = pipe().unwrap();
    let detached = taken.clone();
    let opened = move |io: &mut Io<'_>| {
        let detached = detached.clone();
        io.send(b"sent first").unwrap();
        io.detach(move |_, given| detached.set(Some(given))).unwrap();
    };
    writer.write_all(b"and before: ").unwrap();
    reactor.adopt(writer, Logging::and(&log, opened)).unwrap();
    run_to_the_end(&mut reactor);
    let mut writer = File::from(taken.take().unwrap().socket.into_fd().unwrap());
    assert!(is_blocking(&writer));
    writer.write_all(b", and after").unwrap();
    drop(writer);
    let mut received = String::new();
    (&reader).read_to_string(&mut received).unwrap();
    assert_eq!(received, "and before: sent first, and after");
}

fn a_pipe_moves_to_another_reactor(on: On) {
    let other = Reactor::start_thread(|_| Ok(())).unwrap();
    let handle = other.handle().clone();
    let mut reactor = on.reactor();
    let (reader, mut writer) = pipe().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    struct Teller(std::sync::mpsc::Sender<Vec<u8>>);
    impl Connection for Teller {
        fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
            self.0.send(chunk.to_vec()).unwrap();
        }
    }
    let opened = move |io: &mut Io<'_>| {
        let sender = sender.clone();
        io.move_to(&handle, move |_| Teller(sender)).unwrap();
    };
    reactor.adopt(reader, Logging::and(&Log::default(), opened)).unwrap();
    run_to_the_end(&mut reactor);
    writer.write_all(b"over there").unwrap();
    assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), b"over there");
}

/// The pipe that `2>&1` makes has one description for both, and often for other processes too. Other systems than Linux cannot open
/// a pipe again.
fn others_who_share_a_pipe_keep_its_mode(on: On) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let mut reactor = on.reactor();
    let (mut reader, writer) = pipe().unwrap();
    let shared = writer.try_clone().unwrap();
    let first = adopt(&mut reactor, writer.try_clone().unwrap(), &Log::default());
    let second = adopt(&mut reactor, writer, &Log::default());
    poll(&mut reactor);
    assert!(is_blocking(&shared), "while it is in use");
    reactor.connection(first).unwrap().close();
    poll(&mut reactor);
    reactor.connection(second).unwrap().send(&[b'x'; 200_000]).unwrap();
    poll(&mut reactor);
    assert!(reactor.queued() > 0, "the other one does not block");
    reactor.connection(second).unwrap().close();
    run_to_the_end(&mut reactor);
    assert!(is_blocking(&shared), "afterwards");
    reader.read_exact(&mut [0; 100]).unwrap();
}

/// Counts descriptors of the whole process, so no other such test may run meanwhile, and it allows for other tests.
fn ten_thousand_pipes_leave_nothing(on: On) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone: MutexGuard<'_, ()> = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const AT_ONCE: usize = 50;
    let mut reactor = on.reactor();
    let before = descriptors();
    for _ in 0..10_000 / AT_ONCE {
        let (mut writers, mut adopted) = (Vec::new(), Vec::new());
        for index in 0..AT_ONCE {
            let (reader, mut writer) = pipe().unwrap();
            writer.write_all(b"x").unwrap();
            match index % 3 {
                0 => adopted.push(reactor.adopt(writer, Logging::default()).unwrap()),
                1 => writers.push(writer),
                _ => drop(writer),
            }
            reactor.adopt(reader, Logging::default()).unwrap();
        }
        poll(&mut reactor);
        drop(writers);
        for id in adopted {
            reactor.connection(id).unwrap().finish();
        }
        run_to_the_end(&mut reactor);
    }
    let left = descriptors().saturating_sub(before);
    assert!(left < 1_000, "{left} descriptors are left of 10,000 pipes");
}
