//! The cost of a forwarded message.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use allocation_counter::measure;
use pelton::{EventLoop, Proxy, Reactor};

use super::Side;

/// A client and a server whose connections are proxied to each other.
fn proxied(reactor: &mut EventLoop) -> (TcpStream, TcpStream) {
    let back = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = back.local_addr().unwrap().into();
    let front = super::listen_once(
        reactor,
        Side::default().opened(move |io| {
            let server = io.reactor().connect(&target, Side::default()).unwrap();
            io.proxy_both(server, Proxy::new()).unwrap();
        }),
    );
    let (client, before) = (pelton_testing::dial(&front), reactor.connection_count());
    pelton_testing::run_until(reactor, |reactor| reactor.connection_count() == before + 2);
    (client, back.accept().unwrap().0)
}

#[test]
fn forwarded_messages_allocate_nothing() {
    let mut reactor = Reactor::new().unwrap();
    let (mut client, mut server) = proxied(&mut reactor);
    let mut round_trips = |count| {
        for _ in 0..count {
            client.write_all(b"ping").unwrap();
            reactor.turn(Some(Duration::from_secs(1))).unwrap();
            server.read_exact(&mut [0; 4]).unwrap();
            server.write_all(b"pong").unwrap();
            reactor.turn(Some(Duration::from_secs(1))).unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        }
    };
    round_trips(10);
    assert_eq!(measure(|| round_trips(1_000)).count_total, 0);
}

#[test]
fn an_idle_pair_holds_no_buffer() {
    let mut reactor = Reactor::new().unwrap();
    let (mut client, mut server) = proxied(&mut reactor);
    client.write_all(b"ping").unwrap();
    reactor.turn(Some(Duration::from_secs(1))).unwrap();
    server.read_exact(&mut [0; 4]).unwrap();
    let mut others = Vec::new();
    let pairs = 50;
    let held = measure(|| {
        for _ in 0..pairs {
            others.push(proxied(&mut reactor));
        }
    });
    let each = held.bytes_current / pairs;
    assert!(each < 4096, "{each} bytes per idle pair");
}
