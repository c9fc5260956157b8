//! Closing, stopping, draining, and sockets opened elsewhere.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::Duration;

use pelton::{Address, Datagram, DatagramIo, Datagrams, Exit, Reason, SendError};
use pelton_testing::{Echo, Log, On, on_every_engine, poll, run, run_until, run_with};

use super::{bind, local, logging, peer, scratch, scripted, unix_peer};

on_every_engine![
    a_socket_can_be_closed_from_inside_and_from_elsewhere,
    close_after_sending_sends_everything_and_reports_failures_first,
    stopping_closes_and_draining_sends_everything,
    foreign_sockets_can_be_adopted,
];

fn a_socket_can_be_closed_from_inside_and_from_elsewhere(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    let handler = scripted(&log, move |io, datagram| {
        seen.add("received");
        io.send_to(&datagram.from, b"dropped").unwrap();
        io.close();
        io.close();
        assert!(!io.is_open());
        assert_eq!(io.send_to(&datagram.from, b"too late"), Err(SendError::Closed));
        let id = io.id();
        assert!(io.reactor().datagrams(id).is_none());
    });
    let (_, address) = bind(&mut reactor, handler);
    let sender = peer("127.0.0.1:0");
    for _ in 0..10 {
        sender.send_to(b"x", address).unwrap();
    }
    run_until(&mut reactor, |_| log.len() >= 2);
    for _ in 0..3 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["received", "closed: closed by this side"]);
    assert_eq!((reactor.datagram_socket_count(), reactor.queued()), (0, 0));
    sender.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    assert!(sender.recv(&mut [0; 10]).is_err(), "nothing was sent");

    let (id, _) = bind(&mut reactor, logging(&log));
    reactor.next_tick(move |reactor| reactor.datagrams(id).unwrap().close_with(Reason::Overflow));
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: the send queue is full"]);
}

fn close_after_sending_sends_everything_and_reports_failures_first(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (id, own) = bind(&mut reactor, logging(&log));
    let receiver = peer("127.0.0.1:0");
    let to = Address::from(receiver.local_addr().unwrap());
    let mut io = reactor.datagrams(id).unwrap();
    for _ in 0..50 {
        io.send_to(&to, b"fits").unwrap();
    }
    io.send_to(&to, &[0; 70_000]).unwrap();
    io.close_after_sending();
    assert_eq!(io.send_to(&to, b"too late"), Err(SendError::Closed));
    receiver.send_to(b"not wanted any more", own).unwrap();
    run_until(&mut reactor, |_| log.len() >= 2);
    let told = log.take();
    assert!(told[0].starts_with(&format!("failed, to {to}: ")), "{told:?}");
    assert_eq!(told[1..], ["closed: closed by this side"]);
    for _ in 0..50 {
        receiver.recv(&mut [0; 10]).unwrap();
    }
}

fn stopping_closes_and_draining_sends_everything(on: On) {
    let log = Log::default();
    let mut reactor = on.reactor();
    bind(&mut reactor, logging(&log));
    reactor.stop();
    assert_eq!(run(&mut reactor), Exit::Stopped);
    assert_eq!(log.take(), ["closed: closed by this side"]);

    let path = scratch(on, "drain.sock");
    let mut reactor = on.reactor();
    let receiver = unix_peer(UnixDatagram::bind(&path).unwrap());
    let id = reactor.connect_datagrams(&Address::Unix(path.clone()), logging(&log)).unwrap();
    // More than the kernel accepts before somebody reads.
    for _ in 0..1_000 {
        reactor.datagrams(id).unwrap().send(b"on its way").unwrap();
    }
    reactor.drain(Duration::from_secs(20));
    poll(&mut reactor);
    assert_eq!(log.len(), 0, "draining waits");
    let reading = thread::spawn(move || (0..1_000).map(|_| receiver.recv(&mut [0; 20]).unwrap()).sum::<usize>());
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(reading.join().unwrap(), 10_000);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    std::fs::remove_file(path).unwrap();

    // A socket that does not close is reported at the end.
    struct Stays;
    impl Datagrams for Stays {
        fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
        fn draining(&mut self, _: &mut DatagramIo<'_>) {}
    }
    let mut reactor = on.reactor();
    bind(&mut reactor, Stays);
    reactor.drain(Duration::from_millis(10));
    assert_eq!(run(&mut reactor), Exit::DrainTimedOut { holds: 0, connections: 1 });
}

fn foreign_sockets_can_be_adopted(on: On) {
    let path = scratch(on, "adopted.sock");
    let mut reactor = on.reactor();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = udp.local_addr().unwrap();
    reactor.adopt_datagrams(udp, Echo).unwrap();
    run_with(&mut reactor, move || {
        let client = peer("127.0.0.1:0");
        client.send_to(b"hello", address).unwrap();
        assert_eq!(client.recv(&mut [0; 10]).unwrap(), 5);
    });
    let unix = reactor.adopt_datagrams(UnixDatagram::bind(&path).unwrap(), Echo).unwrap();
    assert_eq!(local(&mut reactor, unix), Address::Unix(path.clone()));
    reactor.datagrams(unix).unwrap().close();
    poll(&mut reactor);
    std::fs::remove_file(path).expect("the file of an adopted socket is kept");

    let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = reactor.adopt_datagrams(stream, Echo).unwrap_err().to_string();
    assert_eq!(error, "adopt a datagram socket: this is not a datagram socket");
    assert_eq!(reactor.datagram_socket_count(), 1);
}
