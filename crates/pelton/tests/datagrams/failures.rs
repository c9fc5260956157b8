//! Refused datagrams, handlers that panic or fail again, and error messages.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use pelton::{Address, Datagram, DatagramIo, Datagrams};
use pelton_testing::{Echo, Log, On, on_every_engine, poll, run_until, run_with};

use super::{bind, internet, local, logging, peer, scripted};

on_every_engine![
    refused_datagram_is_reported_and_the_socket_continues,
    every_refusal_while_sending_leaves_the_rest_to_be_sent,
    a_panicking_handler_closes_its_socket_only,
    a_handler_that_answers_failures_with_failures_does_not_stop_the_loop,
    errors_name_the_address,
];

/// A port that nobody receives on. It is held by a socket that is connected to itself, so that no other test gets it.
fn nobody() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    socket.connect(address).unwrap();
    (socket, address)
}

fn refused_datagram_is_reported_and_the_socket_continues(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (held, address) = nobody();
    let client = reactor.connect_datagrams(&address.into(), logging(&log)).unwrap();
    let from = internet(&local(&mut reactor, client));
    for _ in 0..3 {
        reactor.datagrams(client).unwrap().send(b"anybody there?").unwrap();
        run_until(&mut reactor, |_| log.len() == 1);
        assert_eq!(log.take(), ["failed, to whom it is connected to: ConnectionRefused"]);
    }
    // Now there is a receiver.
    held.connect(from).unwrap();
    reactor.datagrams(client).unwrap().send(b"and now?").unwrap();
    poll(&mut reactor);
    let mut bytes = [0; 20];
    held.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let count = held.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"and now?");
    held.send(b"yes").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received yes"]);
}

/// On a connected socket, any call may return the error of an earlier datagram. The current datagram was not sent then and must
/// be sent again.
fn every_refusal_while_sending_leaves_the_rest_to_be_sent(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (held, address) = nobody();
    let client = reactor.connect_datagrams(&address.into(), logging(&log)).unwrap();
    let from = internet(&local(&mut reactor, client));
    let mut io = reactor.datagrams(client).unwrap();
    // So that sending gets the refusal, not receiving.
    io.pause();
    io.send(b"refused").unwrap();
    poll(&mut reactor);
    held.connect(from).unwrap();
    for number in 0..10 {
        reactor.datagrams(client).unwrap().send(&[number]).unwrap();
    }
    poll(&mut reactor);
    held.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for number in 0..10 {
        let mut bytes = [0; 20];
        assert_eq!((held.recv(&mut bytes).unwrap(), bytes[0]), (1, number));
    }
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["failed, to whom it is connected to: ConnectionRefused"]);
}

fn a_panicking_handler_closes_its_socket_only(on: On) {
    let mut reactor = on.catching();
    reactor.on_fault(|reactor, fault| *reactor.state::<String>() = fault.to_string());
    let log = Log::default();
    let (bad, bad_address) = bind(&mut reactor, scripted(&log, |_, _| panic!("on purpose")));
    reactor.datagrams(bad).unwrap().set_label("bad");
    let (_, good_address) = bind(&mut reactor, Echo);
    let sender = peer("127.0.0.1:0");
    for _ in 0..3 {
        sender.send_to(b"x", bad_address).unwrap();
    }
    sender.send_to(b"x", good_address).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["closed: its handler panicked"]);
    assert!(reactor.state::<String>().starts_with("datagrams \"bad\" ("), "{}", reactor.state::<String>());
    run_with(&mut reactor, move || sender.recv(&mut [0; 10]).unwrap());
    assert_eq!((reactor.datagram_socket_count(), reactor.stats().panics), (1, 1));
}

fn a_handler_that_answers_failures_with_failures_does_not_stop_the_loop(on: On) {
    struct Stubborn(Rc<Cell<u32>>);
    impl Datagrams for Stubborn {
        fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
        fn send_failed(&mut self, io: &mut DatagramIo<'_>, to: Option<&Address>, _: io::Error) {
            self.0.set(self.0.get() + 1);
            io.send_to(to.unwrap(), &[0; 70_000]).unwrap();
        }
    }
    let mut reactor = on.reactor();
    let failures = Rc::new(Cell::new(0));
    let (id, address) = bind(&mut reactor, Stubborn(failures.clone()));
    reactor.datagrams(id).unwrap().send_to(&address.into(), &[0; 70_000]).unwrap();
    for _ in 0..10 {
        poll(&mut reactor);
    }
    assert!((5..=10).contains(&failures.get()), "once per turn: {}", failures.get());
}

fn errors_name_the_address(on: On) {
    let mut reactor = on.reactor();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::from(taken.local_addr().unwrap());
    let error = reactor.bind_datagrams(&address, Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("receive datagrams on {address}: ")), "{error}");
    let nowhere = Address::Unix("/nonexistent/some.sock".into());
    let error = reactor.connect_datagrams(&nowhere, Echo).unwrap_err().to_string();
    assert!(error.starts_with("connect datagrams to unix:/nonexistent/some.sock: "), "{error}");
    assert_eq!(reactor.datagram_socket_count(), 0);
    // Errors that occur only when sending are reported as failures.
    let log = Log::default();
    let (id, _) = bind(&mut reactor, logging(&log));
    let mut io = reactor.datagrams(id).unwrap();
    io.send(b"to nobody").unwrap();
    io.send_to(&Address::Unix("x".repeat(200).into()), b"too long").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    let told = log.take();
    assert!(told[0].starts_with("failed, to whom it is connected to: "), "{told:?}");
    assert_eq!(told[1], format!("failed, to unix:{}: InvalidInput", "x".repeat(200)));
}
