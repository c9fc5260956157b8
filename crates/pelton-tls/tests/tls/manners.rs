//! Endings, alerts, limits, and peers that misbehave.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pelton::{ConnectionId, Layered, Limit, WaterMarks};
use pelton_testing::{Log, Network, Peer, listen, on_every_network, pattern, poll, run_until, run_with};
use pelton_tls::rustls::pki_types::ServerName;
use pelton_tls::{Failure, TlsError};

use super::*;

on_every_network![
    a_stream_without_a_closing_message_is_truncated,
    truncation_can_be_tolerated,
    a_cut_record_is_truncated_even_if_truncation_is_tolerated,
    the_closing_message_is_sent_on_finish_and_the_other_direction_stays_open,
    what_follows_the_closing_message_is_ignored,
    an_alert_of_the_peer_is_a_readable_reason,
    plain_http_is_a_clear_reason,
    garbage_instead_of_a_hello_is_rejected_with_an_alert,
    garbage_instead_of_a_record_is_rejected_with_an_alert,
    a_record_that_was_changed_is_rejected,
    data_before_an_error_is_delivered,
    a_slow_handshake_has_a_limit,
    a_peer_that_leaves_during_the_handshake_is_noticed,
    a_peer_that_resets_during_the_handshake_is_noticed,
    handshakes_beyond_the_bound_are_refused,
    a_flood_of_handshakes_is_served,
    the_first_records_are_small,
    water_marks_pause_and_resume_a_sender,
    what_is_queued_counts_as_plain_bytes,
    water_marks_count_plain_bytes,
    a_large_message_of_the_handshake_is_refused,
];

fn a_stream_without_a_closing_message_is_truncated(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"half of it");
        stream.sock.finish();
        // The other side closes as well, after an error or not.
        while matches!(stream.sock.read(&mut [0; 100]), Ok(count) if count > 0) {}
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received half of it", "closed: the stream was truncated"]);
}

fn truncation_can_be_tolerated(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server_builder().tolerate_truncation().build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"all of it");
        stream.sock.finish();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it sends a closing message itself");
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received all of it", "peer finished", "closed: finished by the other side"]);
}

/// Takes what a session wants to send instead of sending it.
fn sealed(connection: &mut ClientConnection, plain: &[u8]) -> Vec<u8> {
    connection.writer().write_all(plain).unwrap();
    let mut records = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut records).unwrap();
    }
    records
}

/// Reads until the other side ends or resets.
fn read_out(peer: &mut Peer) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = peer.read_to_end(&mut all);
    all
}

fn a_cut_record_is_truncated_even_if_truncation_is_tolerated(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server_builder().tolerate_truncation().build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"ping");
        let record = sealed(&mut stream.conn, b"water");
        stream.sock.write_all(&record[..record.len() - 1]).unwrap();
        stream.sock.finish();
        read_out(&mut stream.sock);
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received ping", "closed: the stream was truncated"]);
}

/// Answers when the peer has finished.
struct Late;

impl Connection for Late {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        io.send(&pattern(100_000)).unwrap();
        io.close_after_writing();
    }
}

fn the_closing_message_is_sent_on_finish_and_the_other_direction_stays_open(on: impl Network) {
    let mut reactor = on.reactor();
    let tls = server();
    let address = listen(&mut reactor, move |_| tls.wrap(Late));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        stream.write_all(b"question").unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        let mut answer = Vec::new();
        // Without a closing message, this is an error.
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer == pattern(100_000));
    });
    run_out(&mut reactor);
    // The same with a client on the loop.
    let (log, collected) = (Log::default(), Rc::new(RefCell::new(Vec::new())));
    struct Asks(Log, Rc<RefCell<Vec<u8>>>);
    impl Connection for Asks {
        fn opened(&mut self, io: &mut Io<'_>) {
            io.send(b"question").unwrap();
            io.finish();
        }
        fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
            self.1.borrow_mut().extend_from_slice(&chunk);
        }
        fn closed(&mut self, _: &mut Reactor, reason: Reason) {
            self.0.add(format!("{reason}"));
        }
    }
    let handler = client().wrap("localhost", Asks(log.clone(), collected.clone())).unwrap();
    reactor.connect(&address, handler).unwrap();
    run_out(&mut reactor);
    assert_eq!(log.take(), ["finished by the other side"]);
    assert!(*collected.borrow() == pattern(100_000));
}

fn what_follows_the_closing_message_is_ignored(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"ping");
        stream.conn.send_close_notify();
        let mut records = sealed(&mut stream.conn, b"");
        records.extend_from_slice(b"rubbish of no meaning");
        stream.sock.write_all(&records).unwrap();
        read_out(&mut stream.sock);
    });
    run_out(&mut reactor);
    let entries = log.take();
    assert_eq!(entries[..3], ["opened", "received ping", "peer finished"]);
}

