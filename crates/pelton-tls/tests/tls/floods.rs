//! Many handshakes at once.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use pelton_testing::{On, dial, on_every_engine, run_until, run_with};

use super::*;

on_every_engine![a_flood_of_handshakes_does_not_delay_established_connections];

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
