//! Endings, alerts, and peers that misbehave.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pelton_testing::{on_every_network, run_until};

use super::*;

on_every_network![
    a_stream_without_a_closing_message_is_truncated,
    truncation_can_be_tolerated,
    a_handshake_that_is_cut_anywhere_is_noticed,
    garbage_instead_of_a_handshake_is_rejected,
    garbage_after_the_handshake_is_rejected,
    what_was_received_before_garbage_is_delivered,
    a_closing_message_is_sent,
    a_check_decides_with_the_reactor_at_hand,
    a_check_that_panics_ends_its_connection,
    a_client_without_a_certificate_is_refused_where_one_is_required,
];

fn a_stream_without_a_closing_message_is_truncated(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::logging(&log));
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        exchange(&mut stream, b"half of it");
        stream.get_mut().finish();
        read_out(stream.get_mut());
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received half of it", "closed: the stream was truncated"]);
}

fn truncation_can_be_tolerated(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server().tolerate_truncation().build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        exchange(&mut stream, b"all of it");
        stream.get_mut().finish();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it sends a closing message itself");
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received all of it", "peer finished", "closed: finished by the other side"]);
}

/// The first message of a client.
fn hello() -> Vec<u8> {
    struct Keeps(Vec<u8>);
    impl Read for Keeps {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }
    impl Write for Keeps {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let connector = SslConnector::builder(SslMethod::tls()).unwrap().build();
    let ssl = connector.configure().unwrap().into_ssl("localhost").unwrap();
    let mut stream = SslStream::new(ssl, Keeps(Vec::new())).unwrap();
    stream.connect().unwrap_err();
    stream.get_ref().0.clone()
}

fn a_handshake_that_is_cut_anywhere_is_noticed(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::logging(&log));
    let hello = hello();
    for cut in (0..hello.len()).step_by(23).chain([1, 4, 5, 6, hello.len() - 1, hello.len()]) {
        let part = hello[..cut].to_vec();
        with_peer(&mut reactor, on, &address, move |mut peer| {
            peer.write_all(&part).unwrap();
            peer.finish();
            read_out(&mut peer);
        });
        run_out(&mut reactor);
        let expected = "closed: TLS handshake: the peer has closed the connection";
        assert_eq!(log.take(), [expected], "after {cut} bytes");
    }
}

fn garbage_instead_of_a_handshake_is_rejected(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::logging(&log));
    for garbage in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 100], &[22, 3, 1, 255, 255, 1, 2, 3]] {
        with_peer(&mut reactor, on, &address, move |mut peer| {
            peer.write_all(garbage).unwrap();
            peer.finish();
            read_out(&mut peer);
        });
        run_out(&mut reactor);
        let log = log.take();
        assert!(log.len() == 1 && log[0].starts_with("closed: TLS handshake: "), "{log:?}");
    }
}

fn garbage_after_the_handshake_is_rejected(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::logging(&log));
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        exchange(&mut stream, b"ping");
        stream
            .get_mut()
            .write_all(&[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
            .unwrap();
        // It says so, with an alert.
        assert!(!read_out(stream.get_mut()).is_empty());
    });
    run_out(&mut reactor);
    let log = log.take();
    assert_eq!(log[..2], ["opened", "received ping"]);
    assert!(log[2].starts_with("closed: TLS: "), "{log:?}");
}

fn what_was_received_before_garbage_is_delivered(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::logging(&log));
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        stream.write_all(b"last words").unwrap();
        stream.get_mut().write_all(b"garbage").unwrap();
        read_out(stream.get_mut());
    });
    run_out(&mut reactor);
    let log = log.take();
    assert_eq!(log[..2], ["opened", "received last words"]);
    assert!(log[2].starts_with("closed: TLS: "), "{log:?}");
}

fn a_closing_message_is_sent(on: impl Network) {
    struct Finishes;
    impl Connection for Finishes {
        fn opened(&mut self, io: &mut Io<'_>) {
            io.send(b"bye").unwrap();
            io.close_after_writing();
        }
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
    }
    let mut reactor = on.reactor();
    let tls = server().build().unwrap();
    let address = listen(&mut reactor, move |_| wrap(&tls, Finishes));
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer);
        let mut all = Vec::new();
        // Without the message this is an error.
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"bye");
    });
    run_out(&mut reactor);
}

fn a_check_decides_with_the_reactor_at_hand(on: impl Network) {
    for accepts in [true, false] {
        let (mut reactor, log) = (on.reactor(), Log::default());
        let address = serve(&mut reactor, &server().build().unwrap(), Recorder::default());
        let client = Config::client().check_certificates(move |reactor, certificate| {
            assert_eq!(certificate.to_pem().unwrap(), LOCALHOST.chain);
            *reactor.state::<usize>() += 1;
            accepts
        });
        let layer = client.build().unwrap().layer().unwrap();
        let handler = Layered::new(Recorder::logging(&log), |io| io.push_layer(layer));
        let id = reactor.connect(&address, handler).unwrap();
        run_until(&mut reactor, |_| !log.is_empty());
        reactor.end(id);
        run_out(&mut reactor);
        assert_eq!(*reactor.state::<usize>(), 1, "each certificate is checked once");
        let first = &log.take()[0];
        assert!(if accepts { first == "opened" } else { first.starts_with("closed: TLS handshake: ") }, "{first}");
    }
}

fn a_check_that_panics_ends_its_connection(on: impl Network) {
    let (mut reactor, log) = (on.catching(), Log::default());
    let address = serve(&mut reactor, &server().build().unwrap(), Recorder::default());
    let client = Config::client().check_certificates(|_, _| panic!("in the check")).build().unwrap();
    let layer = client.layer().unwrap();
    let handler = Layered::new(Recorder::logging(&log), |io| io.push_layer(layer));
    reactor.connect(&address, handler).unwrap();
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: its handler panicked"]);
}

fn a_client_without_a_certificate_is_refused_where_one_is_required(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let tls = server().check_certificates(|_, _| panic!("there is none")).require_certificate().build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::logging(&log));
    with_peer(&mut reactor, on, &address, |peer| {
        // With TLS 1.3 the client is content before the server is.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut stream = blocking_client(peer);
            read_out(&mut stream);
        }));
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["closed: TLS handshake: peer did not return a certificate"]);
}