fn an_alert_of_the_peer_is_a_readable_reason(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        // It does not know this server under this name.
        stream.conn = ClientConnection::new(blocking_config().into(), ServerName::try_from("other").unwrap()).unwrap();
        stream.write_all(b"x").unwrap_err();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: the peer sent the TLS alert bad_certificate"]);
    assert_eq!((tls.stats().failed(Failure::AlertReceived), tls.stats().in_flight), (1, 0));
}

fn plain_http_is_a_clear_reason(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    let answer = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        read_out(&mut peer)
    });
    assert_eq!(answer.first(), Some(&21), "an alert");
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: the peer does not speak TLS but plain HTTP"]);
    assert_eq!(tls.stats().failed(Failure::Protocol), 1);
    // The other way round.
    let listener = on.listen_peer();
    reactor.connect(&listener.address(), client().wrap("localhost", Recorder::logging(&log)).unwrap()).unwrap();
    run_with(&mut reactor, move || {
        let mut peer = listener.accept();
        peer.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        read_out(&mut peer);
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: the peer does not speak TLS but SSH"]);
}

fn garbage_instead_of_a_hello_is_rejected_with_an_alert(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    let hellos: [&[u8]; 6] = [
        &[0; 64],
        &[255; 64],
        // A handshake record with a message that is no hello.
        &[22, 3, 1, 0, 4, 2, 0, 0, 0],
        // A client hello that ends too early.
        &[22, 3, 1, 0, 6, 1, 0, 0, 2, 3, 3],
        // A record that is too large.
        &[22, 3, 1, 255, 255, 1, 0, 0, 0],
        // Application data.
        &[23, 3, 3, 0, 1, 0],
    ];
    for hello in hellos {
        let answer = with_peer(&mut reactor, on, &address, move |mut peer| {
            peer.write_all(hello).unwrap();
            read_out(&mut peer)
        });
        assert_eq!(answer.first(), Some(&21), "{hello:?}: an alert");
        run_out(&mut reactor);
        let [reason] = &log.take()[..] else { panic!("{hello:?}") };
        assert!(reason.starts_with("closed: TLS: "), "{reason}");
    }
}

fn garbage_instead_of_a_record_is_rejected_with_an_alert(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"ping");
        stream.sock.write_all(&pattern(1_000)).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("AlertReceived") || error.to_string().contains("fatal alert"), "{error}");
    });
    run_out(&mut reactor);
    let reason = log.take().pop().unwrap();
    assert!(reason.starts_with("closed: TLS: "), "{reason}");
}

fn a_record_that_was_changed_is_rejected(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"ping");
        let mut record = sealed(&mut stream.conn, b"pay 10");
        *record.last_mut().unwrap() ^= 1;
        stream.sock.write_all(&record).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
    });
    run_out(&mut reactor);
    let entries = log.take();
    assert_eq!(entries[..2], ["opened", "received ping"]);
    assert_eq!(entries[2], "closed: TLS: cannot decrypt peer's message; sent the alert bad_record_mac");
}

fn data_before_an_error_is_delivered(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"ping ");
        let good = sealed(&mut stream.conn, b"good");
        let mut bad = sealed(&mut stream.conn, b"bad");
        bad[10] ^= 1;
        stream.sock.write_all(&[good, bad].concat()).unwrap();
        read_out(&mut stream.sock);
    });
    run_out(&mut reactor);
    let entries = log.take();
    assert_eq!(entries[..2], ["opened", "received ping good"]);
    assert!(entries[2].ends_with("bad_record_mac"), "{entries:?}");
}

fn a_slow_handshake_has_a_limit(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let (tls, handler) = (server(), Recorder::logging(&log));
    let layer = tls.clone();
    let address = listen(&mut reactor, move |_| {
        let layer = layer.layer();
        Layered::new(handler.clone(), |io| {
            io.set_limit(Limit::Handshake, Some(Duration::from_millis(20)));
            io.push_layer(layer);
        })
    });
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(&[22, 3, 1, 0, 200, 1]).unwrap();
        read_out(&mut peer);
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: no handshake was completed within 20ms"]);
    assert_eq!((tls.stats().in_flight, tls.stats().failed(Failure::Abandoned)), (0, 1));
}

fn a_peer_that_leaves_during_the_handshake_is_noticed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    for sent in [0, 3, 6] {
        with_peer(&mut reactor, on, &address, move |mut peer| {
            peer.write_all(&[22, 3, 1, 0, 200, 1][..sent]).unwrap();
            peer.finish();
            read_out(&mut peer);
        });
        run_out(&mut reactor);
        assert_eq!(log.take(), ["closed: the peer closed the connection during the TLS handshake"]);
    }
}

