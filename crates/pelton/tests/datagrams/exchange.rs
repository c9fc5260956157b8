//! Exchanging datagrams: one or thousands, empty or of maximum size.

use std::time::Duration;

use pelton::SocketOptions;
use pelton_testing::{Echo, Log, On, on_every_engine, poll, run_until, run_with};

use super::{bind, internet, local, logging, peer, scripted};

on_every_engine![
    udp_echo_comes_from_the_destination,
    connected_socket_receives_only_from_its_peer,
    empty_datagrams_are_sent_and_delivered,
    largest_datagram_fits_and_a_larger_one_is_reported,
    a_thousand_each_way_arrive,
    a_busy_socket_does_not_keep_others_waiting,
];

fn udp_echo_comes_from_the_destination(on: On) {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let mut reactor = on.reactor();
        let id = reactor.bind_datagrams(&address.parse().unwrap(), Echo).unwrap();
        let server = internet(&local(&mut reactor, id));
        assert!(reactor.datagrams(id).unwrap().peer_address().is_err(), "the socket is not connected");
        run_with(&mut reactor, move || {
            let client = peer(address);
            for length in [1, 100, 1_400, 9_000] {
                let sent: Vec<u8> = (0..length).map(|number| (number % 251) as u8).collect();
                client.send_to(&sent, server).unwrap();
                let mut back = vec![0; 10_000];
                let (count, from) = client.recv_from(&mut back).unwrap();
                assert_eq!((&back[..count], from), (&sent[..], server));
            }
        });
    }
}

fn connected_socket_receives_only_from_its_peer(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (_, server) = bind(&mut reactor, Echo);
    let client = reactor.connect_datagrams(&server.into(), logging(&log)).unwrap();
    let address = internet(&local(&mut reactor, client));
    assert_eq!(reactor.datagrams(client).unwrap().peer_address().unwrap(), server.into());
    peer("127.0.0.1:0").send_to(b"from a stranger", address).unwrap();
    reactor.datagrams(client).unwrap().send(b"one").unwrap();
    reactor.datagrams(client).unwrap().send_bytes("two").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["received one", "received two"]);
}

fn empty_datagrams_are_sent_and_delivered(on: On) {
    let mut reactor = on.reactor();
    let (_, server) = bind(&mut reactor, Echo);
    run_with(&mut reactor, move || {
        let client = peer("127.0.0.1:0");
        for sent in [&b""[..], b"x", b"", b""] {
            client.send_to(sent, server).unwrap();
            let mut back = [7; 10];
            assert_eq!(client.recv_from(&mut back).unwrap(), (sent.len(), server));
        }
    });
    // Only an empty datagram is queued: it is sent before the socket is closed.
    let client = peer("127.0.0.1:0");
    let log = Log::default();
    let (id, _) = bind(&mut reactor, logging(&log));
    let mut io = reactor.datagrams(id).unwrap();
    io.send_to(&client.local_addr().unwrap().into(), b"").unwrap();
    assert_eq!(io.queued(), 0);
    io.close_after_sending();
    poll(&mut reactor);
    assert_eq!(client.recv(&mut [0; 10]).unwrap(), 0);
    assert_eq!(log.take(), ["closed: closed by this side"]);
}

fn largest_datagram_fits_and_a_larger_one_is_reported(on: On) {
    const LARGEST: usize = 65_507;
    let mut reactor = on.reactor();
    let log = Log::default();
    let (_, server) = bind(&mut reactor, Echo);
    let seen = log.clone();
    let client = scripted(&log, move |_, datagram| {
        let intact = datagram.bytes.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8);
        seen.add(format!("{} bytes, {intact}", datagram.bytes.len()));
    });
    let (client, _) = bind(&mut reactor, client);
    let bytes: Vec<u8> = (0..=LARGEST).map(|index| (index % 251) as u8).collect();
    for length in [1, LARGEST + 1, 2, LARGEST + 1, LARGEST] {
        reactor.datagrams(client).unwrap().send_to(&server.into(), &bytes[..length]).unwrap();
    }
    assert_eq!(reactor.datagrams(client).unwrap().queued(), 3 + 3 * LARGEST + 2);
    run_until(&mut reactor, |_| log.len() == 5);
    let mut told = log.take();
    told.sort();
    let failed = told.split_off(3);
    assert_eq!(told, ["1 bytes, true", "2 bytes, true", "65507 bytes, true"]);
    for failed in failed {
        assert!(failed.starts_with(&format!("failed, to {server}: ")), "{failed}");
    }
    assert_eq!((reactor.datagrams(client).unwrap().queued(), reactor.queued()), (0, 0));
}

fn a_thousand_each_way_arrive(on: On) {
    const COUNT: u32 = 1_000;
    let mut reactor = on.reactor();
    let log = Log::default();
    let (server, address) = bind(&mut reactor, Echo);
    let mut expected = 0..COUNT;
    let client = scripted(&log, move |io, datagram| {
        assert_eq!(datagram.bytes[..], expected.next().unwrap().to_be_bytes());
        if expected.is_empty() {
            io.close();
        }
    });
    let client = reactor.connect_datagrams(&address.into(), client).unwrap();
    // Large buffers at both ends, because this tests that none is lost or reordered here.
    for id in [server, client] {
        let io = reactor.datagrams(id).unwrap();
        SocketOptions::of(&io.descriptor().unwrap()).set_receive_buffer(4_000_000).unwrap();
    }
    let mut next = 0..COUNT;
    // A hundred at a time, because the system may grant smaller buffers than requested.
    reactor.every(Duration::from_micros(100), move |reactor, _| {
        for number in next.by_ref().take(100) {
            reactor.datagrams(client).unwrap().send(&number.to_be_bytes()).unwrap();
        }
    });
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["closed: closed by this side"]);
}

fn a_busy_socket_does_not_keep_others_waiting(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (busy, busy_address) = bind(&mut reactor, logging(&log));
    let (_, address) = bind(&mut reactor, logging(&log));
    let io = reactor.datagrams(busy).unwrap();
    SocketOptions::of(&io.descriptor().unwrap()).set_receive_buffer(4_000_000).unwrap();
    let sender = peer("127.0.0.1:0");
    for round in 0..10 {
        for _ in 0..100 {
            sender.send_to(b"busy", busy_address).unwrap();
        }
        sender.send_to(b"quiet", address).unwrap();
        poll(&mut reactor);
        let told = log.take();
        assert!(told.contains(&"received quiet".to_owned()), "in round {round}: {told:?}");
        assert!(told.len() <= 33, "{} of one socket in one turn", told.len() - 1);
    }
}
