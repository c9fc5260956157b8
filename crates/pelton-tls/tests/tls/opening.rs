//! Handshakes and bytes.

use std::io::{Read, Write};

use pelton_testing::{Log, Network, Peer, block_on, on_every_network, pattern, run_until};
use pelton_tls::MinVersion;
use pelton_tls::rustls::ClientConnection;
use pelton_tls::rustls::pki_types::ServerName;

use super::*;

on_every_network![
    a_blocking_client_is_served,
    a_blocking_server_is_connected_to,
    both_sides_on_one_loop_understand_each_other,
    large_amounts_pass_in_both_directions,
    a_handshake_may_be_split_at_every_place,
    single_bytes_arrive,
    records_of_every_size_arrive,
    a_version_1_2_client_is_served,
    an_async_stream_speaks_tls,
];

fn a_blocking_client_is_served(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let address = serve(&mut reactor, &server(), Recorder { greeting: b"welcome", ..Recorder::logging(&log) });
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        let mut greeting = [0; 7];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"welcome");
        assert_eq!(exchange(&mut stream, b"some water"), b"some water");
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        // It answers with a closing message: without one this is an error.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received some water", "peer finished", "closed: finished by the other side"]);
}

fn a_blocking_server_is_connected_to(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let listener = on.listen_peer();
    let handler = Recorder { greeting: b"hello", quiet: true, ..Recorder::logging(&log) };
    let handler = client().wrap("localhost", handler).unwrap();
    reactor.connect(&listener.address(), handler).unwrap();
    pelton_testing::run_with(&mut reactor, move || {
        let mut stream = blocking_server(listener.accept(), &LOCALHOST);
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        stream.write_all(b"welcome").unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received welcome", "peer finished", "closed: finished by the other side"]);
}

fn both_sides_on_one_loop_understand_each_other(on: impl Network) {
    let (mut reactor, log, served) = (on.reactor(), Log::default(), Log::default());
    let (server, client) = (server(), client());
    let address = serve(&mut reactor, &server, Recorder::logging(&served));
    let handler = Recorder { greeting: b"water", quiet: true, finishes_after: b"water", ..Recorder::logging(&log) };
    reactor.connect(&address, client.wrap("localhost", handler).unwrap()).unwrap();
    run_until(&mut reactor, |_| log.entries().len() == 4);
    run_out(&mut reactor);
    assert_eq!(log.take(), ["opened", "received water", "peer finished", "closed: finished by the other side"]);
    assert_eq!(served.take(), ["opened", "received water", "peer finished", "closed: finished by the other side"]);
    assert_eq!((server.stats().completed, client.stats().completed), (1, 1));
    assert_eq!((server.stats().in_flight, server.stats().all_failed()), (0, 0));
}

fn large_amounts_pass_in_both_directions(on: impl Network) {
    let mut reactor = on.reactor();
    let address = serve(&mut reactor, &server(), Recorder::default());
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        let data = pattern(700_000);
        // Not more at once than both sides can hold.
        for part in data.chunks(100_000) {
            assert!(exchange(&mut stream, part) == part);
        }
    });
    run_out(&mut reactor);
}

/// Passes everything that a blocking client sends through a function that may split it.
struct Splitting<F> {
    peer: Peer,
    split: F,
}

impl<F: FnMut(&mut Peer, &[u8])> Write for Splitting<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.split)(&mut self.peer, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<F> Read for Splitting<F> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.peer.read(buffer)
    }
}

fn connection() -> ClientConnection {
    ClientConnection::new(blocking_config().into(), ServerName::try_from("localhost").unwrap()).unwrap()
}