fn a_peer_that_resets_during_the_handshake_is_noticed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    for _ in 0..10 {
        with_peer(&mut reactor, on, &address, |mut peer| {
            let mut connection =
                ClientConnection::new(blocking_config().into(), ServerName::try_from("localhost").unwrap()).unwrap();
            let mut hello = Vec::new();
            connection.write_tls(&mut hello).unwrap();
            peer.write_all(&hello).unwrap();
            let mut first = [0; 100];
            peer.read_exact(&mut first).unwrap();
            peer.reset();
        });
    }
    run_out(&mut reactor);
    let entries = log.take();
    assert_eq!(entries.len(), 10);
    assert!(entries.iter().all(|entry| entry == "closed: reset by the other side"), "{entries:?}");
    assert_eq!((tls.stats().in_flight, tls.stats().failed(Failure::Abandoned)), (0, 10));
}

fn handshakes_beyond_the_bound_are_refused(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server_builder().handshakes_in_flight(2).build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    // Admitted before the flood.
    let mut admitted = with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        exchange(&mut stream, b"before");
        stream
    });
    let (at, counted) = (address.clone(), tls.clone());
    let stalled = run_with(&mut reactor, move || {
        let stalled = [on.connect_peer(&at), on.connect_peer(&at)];
        pelton_testing::wait_for(|| counted.stats().in_flight == 2);
        stalled
    });
    with_peer(&mut reactor, on, &address, |mut peer| assert_eq!(read_out(&mut peer), b"", "a newcomer is refused"));
    assert_eq!(tls.stats().failed(Failure::Refused), 1);
    let mut admitted = run_with(&mut reactor, move || {
        assert_eq!(exchange(&mut admitted, b"during"), b"during");
        admitted
    });
    drop(stalled);
    run_until(&mut reactor, |_| tls.stats().in_flight == 0);
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        assert_eq!(exchange(&mut stream, b"after"), b"after");
    });
    run_with(&mut reactor, move || assert_eq!(exchange(&mut admitted, b"still"), b"still"));
    run_out(&mut reactor);
    assert!(log.take().iter().any(|entry| entry == "closed: refused: 2 TLS handshakes are in progress"));
    let reason = Reason::layer(TlsError::TooManyHandshakes { most: 2 });
    assert!(TlsError::of(&reason).is_some());
}

fn a_flood_of_handshakes_is_served(on: impl Network) {
    // More than one turn begins.
    let mut reactor = on.reactor();
    let tls = server();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let clients: Vec<_> = (0..30)
        .map(|number: u8| {
            let address = address.clone();
            std::thread::spawn(move || {
                let mut stream = blocking_client(on.connect_peer(&address), blocking_config());
                exchange(&mut stream, &[number])
            })
        })
        .collect();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| clients.iter().all(|client| client.is_finished()));
    reactor.cancel(waiting);
    for (number, client) in clients.into_iter().enumerate() {
        assert_eq!(client.join().unwrap(), [number as u8]);
    }
    run_out(&mut reactor);
    assert_eq!(tls.stats().completed, 30);
}

/// Returns the lengths of the records in a stream.
fn record_lengths(mut bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        lengths.push(length);
        bytes = &rest[length..];
    }
    lengths
}

fn the_first_records_are_small(on: impl Network) {
    let mut reactor = on.reactor();
    let tls = server();
    let address = listen(&mut reactor, move |_| tls.wrap(Late));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        stream.write_all(b"question").unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        let all = read_out(&mut stream.sock);
        let lengths = record_lengths(&all);
        let first = lengths.iter().position(|length| *length > 1_000).unwrap();
        assert!((4_000..4_200).contains(&lengths[first]), "{lengths:?}");
        assert!(lengths[first + 9] > 16_000, "{lengths:?}");
        assert!(lengths.len() < 30, "{lengths:?}");
    });
    run_out(&mut reactor);
}

/// Sends until the queue is full, and continues when it has drained.
struct Pours {
    left: usize,
    most: Rc<RefCell<usize>>,
}

impl Pours {
    fn pour(&mut self, io: &mut Io<'_>) {
        while self.left > 0 && io.queued() <= io.water_marks().high {
            let count = self.left.min(30_000);
            io.send(&vec![7; count]).unwrap();
            self.left -= count;
        }
        let most = io.queued().max(*self.most.borrow());
        *self.most.borrow_mut() = most;
        match self.left {
            0 => io.close_after_writing(),
            // If the next flush sends everything, `writable` is not called.
            _ => io.tell_when_sent(),
        }
    }
}

impl Connection for Pours {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.pour(io);
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn writable(&mut self, io: &mut Io<'_>) {
        self.pour(io);
    }

    fn sent(&mut self, io: &mut Io<'_>) {
        self.pour(io);
    }
}

