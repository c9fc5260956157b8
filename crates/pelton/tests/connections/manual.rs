//! Manual connections: the handler decides when to receive, and learns what was sent.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pelton::{
    Address, Chunk, Connection, ConnectionId, Detached, EventLoop, Io, Layer, LayerIo, Limit, Reactor, Reason, Socket,
    Space, WaterMarks,
};
use pelton_testing::{
    Log, Network, On, activity, listen, on_every_engine, on_every_network, pattern, poll, run_until, run_with,
};

use super::{Scripted, with_peer};

on_every_network![everything_is_received_and_sent_on_request, a_reset_is_found_by_receiving];

/// Serves connections that become manual as soon as they are open.
fn serve_manually(reactor: &mut EventLoop, log: &Log, readable: impl Fn(&mut Io<'_>) + Clone + 'static) -> Address {
    let log = log.clone();
    listen(reactor, move |_| {
        let (log, readable) = (log.clone(), readable.clone());
        Scripted {
            opened: Some(Box::new(move |io| {
                let (log, readable) = (log.clone(), readable.clone());
                let adopt = move |reactor: &mut Reactor, detached: Detached| {
                    let manual = Manual { log, readable: Some(Box::new(readable)) };
                    let id = reactor.adopt_manual(detached.socket, manual).unwrap();
                    let mut io = reactor.connection(id).unwrap();
                    io.resume();
                    io.send_or_keep(&[IoSlice::new(b"go")], |_, sent| Bytes::from_static(b"go").slice(sent..)).unwrap();
                };
                io.detach(adopt).unwrap();
            })),
            ..Scripted::default()
        }
    })
}

fn everything_is_received_and_sent_on_request(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let address = serve_manually(&mut reactor, &log, |io| match receive_by(io, 1000) {
        Ok(bytes) if bytes.is_empty() => io.close_after_writing(),
        Ok(bytes) => {
            io.send_or_keep(&[IoSlice::new(&bytes)], |_, sent| Bytes::copy_from_slice(&bytes[sent..])).unwrap();
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
    });
    let bytes = pattern(52_345);
    let sent = bytes.clone();
    let received = with_peer(&mut reactor, on, &address, move |mut peer| {
        assert_eq!(peer.read_some(2), b"go");
        let mut received = Vec::new();
        for piece in sent.chunks(10_000) {
            peer.write_all(piece).unwrap();
            received.extend(peer.read_some(piece.len()));
        }
        peer.finish();
        received.extend(peer.read_all().unwrap());
        received
    });
    assert!(received == bytes);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.queued(), 0);
}

fn a_reset_is_found_by_receiving(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let errors = log.clone();
    let address = serve_manually(&mut reactor, &log, move |io| match receive_by(io, 10) {
        Ok(bytes) if bytes.is_empty() => panic!("it ended without an error"),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => {
            errors.add(format!("{:?}", error.kind()));
            io.close();
        }
    });
    with_peer(&mut reactor, on, &address, |mut peer| {
        assert_eq!(peer.read_some(2), b"go");
        peer.reset();
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    let entries = log.entries();
    assert_eq!(entries[entries.len() - 2..], ["ConnectionReset", "closed: Local"], "{entries:?}");
}

mod with_a_kernel {
    use super::*;

    on_every_engine![
        a_manual_connection_is_paused_at_first,
        input_is_reported_until_it_is_received,
        input_fills_one_buffer_after_the_other,
        the_end_is_received_like_input,
        a_send_reports_what_was_sent_and_keeps_the_rest,
        pieces_are_sent_together_and_kept_from_where_the_socket_was_full,
        the_error_of_a_send_is_the_callers,
        a_queue_that_cannot_be_sent_is_dropped_with_the_systems_error,
        the_queue_has_no_limits,
        bytes_wait_for_room_on_request,
        room_is_reported_on_request,
        a_dropped_queue_leaves_nothing_to_do,
        a_released_connection_is_gone_at_once,
        a_connection_released_in_its_own_callback_ends_after_it,
        a_released_connection_that_has_failed_reports_the_failure_once,
        a_manual_connection_gets_no_layers,
        sends_in_the_callback_are_written_after_it,
        half_closing_is_immediate,
    ];

    fn a_manual_connection_is_paused_at_first(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        theirs.write_all(b"early").unwrap();
        poll(&mut reactor);
        assert!(log.is_empty(), "{log:?}");
        resume(&mut reactor, id);
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(log.entries()[0], "readable");
        reactor.connection(id).unwrap().pause();
        log.take();
        poll(&mut reactor);
        assert!(log.is_empty(), "{log:?}");
    }

    fn input_is_reported_until_it_is_received(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        resume(&mut reactor, id);
        assert_eq!(receive(&mut reactor, id, 10).unwrap_err().kind(), ErrorKind::WouldBlock);
        theirs.write_all(b"hello").unwrap();
        run_until(&mut reactor, |_| log.len() >= 3);
        assert_eq!(receive(&mut reactor, id, 2).unwrap(), b"he");
        log.take();
        run_until(&mut reactor, |_| log.len() >= 2);
        assert_eq!(receive(&mut reactor, id, 10).unwrap(), b"llo");
        log.take();
        assert_eq!(activity(&mut reactor, &log).1, 0, "{log:?}");
    }

    fn input_fills_one_buffer_after_the_other(on: On) {
        let (mut reactor, _, id, mut theirs) = pair(on);
        theirs.write_all(b"hello world").unwrap();
        let (mut first, mut second) = ([0; 5], [0; 20]);
        let mut spaces = [Space::from(&mut first[..]), Space::from(&mut second[..])];
        assert_eq!(reactor.connection(id).unwrap().receive_into(&mut spaces).unwrap(), 11);
        assert_eq!((&first, &second[..6]), (b"hello", b" world".as_slice()));
        assert_eq!(reactor.connection(id).unwrap().receive_into(&mut []).unwrap(), 0);
    }

    fn the_end_is_received_like_input(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        resume(&mut reactor, id);
        theirs.write_all(b"last").unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(receive(&mut reactor, id, 10).unwrap(), b"last");
        assert_eq!(receive(&mut reactor, id, 10).unwrap(), b"");
        // It is reported again, and found again.
        log.take();
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(receive(&mut reactor, id, 10).unwrap(), b"");
        // The other direction is open.
        assert_eq!(send(&mut reactor, id, b"answer").unwrap(), 6);
        reactor.release_connection(id);
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    fn a_send_reports_what_was_sent_and_keeps_the_rest(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        let bytes = pattern(4 * 1024 * 1024);
        let sent = send(&mut reactor, id, &bytes).unwrap();
        assert!(sent > 0 && sent < bytes.len(), "{sent}");
        assert_eq!(reactor.connection(id).unwrap().queued(), bytes.len() - sent);
        // Nothing is sent before what is queued.
        assert_eq!(send(&mut reactor, id, b"more").unwrap(), 0);
        let total = bytes.len() + 4;
        let received = run_with(&mut reactor, move || {
            let mut received = vec![0; total];
            theirs.read_exact(&mut received).unwrap();
            received
        });
        assert!(received[..bytes.len()] == bytes && received.ends_with(b"more"));
        assert!(!log.is_empty(), "progress was reported");
        assert!(log.entries().iter().all(|entry| entry.starts_with("writable")), "{log:?}");
        run_until(&mut reactor, |_| log.entries().last().is_some_and(|last| last == "writable 0"));
        log.take();
        assert_eq!(activity(&mut reactor, &log).1, 0, "an empty queue is not reported: {log:?}");
        assert_eq!(reactor.queued(), 0);
    }

    fn pieces_are_sent_together_and_kept_from_where_the_socket_was_full(on: On) {
        let (mut reactor, _, id, mut theirs) = pair(on);
        let pieces: Vec<Vec<u8>> = (0..200).map(|piece| vec![piece as u8; 10_000]).collect();
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let kept = RefCell::new(Vec::new());
        let sent = reactor.connection(id).unwrap().send_or_keep(&slices, |index, sent| {
            kept.borrow_mut().push((index, sent));
            Bytes::copy_from_slice(&pieces[index][sent..])
        });
        let (sent, kept) = (sent.unwrap(), kept.into_inner());
        assert_eq!(kept[0], (sent / 10_000, sent % 10_000));
        assert!(kept[1..].iter().all(|(_, sent)| *sent == 0) && kept.last().unwrap().0 == 199, "{kept:?}");
        let all = pieces.concat();
        let received = run_with(&mut reactor, move || {
            let mut received = vec![0; 2_000_000];
            theirs.read_exact(&mut received).unwrap();
            received
        });
        assert!(received == all);
    }

    fn the_error_of_a_send_is_the_callers(on: On) {
        let (mut reactor, log, id, theirs) = pair(on);
        drop(theirs);
        assert_eq!(send(&mut reactor, id, b"lost").unwrap_err().kind(), ErrorKind::BrokenPipe);
        poll(&mut reactor);
        assert!(log.is_empty(), "{log:?}");
        assert_eq!(reactor.connection_count(), 1, "the caller decides");
        assert_eq!(reactor.queued(), 0);
    }

    fn a_queue_that_cannot_be_sent_is_dropped_with_the_systems_error(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        send(&mut reactor, id, &pattern(4 * 1024 * 1024)).unwrap();
        assert!(reactor.connection(id).unwrap().take_send_error().is_none());
        theirs.write_all(b"last words").unwrap();
        drop(theirs);
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(log.take(), ["writable 0"]);
        let error = reactor.connection(id).unwrap().take_send_error().unwrap();
        assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
        assert!(reactor.connection(id).unwrap().take_send_error().is_none());
        assert_eq!(reactor.queued(), 0);
        assert_eq!(activity(&mut reactor, &log).1, 0, "{log:?}");
        // What came before it is still there.
        assert_eq!(receive(&mut reactor, id, 100).unwrap(), b"last words");
    }

    fn the_queue_has_no_limits(on: On) {
        let marks = WaterMarks { low: 1, high: 2, most: 3 };
        let builder = on.builder().water_marks(marks).limit(Limit::WriteStall, Some(Duration::from_millis(1)));
        let (mut reactor, log, id, mut theirs) = pair_on(on.build(builder));
        let bytes = pattern(4 * 1024 * 1024);
        send(&mut reactor, id, &bytes).unwrap();
        let waited = Rc::new(Cell::new(false));
        let done = waited.clone();
        reactor.after(Duration::from_millis(30), move |_| done.set(true));
        run_until(&mut reactor, |_| waited.get());
        assert!(log.is_empty(), "{log:?}");
        let len = bytes.len();
        let received = run_with(&mut reactor, move || {
            let mut received = vec![0; len];
            theirs.read_exact(&mut received).unwrap();
            received
        });
        assert!(received == bytes);
    }

    fn bytes_wait_for_room_on_request(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        let mut io = reactor.connection(id).unwrap();
        io.send_when_writable(Bytes::from_static(b"later")).unwrap();
        io.send_when_writable(Bytes::from_static(b", still")).unwrap();
        assert_eq!(io.queued(), 12);
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(log.take(), ["writable 0"]);
        let mut received = [0; 12];
        theirs.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"later, still");
        assert_eq!(activity(&mut reactor, &log).1, 0, "{log:?}");
    }

    fn room_is_reported_on_request(on: On) {
        let (mut reactor, log, id, _theirs) = pair(on);
        reactor.connection(id).unwrap().report_room(true).unwrap();
        run_until(&mut reactor, |_| log.len() >= 3);
        reactor.connection(id).unwrap().report_room(false).unwrap();
        log.take();
        assert_eq!(activity(&mut reactor, &log).1, 0, "{log:?}");
    }

    fn a_dropped_queue_leaves_nothing_to_do(on: On) {
        let (mut reactor, log, id, mut theirs) = pair(on);
        let bytes = pattern(4 * 1024 * 1024);
        let sent = send(&mut reactor, id, &bytes).unwrap();
        reactor.connection(id).unwrap().drop_queued().unwrap();
        assert_eq!((reactor.queued(), reactor.connection(id).unwrap().queued()), (0, 0));
        let mut received = vec![0; sent];
        theirs.read_exact(&mut received).unwrap();
        assert_eq!(activity(&mut reactor, &log).1, 0, "{log:?}");
        assert_eq!(send(&mut reactor, id, b"next").unwrap(), 4);
        theirs.read_exact(&mut received[..4]).unwrap();
        assert_eq!(&received[..4], b"next");
    }

    fn a_released_connection_is_gone_at_once(on: On) {
        let mut reactor = on.reactor();
        let log = Log::default();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = Arc::new(ours);
        // The descriptor is free for the next connection, without a turn in between.
        for _ in 0..3 {
            let id = reactor.adopt_manual(Socket::borrowed_socket(ours.clone()), Manual::new(&log)).unwrap();
            resume(&mut reactor, id);
            send(&mut reactor, id, &pattern(4 * 1024 * 1024)).unwrap();
            theirs.write_all(b"unread").unwrap();
            assert!(reactor.release_connection(id));
            assert_eq!(log.take(), ["closed: Local"]);
            assert!(reactor.connection(id).is_none() && !reactor.release_connection(id));
            assert_eq!(Arc::strong_count(&ours), 1);
        }
        assert_eq!(activity(&mut reactor, &log).1, 0, "{log:?}");
        assert_eq!((reactor.connection_count(), reactor.queued()), (0, 0));
    }

    fn a_connection_released_in_its_own_callback_ends_after_it(on: On) {
        let (mut reactor, log, id, mut theirs) = pair_with(on.reactor(), |manual| {
            manual.readable = Some(Box::new(|io| {
                let id = io.id();
                assert!(io.reactor().release_connection(id));
                assert!(io.reactor().release_connection(id), "it is still there");
            }));
        });
        resume(&mut reactor, id);
        theirs.write_all(b"x").unwrap();
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        assert_eq!(log.take(), ["readable", "closed: Local"]);
    }

    fn a_released_connection_that_has_failed_reports_the_failure_once(on: On) {
        let (mut reactor, log, id, _theirs) = pair(on);
        reactor.connection(id).unwrap().close_with(Reason::Overflow);
        assert!(log.is_empty());
        assert!(reactor.release_connection(id));
        assert_eq!(log.take(), ["closed: Overflow"]);
        poll(&mut reactor);
        assert!(log.is_empty(), "{log:?}");
    }

    fn a_manual_connection_gets_no_layers(on: On) {
        struct Nothing;

        impl Layer for Nothing {
            fn receive(&mut self, _: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
                Ok(input.len())
            }

            fn send(&mut self, _: &mut LayerIo<'_>, _: &[IoSlice<'_>]) -> Result<usize, Reason> {
                Ok(0)
            }
        }

        let (mut reactor, log, id, _theirs) = pair(on);
        reactor.connection(id).unwrap().push_layer(Nothing);
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        assert!(log.entries()[0].contains("a manual connection cannot have layers"), "{log:?}");
    }

    fn sends_in_the_callback_are_written_after_it(on: On) {
        let (mut reactor, log, id, mut theirs) = pair_with(on.reactor(), |manual| {
            manual.readable = Some(Box::new(|io| {
                receive_by(io, 10).unwrap();
                io.send(b"one ").unwrap();
                io.send(b"two").unwrap();
                io.close_after_writing();
            }));
        });
        resume(&mut reactor, id);
        theirs.write_all(b"x").unwrap();
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        assert_eq!(log.take(), ["readable", "closed: Local"]);
        let mut received = String::new();
        theirs.read_to_string(&mut received).unwrap();
        assert_eq!(received, "one two");
    }

    fn half_closing_is_immediate(on: On) {
        let (mut reactor, _, id, mut theirs) = pair(on);
        send(&mut reactor, id, b"all").unwrap();
        reactor.connection(id).unwrap().finish_now().unwrap();
        let mut received = String::new();
        theirs.read_to_string(&mut received).unwrap();
        assert_eq!(received, "all");
        assert_eq!(send(&mut reactor, id, b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}

type Act = Box<dyn FnMut(&mut Io<'_>)>;

/// Logs what happens, and acts when there is input.
struct Manual {
    log: Log,
    readable: Option<Act>,
}

impl Manual {
    fn new(log: &Log) -> Manual {
        Manual { log: log.clone(), readable: None }
    }
}

impl Connection for Manual {
    fn opened(&mut self, _: &mut Io<'_>) {
        self.log.add("opened");
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.log.received(&chunk);
    }

    fn readable(&mut self, io: &mut Io<'_>) {
        self.log.add("readable");
        if let Some(act) = &mut self.readable {
            act(io);
        }
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        let queued = io.queued();
        self.log.add(format!("writable {queued}"));
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason:?}"));
    }
}

fn pair(on: On) -> (EventLoop, Log, ConnectionId, UnixStream) {
    pair_on(on.reactor())
}

fn pair_on(reactor: EventLoop) -> (EventLoop, Log, ConnectionId, UnixStream) {
    pair_with(reactor, |_| {})
}

fn pair_with(mut reactor: EventLoop, change: impl FnOnce(&mut Manual)) -> (EventLoop, Log, ConnectionId, UnixStream) {
    let log = Log::default();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut manual = Manual::new(&log);
    change(&mut manual);
    let id = reactor.adopt_manual(ours, manual).unwrap();
    (reactor, log, id, theirs)
}

fn resume(reactor: &mut EventLoop, id: ConnectionId) {
    reactor.connection(id).unwrap().resume();
}

fn receive_by(io: &mut Io<'_>, most: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; most];
    let count = io.receive_into(&mut [Space::from(&mut buffer[..])])?;
    buffer.truncate(count);
    Ok(buffer)
}

fn receive(reactor: &mut EventLoop, id: ConnectionId, most: usize) -> io::Result<Vec<u8>> {
    receive_by(&mut reactor.connection(id).unwrap(), most)
}

fn send(reactor: &mut EventLoop, id: ConnectionId, bytes: &[u8]) -> io::Result<usize> {
    let mut io = reactor.connection(id).unwrap();
    io.send_or_keep(&[IoSlice::new(bytes)], |_, sent| Bytes::copy_from_slice(&bytes[sent..]))
}