fn a_handshake_may_be_split_at_every_place(on: impl Network) {
    let mut reactor = on.reactor();
    let address = serve(&mut reactor, &server(), Recorder::default());
    // The client hello has about 250 bytes, and the rest of the flight about 80.
    let flight = with_peer(&mut reactor, on, &address, |peer| {
        let mut total = 0;
        let split = |peer: &mut Peer, bytes: &[u8]| {
            total += bytes.len();
            peer.write_all(bytes).unwrap();
        };
        let mut stream = StreamOwned::new(connection(), Splitting { peer, split });
        exchange(&mut stream, b"all of it");
        drop(stream);
        total
    });
    assert!((250..1_000).contains(&flight), "{flight} bytes");
    // Many at once: a second small write waits for the acknowledgement of the first.
    let places: Vec<usize> = (1..flight).collect();
    for places in places.chunks(32) {
        let (places, address) = (places.to_vec(), address.clone());
        pelton_testing::run_with(&mut reactor, move || {
            let split_at = |place: usize| {
                let (peer, mut sent) = (on.connect_peer(&address), 0);
                std::thread::spawn(move || {
                    let split = |peer: &mut Peer, bytes: &[u8]| {
                        let (first, second) = bytes.split_at((place - sent.min(place)).min(bytes.len()));
                        sent += bytes.len();
                        peer.write_all(first).unwrap();
                        // So that the first part is likely to be processed alone.
                        std::thread::sleep(std::time::Duration::from_micros(if second.is_empty() { 0 } else { 300 }));
                        peer.write_all(second).unwrap();
                    };
                    let mut stream = StreamOwned::new(connection(), Splitting { peer, split });
                    assert_eq!(exchange(&mut stream, b"split"), b"split", "at {place}");
                })
            };
            let clients: Vec<_> = places.into_iter().map(split_at).collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }
    run_out(&mut reactor);
}

fn single_bytes_arrive(on: impl Network) {
    let mut reactor = on.reactor();
    let address = serve(&mut reactor, &server(), Recorder::default());
    with_peer(&mut reactor, on, &address, |peer| {
        let split = |peer: &mut Peer, bytes: &[u8]| bytes.chunks(1).for_each(|byte| peer.write_all(byte).unwrap());
        let mut stream = StreamOwned::new(connection(), Splitting { peer, split });
        let data = pattern(300);
        assert_eq!(exchange(&mut stream, &data), data);
    });
    run_out(&mut reactor);
}

fn records_of_every_size_arrive(on: impl Network) {
    let mut reactor = on.reactor();
    let address = serve(&mut reactor, &server(), Recorder::default());
    with_peer(&mut reactor, on, &address, |peer| {
        let mut stream = blocking_client(peer, blocking_config());
        for size in (0..40).chain([1_000, 4_031, 4_032, 4_033, 16_383, 16_384, 16_385, 40_000]) {
            let data = pattern(size);
            assert!(exchange(&mut stream, &data) == data, "{size} bytes");
        }
    });
    // Handshake messages in fragments, of which several make one message.
    for size in [32, 33, 64, 100, 1_000] {
        with_peer(&mut reactor, on, &address, move |peer| {
            let mut config = blocking_config();
            config.max_fragment_size = Some(size);
            let mut stream = blocking_client(peer, config);
            let data = pattern(5_000);
            assert!(exchange(&mut stream, &data) == data, "fragments of {size} bytes");
        });
    }
    run_out(&mut reactor);
}

fn a_version_1_2_client_is_served(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let address = serve(&mut reactor, &server(), Recorder::logging(&log));
    let newest = server_builder().min_version(MinVersion::Tls13).build().unwrap();
    let newest = serve(&mut reactor, &newest, Recorder::logging(&log));
    let config = || {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&AUTHORITY.pem).unwrap()).unwrap();
        ClientConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(&[&pelton_tls::rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    };
    with_client(&mut reactor, on, &address, config(), |mut stream| {
        let data = pattern(100_000);
        assert!(exchange(&mut stream, &data) == data);
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    run_out(&mut reactor);
    assert_eq!(log.take().last().unwrap(), "closed: finished by the other side");
    with_client(&mut reactor, on, &newest, config(), |mut stream| {
        let error = stream.read(&mut [0]).unwrap_err();
        assert!(error.to_string().contains("ProtocolVersion"), "{error}");
    });
    run_out(&mut reactor);
    let reason = log.take().pop().unwrap();
    assert!(reason.ends_with("; sent the alert protocol_version"), "{reason}");
}

fn an_async_stream_speaks_tls(on: impl Network) {
    use futures::{AsyncReadExt, AsyncWriteExt};
    use pelton_tls::StartTlsStream;
    let mut reactor = on.reactor();
    let address = serve(&mut reactor, &server(), Recorder::default());
    let client = client();
    let data = pattern(200_000);
    let back = block_on(&mut reactor, async {
        let stream = pelton::net::Stream::connect(&address).await.unwrap();
        stream.start_tls(client.layer("localhost").unwrap()).await.unwrap();
        let info = stream.with_io(pelton_tls::info).unwrap().unwrap();
        assert!(!info.resumed && info.peer_names() == ["localhost"]);
        let (mut read, mut write) = (&stream, &stream);
        let sending = async {
            write.write_all(&data).await.unwrap();
            write.close().await.unwrap();
        };
        let mut back = Vec::new();
        let (read, ()) = futures::join!(read.read_to_end(&mut back), sending);
        read.unwrap();
        back
    });
    assert!(back == data);
    run_out(&mut reactor);
}