fn water_marks_pause_and_resume_a_sender(on: impl Network) {
    let mut reactor = on.reactor();
    let (tls, total) = (server(), on.more_than_fits());
    let most = Rc::new(RefCell::new(0));
    let shared = most.clone();
    let address = listen(&mut reactor, move |_| tls.wrap(Pours { left: total, most: shared.clone() }));
    let mut stream = with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        stream.read_exact(&mut [0]).unwrap();
        stream
    });
    // What does not fit into the socket stays queued.
    run_until(&mut reactor, |reactor| reactor.queued() > 0);
    run_with(&mut reactor, move || {
        let mut buffer = vec![0; 100_000];
        let mut received = 1;
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                count => received += count,
            }
        }
        assert_eq!(received, total);
    });
    run_out(&mut reactor);
    assert!(*most.borrow() < 300_000, "{} bytes were queued", most.borrow());
}

fn what_is_queued_counts_as_plain_bytes(on: impl Network) {
    /// Sends many small pieces, and notes what counts as queued.
    struct Small(Log);
    impl Connection for Small {
        fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
            // The tickets may not have been sent yet. They do not count.
            assert_eq!(io.queued(), 0);
            for _ in 0..1_000 {
                io.send(b"x").unwrap();
            }
            // A record for each would be 23,000 bytes.
            self.0.add(format!("{} queued", io.queued()));
            let most = io.water_marks().most;
            assert!(io.send(&vec![7; most - 1_000 + 1]).is_err(), "one byte too many");
            io.send(&vec![7; most - 1_000]).unwrap();
            io.close_after_writing();
        }
    }
    let (mut reactor, log) = (on.reactor(), Log::default());
    let (tls, entries) = (server(), log.clone());
    let address = listen(&mut reactor, move |_| tls.wrap(Small(entries.clone())));
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        stream.write_all(b"go").unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), pelton::WaterMarks::default().most);
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["1000 queued"]);
}

fn water_marks_count_plain_bytes(on: impl Network) {
    /// Sends one byte per record, and reports when it may send more.
    struct Records(Log, Rc<Cell<Option<ConnectionId>>>);
    impl Connection for Records {
        fn opened(&mut self, io: &mut Io<'_>) {
            self.1.set(Some(io.id()));
            io.pause_sending();
            io.set_water_marks(WaterMarks { low: 10, high: 1_000, most: 2_000 });
        }

        fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
            self.0.received(&chunk);
            for _ in 0..500 {
                // Each becomes a record of 23 bytes.
                io.send_now(b"x").unwrap();
            }
        }

        fn writable(&mut self, io: &mut Io<'_>) {
            self.0.add(format!("writable, {} queued", io.queued()));
        }
    }
    let (mut reactor, log) = (on.reactor(), Log::default());
    let (tls, entries, id) = (server(), log.clone(), Rc::<Cell<_>>::default());
    let opened = id.clone();
    let address = listen(&mut reactor, move |_| tls.wrap(Records(entries.clone(), opened.clone())));
    let (says, said) = std::sync::mpsc::channel();
    let client = std::thread::spawn(move || {
        let mut stream = blocking_client(on.connect_peer(&address), blocking_config());
        for bytes in said {
            let bytes: &[u8] = bytes;
            stream.write_all(bytes).unwrap();
        }
        stream.read_exact(&mut [0; 2_000]).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    // After the second, 23,000 bytes wait in 1,000 records, and the mark of 1,000 is not exceeded.
    for (count, bytes) in [(500, b"a"), (1_000, b"b"), (1_500, b"c")] {
        says.send(bytes).unwrap();
        run_until(&mut reactor, |reactor| reactor.queued() >= count * 23);
    }
    for _ in 0..20 {
        poll(&mut reactor);
    }
    says.send(b"d").unwrap();
    for _ in 0..20 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["received abc"]);
    let mut io = reactor.connection(id.get().unwrap()).unwrap();
    assert_eq!(io.queued(), 1_500);
    io.resume_sending();
    drop(says);
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| client.is_finished());
    reactor.cancel(waiting);
    client.join().unwrap();
    run_out(&mut reactor);
    assert_eq!(log.take()[..2], ["writable, 0 queued", "received d"]);
}

fn a_large_message_of_the_handshake_is_refused(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    with_peer(&mut reactor, on, &address, |mut peer| {
        // A hello of 16 MB, of which the first 200 KB come in records of 16 KiB.
        let mut record = vec![22, 3, 1, 0x40, 0];
        record.extend_from_slice(&[1, 255, 255, 255]);
        record.resize(5 + 0x4000, 0);
        for _ in 0..12 {
            if peer.write_all(&record).is_err() {
                break;
            }
            record[5..9].fill(0);
        }
        read_out(&mut peer);
    });
    run_out(&mut reactor);
    let [reason] = &log.take()[..] else { panic!() };
    assert!(reason.contains("too large") || reason.starts_with("closed: TLS: "), "{reason}");
}
