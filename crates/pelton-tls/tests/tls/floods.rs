//! Many handshakes at once.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use pelton_testing::{On, dial, on_every_engine, run_until, run_with};

use pelton_tls::ClientCertificates;

use super::*;

on_every_engine![
    a_flood_of_handshakes_does_not_delay_established_connections,
    hellos_whose_first_byte_came_long_ago_are_computed_a_few_at_a_time,
    second_hellos_are_computed_a_few_at_a_time,
    certificates_of_clients_are_verified_a_few_at_a_time,
];

/// Clients that have sent their hello, and wait for the answer.
fn flood(address: &Address, count: usize) -> Vec<TcpStream> {
    let config: Arc<ClientConfig> = blocking_config().into();
    let clients = (0..count).map(|_| {
        let name = ServerName::try_from("localhost").unwrap();
        let mut hello = Vec::new();
        ClientConnection::new(config.clone(), name).unwrap().write_tls(&mut hello).unwrap();
        let mut stream = dial(address);
        stream.write_all(&hello).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    });
    clients.collect()
}

fn a_flood_of_handshakes_does_not_delay_established_connections(on: On) {
    const FLOOD: usize = 100;
    let mut reactor = on.reactor();
    let tls = server();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let dialled = address.clone();
    let mut admitted = run_with(&mut reactor, move || {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(blocking_config().into(), name).unwrap();
        let mut stream = StreamOwned::new(session, dial(&dialled));
        exchange(&mut stream, b"before");
        stream
    });
    admitted.sock.set_nonblocking(true).unwrap();
    let clients = flood(&address, FLOOD);
    // Each turn accepts some, and none of them has got anything yet.
    let answered = || clients.iter().filter(|client| client.peek(&mut [0]).is_ok()).count();
    let (mut exchanges, mut turns) = (0, 0);
    while answered() < FLOOD {
        admitted.write_all(b"ping").unwrap();
        let (before, mut waited) = (answered(), 0);
        let mut pong = [0; 4];
        loop {
            reactor.turn(Some(Duration::ZERO)).unwrap();
            (turns, waited) = (turns + 1, waited + 1);
            match admitted.read(&mut pong) {
                Ok(4) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => assert!(waited < 20, "no answer"),
                other => panic!("{other:?}"),
            }
        }
        // A few turns' worth of the flood, at most.
        let meanwhile = answered() - before;
        assert!(meanwhile <= 8 * (waited + 1), "{meanwhile} handshakes in {waited} turns");
        exchanges += 1;
    }
    assert!(exchanges >= FLOOD / 8 / 4, "{exchanges} exchanges in {turns} turns");
    drop((clients, admitted));
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(tls.stats().in_flight, 0);
}

/// How many clients hold something back until all are ready.
const CROWD: usize = 60;

type Waiting = (ClientConnection, TcpStream);

fn crowd(address: &Address, config: ClientConfig) -> Vec<Waiting> {
    let config = Arc::new(config);
    let client = |_| {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = dial(address);
        stream.set_nonblocking(true).unwrap();
        (ClientConnection::new(config.clone(), name).unwrap(), stream)
    };
    (0..CROWD).map(client).collect()
}

/// Lets every client process what it has received, until it has something more to send.
fn receive_all(reactor: &mut EventLoop, clients: &mut [Waiting]) {
    run_until(reactor, |_| {
        for (session, stream) in clients.iter_mut().filter(|(session, _)| !session.wants_write()) {
            while session.read_tls(stream).is_ok_and(|count| count > 0) {
                session.process_new_packets().unwrap();
            }
        }
        clients.iter().all(|(session, _)| session.wants_write())
    });
}

fn send_all(clients: &mut [Waiting]) {
    for (session, stream) in clients {
        while session.wants_write() {
            session.write_tls(stream).unwrap();
        }
    }
}

/// Turns the loop until all clients are answered, and checks that they are not answered all at once.
fn answered_a_few_at_a_time(reactor: &mut EventLoop, clients: &[Waiting]) {
    let answered = || clients.iter().filter(|(_, stream)| stream.peek(&mut [0]).is_ok()).count();
    assert_eq!(answered(), 0);
    let (mut before, deadline) = (0, std::time::Instant::now() + Duration::from_secs(60));
    while before < CROWD {
        reactor.turn(Some(Duration::ZERO)).unwrap();
        let now = answered();
        // Eight that were woken, and eight that came when nobody waited.
        assert!(now - before <= 16, "{} answers in one turn", now - before);
        assert!(std::time::Instant::now() < deadline, "only {now} were answered");
        before = now;
    }
}

fn hellos_whose_first_byte_came_long_ago_are_computed_a_few_at_a_time(on: On) {
    let mut reactor = on.reactor();
    let tls = server();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let mut clients = crowd(&address, blocking_config());
    let hellos: Vec<Vec<u8>> = clients
        .iter_mut()
        .map(|(session, stream)| {
            let mut hello = Vec::new();
            session.write_tls(&mut hello).unwrap();
            stream.write_all(&hello[..1]).unwrap();
            hello
        })
        .collect();
    run_until(&mut reactor, |_| tls.stats().in_flight == CROWD);
    for _ in 0..CROWD {
        // The first bytes arrive.
        reactor.turn(Some(Duration::ZERO)).unwrap();
    }
    for ((_, stream), hello) in clients.iter_mut().zip(&hellos) {
        stream.write_all(&hello[1..]).unwrap();
    }
    answered_a_few_at_a_time(&mut reactor, &clients);
}

fn second_hellos_are_computed_a_few_at_a_time(on: On) {
    let mut reactor = on.reactor();
    // The client guesses another group for the key exchange.
    let groups = vec![pelton_tls::rustls::crypto::ring::kx_group::SECP256R1];
    let provider = pelton_tls::rustls::crypto::CryptoProvider { kx_groups: groups, ..default_provider() };
    let tls = server_builder().provider(provider).build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let mut clients = crowd(&address, blocking_config());
    send_all(&mut clients);
    receive_all(&mut reactor, &mut clients);
    send_all(&mut clients);
    answered_a_few_at_a_time(&mut reactor, &clients);
}

fn certificates_of_clients_are_verified_a_few_at_a_time(on: On) {
    let mut reactor = on.reactor();
    let tls = server_builder().client_certificates(&AUTHORITY.pem[..], ClientCertificates::Required).build().unwrap();
    let address = serve(&mut reactor, &tls, Recorder::default());
    let alice = AUTHORITY.issue(&["alice.example"]);
    let mut clients = crowd(&address, agreement::with_certificate(&alice));
    send_all(&mut clients);
    receive_all(&mut reactor, &mut clients);
    send_all(&mut clients);
    answered_a_few_at_a_time(&mut reactor, &clients);
    run_until(&mut reactor, |_| tls.stats().completed == CROWD as u64);
}
