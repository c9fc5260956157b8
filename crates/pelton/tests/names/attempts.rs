//! Several addresses on the kernel's network.

use std::cell::Cell;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use pelton::Limit;
use pelton_testing::{DEADLINE, Log, On, on_every_engine, poll, run_until};

use super::{Known, Logging, listening, refusing, slow, table};

on_every_engine![
    after_a_refusal_the_next_address_is_tried_at_once,
    an_address_that_does_not_answer_costs_the_delay_and_its_socket_is_closed,
    both_families_are_tried,
    when_all_addresses_fail_all_are_named,
    early_data_arrives_after_the_race,
    closing_during_the_race_ends_everything,
    connect_limit_covers_look_up_and_race,
];

/// A port on which connections are neither accepted nor refused, at any address of this machine.
struct Silent {
    port: u16,
    _listener: socket2::Socket,
    _waiting: Vec<TcpStream>,
}

fn silent() -> Silent {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let port = listener.local_addr().unwrap().as_socket().unwrap().port();
    // Fill its queue until the system stops answering.
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_millis(100)) {
        waiting.push(stream);
    }
    Silent { port, _listener: listener, _waiting: waiting }
}

impl Silent {
    fn address(&self, number: u8) -> SocketAddr {
        ([127, 0, 0, number], self.port).into()
    }

    /// The number of sockets that are connecting to it, according to Linux.
    fn attempts(&self) -> usize {
        // Fail if the table is missing: without it the count would be zero, which most tests expect.
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let (to, trying) = (format!(":{:04X}", self.port), "02");
        let sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        sockets.filter(|fields| fields[2].ends_with(&to) && fields[3] == trying).count()
    }

    /// Checks the number of attempts on Linux, which has this table.
    fn expect_attempts(&self, count: usize) {
        if cfg!(target_os = "linux") {
            assert_eq!(self.attempts(), count);
        }
    }
}

fn after_a_refusal_the_next_address_is_tried_at_once(on: On) {
    let (_listener, address) = listening();
    let builder = on.builder().resolver(table(&[refusing(), refusing(), address]));
    // The delay alone would exceed the test's deadline.
    let mut reactor = on.build(builder.attempt_delay(DEADLINE * 2));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);
    assert!(reactor.connection(id).unwrap().is_open());
    assert_eq!(reactor.timer_count(), 0, "the race left a timer");
}

fn an_address_that_does_not_answer_costs_the_delay_and_its_socket_is_closed(on: On) {
    const DELAY: Duration = Duration::from_millis(30);
    let silent = silent();
    let (_listener, address) = listening();
    let builder = on.builder().resolver(table(&[silent.address(1), address])).attempt_delay(DELAY);
    let mut reactor = on.build(builder);
    let log = Log::default();
    let start = reactor.clock();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);
    assert!(reactor.clock() - start >= DELAY);
    silent.expect_attempts(0);
    poll(&mut reactor);
    assert_eq!((log.len(), reactor.connection_count()), (0, 1));
}

fn both_families_are_tried(on: On) {
    let (listener, address) = listening();
    let v6 = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port()));
    // Works without IPv6, too: that attempt fails, and the next address is tried.
    let mut reactor = on.build(on.builder().resolver(table(&[v6, address])).attempt_delay(DEADLINE * 2));
    let log = Log::default();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);
    drop(listener);

    if let Ok(listener) = TcpListener::bind("[::1]:0") {
        let v6 = listener.local_addr().unwrap();
        let mut reactor = on.build(on.builder().resolver(table(&[v6, refusing()])));
        reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
        run_until(&mut reactor, |_| log.len() == 1);
        assert_eq!(log.take(), [format!("opened: {v6}")], "the resolver's first family wins");
    }
}

fn when_all_addresses_fail_all_are_named(on: On) {
    let (one, other) = (refusing(), refusing());
    let mut reactor = on.build(on.builder().resolver(table(&[one, other, one])));
    let log = Log::default();
    reactor.connect_to("example.org:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("closed: connect to example.org:80: {one}: refused; {other}: refused")]);

    let mut reactor = on.build(on.builder().resolver(table(&[one])));
    reactor.connect_to("example.org:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("closed: connect to example.org:80: {one}: refused")], "a single address");
    assert_eq!((reactor.connection_count(), reactor.timer_count()), (0, 0));
}

fn early_data_arrives_after_the_race(on: On) {
    let silent = silent();
    let (listener, address) = listening();
    let builder = on.builder().resolver(Known(vec![silent.address(1), address]));
    let mut reactor = on.build(builder.attempt_delay(Duration::from_millis(10)));
    let id = reactor.connect_to("somewhere:1", Logging::default()).unwrap();
    let mut io = reactor.connection(id).unwrap();
    assert!(!io.is_open() && io.peer_address().is_err() && io.descriptor().is_none());
    io.send(b"early, ").unwrap();
    poll(&mut reactor);
    let mut io = reactor.connection(id).unwrap();
    assert!(!io.is_open());
    io.send(b"and during the race").unwrap();
    io.close_after_writing();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "early, and during the race");
}

fn closing_during_the_race_ends_everything(on: On) {
    let silent = silent();
    let addresses = vec![silent.address(1), silent.address(2), silent.address(3), silent.address(4)];
    let builder = on.builder().resolver(Known(addresses)).attempt_delay(Duration::from_millis(50));
    let mut reactor = on.build(builder);
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    // One attempt starts at once, and one in this turn or an earlier one.
    poll(&mut reactor);
    let second = Rc::new(Cell::new(false));
    let flag = second.clone();
    reactor.after(Duration::from_millis(50), move |_| flag.set(true));
    run_until(&mut reactor, |_| second.get());
    if cfg!(target_os = "linux") {
        assert!(silent.attempts() >= 2);
    }
    reactor.connection(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    silent.expect_attempts(0);
    assert_eq!((reactor.connection_count(), reactor.timer_count()), (0, 0));
}

fn connect_limit_covers_look_up_and_race(on: On) {
    const LIMIT: Duration = Duration::from_millis(60);
    let silent = silent();
    let (resolver, release) = slow(silent.address(1));
    let mut reactor = on.build(on.builder().resolver(resolver).limit(Limit::Connect, Some(LIMIT)));
    let log = Log::default();
    let start = reactor.clock();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["closed: no connection was made within 60ms"], "during the look-up");
    assert!(reactor.clock() - start >= LIMIT);
    release.sender.send(()).unwrap();

    let addresses = [silent.address(1), silent.address(2)];
    let builder = on.builder().resolver(table(&addresses)).attempt_delay(Duration::from_millis(10));
    let mut reactor = on.build(builder.limit(Limit::Connect, Some(LIMIT)));
    let start = reactor.clock();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["closed: no connection was made within 60ms"], "during the race");
    assert!(reactor.clock() - start >= LIMIT);
    silent.expect_attempts(0);
    assert_eq!(reactor.timer_count(), 0);
}
