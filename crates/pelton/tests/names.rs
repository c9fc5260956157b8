//! Connecting by name, on every engine; and the race between addresses on one whose time and network are the test's own.

mod clockwork;
mod common;

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pelton::{
    Address, Chunk, ConnectOptions, Connection, Error, Io, LaneSettings, Limit, LookupFailure, Reactor, Reason,
    Resolver,
};

use clockwork::{Fate, Seen, clockwork, elapsed};
use common::{Log, On, on_every_engine, poll, run, run_until};

on_every_engine![
    localhost_is_found_and_addresses_need_no_look_up,
    the_loop_turns_on_while_a_name_is_looked_up,
    an_unknown_name_is_named_in_the_reason,
    a_resolver_that_panics_costs_one_connection,
    after_a_refusal_the_next_address_is_tried_at_once,
    an_address_that_does_not_answer_costs_the_delay_and_its_socket_is_closed,
    both_families_are_tried,
    when_all_addresses_fail_all_are_named,
    what_was_sent_early_arrives_after_the_race,
    closing_while_it_is_looked_up_ends_everything,
    closing_during_the_race_ends_everything,
    the_connect_limit_is_for_all_of_it,
    too_many_look_ups_are_refused,
    a_look_up_can_be_asked_for_alone_and_cancelled,
    stopping_does_not_wait_for_a_look_up,
];

/// Long enough for whatever is waited for.
const DEADLINE: Duration = Duration::from_secs(20);

/// Logs what it is told, and whom it was connected to.
#[derive(Clone, Default)]
struct Logging(Log);

impl Connection for Logging {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.0.add(format!("opened: {}", io.peer_address().unwrap()));
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.0.add(format!("received {}", String::from_utf8_lossy(&chunk)));
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.add(format!("closed: {reason}"));
    }
}

/// Gives the same addresses for every name, whatever the port.
fn table(addresses: &[SocketAddr]) -> impl Resolver {
    let addresses = addresses.to_vec();
    move |_: &str, _: u16| Ok(addresses.clone())
}

/// A resolver that answers when it is told to, and counts how many ask and how many were answered.
struct Slow {
    released: Mutex<Receiver<()>>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
    address: SocketAddr,
}

impl Resolver for Slow {
    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.released.lock().unwrap().recv_timeout(DEADLINE).map_err(io::Error::other)?;
        self.answered.fetch_add(1, Ordering::SeqCst);
        Ok(vec![self.address])
    }
}

struct Release {
    sender: Sender<()>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

fn slow(address: SocketAddr) -> (Slow, Release) {
    let (sender, receiver) = channel();
    let (asked, answered) = (Arc::default(), Arc::default());
    let release = Release { sender, asked: Arc::clone(&asked), answered: Arc::clone(&answered) };
    (Slow { released: Mutex::new(receiver), asked, answered, address }, release)
}

impl Release {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Where nobody listens.
fn refusing() -> SocketAddr {
    listening().1
}

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
    // Its queue is filled until the system answers no more.
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

    /// How many sockets are trying to connect to it, according to Linux.
    fn attempts(&self) -> usize {
        // Without it there would seem to be none, which is what most tests expect.
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let (to, trying) = (format!(":{:04X}", self.port), "02");
        let sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        sockets.filter(|fields| fields[2].ends_with(&to) && fields[3] == trying).count()
    }

    /// Only Linux says.
    fn expect_attempts(&self, count: usize) {
        if cfg!(target_os = "linux") {
            assert_eq!(self.attempts(), count);
        }
    }
}

fn localhost_is_found_and_addresses_need_no_look_up(on: On) {
    let (_listener, address) = listening();
    let log = Log::default();
    let mut reactor = on.reactor();
    reactor.connect_to(format!("localhost:{}", address.port()).as_str(), Logging(log.clone())).unwrap();
    assert_eq!(log.len(), 0);
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);

    let builder = on.builder().resolver(|host: &str, _: u16| panic!("{host} was looked up"));
    let mut reactor = on.build(builder);
    reactor.connect_to(&address.to_string(), Logging(log.clone())).unwrap();
    reactor.connect_to(address, Logging(log.clone())).unwrap();
    reactor.connect_to(Address::from(address), Logging(log.clone())).unwrap();
    reactor.connect_to("unix:/nonexistent/some.sock", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take().iter().filter(|entry| **entry == format!("opened: {address}")).count(), 3);
    let error = reactor.connect_to("no port", Logging(log.clone())).unwrap_err();
    assert!(matches!(error, Error::BadEndpoint(_)) && error.to_string().starts_with("\"no port\" is "), "{error}");
}

fn the_loop_turns_on_while_a_name_is_looked_up(on: On) {
    let (_listener, address) = listening();
    let (resolver, release) = slow(address);
    let mut reactor = on.build(on.builder().resolver(resolver));
    let log = Log::default();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    assert_eq!(reactor.connection_count(), 1);
    let beats = Rc::new(Cell::new(0));
    let (count, asked) = (beats.clone(), release.asked.clone());
    reactor.every(Duration::from_millis(1), move |_, _| {
        // From when it is being looked up.
        count.set(count.get() + asked.load(Ordering::SeqCst));
    });
    run_until(&mut reactor, |_| beats.get() == 5);
    assert_eq!((log.len(), release.asked()), (0, 1));
    release.sender.send(()).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);
}

fn an_unknown_name_is_named_in_the_reason(on: On) {
    let builder = on.builder().resolver(|host: &str, _: u16| match host {
        "empty" => Ok(Vec::new()),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such host")),
    });
    let mut reactor = on.build(builder);
    let log = Log::default();
    reactor.connect_to("nowhere.example:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    reactor.connect_to("empty:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(
        log.take(),
        ["closed: look up nowhere.example: no such host", "closed: look up empty: it has no address"]
    );
    assert_eq!((reactor.connection_count(), reactor.timer_count()), (0, 0));
}

fn a_resolver_that_panics_costs_one_connection(on: On) {
    let (_listener, address) = listening();
    let builder = on.builder().resolver(move |host: &str, _: u16| {
        assert_ne!(host, "bad", "on purpose");
        Ok(vec![address])
    });
    let mut reactor = on.build(builder.lookups(LaneSettings { threads: 1, ..LaneSettings::LOOKUPS }));
    let log = Log::default();
    reactor.connect_to("bad:80", Logging(log.clone())).unwrap();
    reactor.connect_to("good:80", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    let told = log.take();
    assert!(told[0].starts_with("closed: look up bad: the resolver panicked: ") && told[0].contains("on purpose"));
    assert_eq!(told[1], format!("opened: {address}"));
    assert_eq!(reactor.stats().panics, 0, "it was not the loop's");
}

fn after_a_refusal_the_next_address_is_tried_at_once(on: On) {
    let (_listener, address) = listening();
    let builder = on.builder().resolver(table(&[refusing(), refusing(), address]));
    // The delay alone would take longer than the test may.
    let mut reactor = on.build(builder.attempt_delay(DEADLINE * 2));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("opened: {address}")]);
    assert!(reactor.connection(id).unwrap().is_open());
    assert_eq!(reactor.timer_count(), 0, "nothing is left of the race");
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
    // Also if there is no IPv6 here: that fails, and the other is next.
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
        assert_eq!(log.take(), [format!("opened: {v6}")], "the family that the resolver gave first");
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
    assert_eq!(log.take(), [format!("closed: connect to example.org:80: {one}: refused")], "and if it is only one");
    assert_eq!((reactor.connection_count(), reactor.timer_count()), (0, 0));
}

fn what_was_sent_early_arrives_after_the_race(on: On) {
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

fn closing_while_it_is_looked_up_ends_everything(on: On) {
    let (listener, address) = listening();
    let (resolver, release) = slow(address);
    let mut reactor = on.build(on.builder().resolver(resolver));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| release.asked() == 1);
    reactor.connection(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    release.sender.send(()).unwrap();
    run_until(&mut reactor, |_| release.answered.load(Ordering::SeqCst) == 1);
    // The answer is posted right after that; another look-up on the same thread or a later one shows that it was heard.
    let found = Rc::new(Cell::new(false));
    let flag = found.clone();
    release.sender.send(()).unwrap();
    reactor.resolve("somewhere", 1, move |_, _| flag.set(true)).unwrap();
    run_until(&mut reactor, |_| found.get());
    reactor.cancel(waiting);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nothing was connected");
    assert_eq!((log.len(), reactor.connection_count(), reactor.timer_count()), (0, 0, 0));
}

fn closing_during_the_race_ends_everything(on: On) {
    let silent = silent();
    let addresses = vec![silent.address(1), silent.address(2), silent.address(3), silent.address(4)];
    let builder = on.builder().resolver(Known(addresses)).attempt_delay(Duration::from_millis(50));
    let mut reactor = on.build(builder);
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    // One has its turn at once, and one in the same turn of the loop as this or before.
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

fn the_connect_limit_is_for_all_of_it(on: On) {
    const LIMIT: Duration = Duration::from_millis(60);
    let silent = silent();
    let (resolver, release) = slow(silent.address(1));
    let mut reactor = on.build(on.builder().resolver(resolver).limit(Limit::Connect, Some(LIMIT)));
    let log = Log::default();
    let start = reactor.clock();
    reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["closed: no connection was made within 60ms"], "while it was looked up");
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

fn too_many_look_ups_are_refused(on: On) {
    let (_listener, address) = listening();
    let (resolver, release) = slow(address);
    let lane = LaneSettings { threads: 1, waiting: 1, ..LaneSettings::LOOKUPS };
    let mut reactor = on.build(on.builder().resolver(resolver).lookups(lane));
    let log = Log::default();
    reactor.connect_to("one:1", Logging(log.clone())).unwrap();
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| release.asked() == 1);
    let two = reactor.connect_to("two:1", Logging(log.clone())).unwrap();
    let error = reactor.connect_to("three:1", Logging(log.clone())).unwrap_err();
    assert!(matches!(error, Error::LaneFull { waiting: 1, .. }), "{error}");
    assert!(error.to_string().starts_with("look up three: "), "{error}");
    assert_eq!(reactor.connection_count(), 2);
    // One that is not wanted any more makes room.
    reactor.connection(two).unwrap().close();
    poll(&mut reactor);
    reactor.connect_to("four:1", Logging(log.clone())).unwrap();
    for _ in 0..2 {
        release.sender.send(()).unwrap();
    }
    run_until(&mut reactor, |_| log.len() == 3);
    reactor.cancel(waiting);
    let opened = format!("opened: {address}");
    assert_eq!(log.take(), ["closed: closed by this side", &opened, &opened]);
    assert_eq!(release.asked(), 2, "what was closed was never looked up");
}

fn a_look_up_can_be_asked_for_alone_and_cancelled(on: On) {
    let (resolver, release) = slow(refusing());
    let mut reactor = on.build(on.builder().resolver(resolver));
    let found = Rc::new(RefCell::new(Vec::new()));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let list = found.clone();
        ids.push(reactor.resolve("somewhere", 1, move |_, addresses| list.borrow_mut().push(addresses)).unwrap());
    }
    assert!(reactor.cancel_lookup(ids[0]) && !reactor.cancel_lookup(ids[0]));
    for _ in 0..2 {
        release.sender.send(()).unwrap();
    }
    assert!(found.borrow().is_empty(), "never before it has returned");
    run_until(&mut reactor, |_| !found.borrow().is_empty());
    assert_eq!(found.borrow()[0].as_ref().unwrap().len(), 1);
    assert!(!reactor.cancel_lookup(ids[1]));

    let mut reactor = on.build(on.builder().resolver(table(&[])));
    let list = found.clone();
    reactor.resolve("nowhere", 1, move |_, addresses| list.borrow_mut().push(addresses)).unwrap();
    run_until(&mut reactor, |_| found.borrow().len() == 2);
    let error = found.borrow_mut().pop().unwrap().unwrap_err();
    assert!(matches!(error.failure, LookupFailure::NoAddress) && error.host == "nowhere", "{error}");
}

fn stopping_does_not_wait_for_a_look_up(on: On) {
    let (resolver, release) = slow(refusing());
    let mut reactor = on.build(on.builder().resolver(resolver));
    let log = Log::default();
    /// Connects again as soon as it is closed.
    struct Stubborn(Log);
    impl Connection for Stubborn {
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
        fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
            let again = reactor.connect_to("somewhere:1", Stubborn(self.0.clone()));
            self.0.add(format!("{reason}, and then: {}", again.unwrap_err()));
        }
    }
    reactor.connect_to("somewhere:1", Stubborn(log.clone())).unwrap();
    reactor.every(Duration::from_millis(1), {
        let asked = release.asked.clone();
        move |reactor, _| {
            if asked.load(Ordering::SeqCst) == 1 {
                reactor.stop();
            }
        }
    });
    run(&mut reactor);
    assert_eq!(log.take(), ["closed by this side, and then: this reactor was stopped; build a new one"]);
    drop(reactor);
    assert_eq!(release.answered.load(Ordering::SeqCst), 0, "it is still being looked up");

    let (resolver, release) = slow(refusing());
    let mut reactor = on.build(on.builder().resolver(resolver));
    reactor.connect_to("somewhere:1", Logging::default()).unwrap();
    let start = Instant::now();
    while release.asked() == 0 {
        assert!(start.elapsed() < DEADLINE);
        std::thread::yield_now();
    }
    // As it is, without having been run.
    drop(reactor);
    assert_eq!(release.answered.load(Ordering::SeqCst), 0);
    release.sender.send(()).unwrap();
}

/// A resolver that needs no thread: in a network of the test's own, time does not wait for any.
struct Known(Vec<SocketAddr>);

impl Resolver for Known {
    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.clone())
    }

    fn blocks(&self) -> bool {
        false
    }
}

const AT_ONCE: Duration = Duration::ZERO;

/// Connects to a name with these addresses; says what the engine was asked and what the handler was told.
fn race(fates: &[(&str, Fate)], options: &ConnectOptions) -> (Rc<Seen>, Vec<String>) {
    let addresses = fates.iter().map(|(address, _)| address.parse().unwrap()).collect();
    let (mut reactor, seen) = clockwork(Reactor::builder().resolver(Known(addresses)));
    for (address, fate) in fates {
        seen.fate(address, *fate);
    }
    let log = Log::default();
    let id = reactor.connect_to_with("somewhere:1", options, Logging(log.clone())).unwrap();
    reactor.connection(id).unwrap().send(b"hello").unwrap();
    assert!(seen.log.borrow().is_empty() && log.len() == 0);
    run_until(&mut reactor, |_| log.len() == 1);
    poll(&mut reactor);
    (seen, log.take())
}

#[test]
fn attempts_are_a_delay_apart_and_the_winner_becomes_the_connection() {
    let slow = Duration::from_millis(400);
    let fates = [
        ("[::1]:1", Fate::NeverAnswers),
        ("[::2]:1", Fate::Connects(slow)),
        ("1.1.1.1:1", Fate::Connects(slow)),
        ("2.2.2.2:1", Fate::NeverAnswers),
    ];
    let (seen, told) = race(&fates, &ConnectOptions::default());
    assert_eq!(told, ["opened: 1.1.1.1:1"]);
    assert_eq!(
        seen.take_log(),
        [
            "0 connect [::1]:1",
            "250 connect 1.1.1.1:1",
            "500 connect [::2]:1",
            "650 detach 1.1.1.1:1",
            "650 forget [::1]:1",
            "650 forget [::2]:1",
            "651 adopt 1.1.1.1:1",
        ],
        "the last is not tried any more"
    );
    assert_eq!((seen.held.borrow().len(), seen.sent.take()), (1, b"hello".to_vec()));
}

#[test]
fn a_failure_begins_the_next_attempt_at_once_and_the_delay_anew() {
    let fates = [
        ("1.1.1.1:1", Fate::Refuses(Duration::from_millis(100))),
        ("2.2.2.2:1", Fate::NeverAnswers),
        ("3.3.3.3:1", Fate::Fails),
        ("4.4.4.4:1", Fate::Connects(AT_ONCE)),
    ];
    let (seen, told) = race(&fates, &ConnectOptions::default());
    assert_eq!(told, ["opened: 4.4.4.4:1"]);
    assert_eq!(
        seen.take_log(),
        [
            "0 connect 1.1.1.1:1",
            "100 forget 1.1.1.1:1",
            "100 connect 2.2.2.2:1",
            "350 connect 3.3.3.3:1",
            "350 connect 4.4.4.4:1",
            "350 detach 4.4.4.4:1",
            "350 forget 2.2.2.2:1",
            "351 adopt 4.4.4.4:1",
        ]
    );
}

#[test]
fn a_single_address_is_connected_without_a_detour() {
    let (seen, told) = race(&[("1.1.1.1:1", Fate::Connects(AT_ONCE))], &ConnectOptions::default());
    assert_eq!(told, ["opened: 1.1.1.1:1"]);
    assert_eq!(seen.take_log(), ["0 connect 1.1.1.1:1"]);
    assert_eq!(seen.sent.take(), b"hello");
    let (seen, told) = race(&[("1.1.1.1:1", Fate::Fails)], &ConnectOptions::default());
    assert_eq!(told, ["closed: connect to somewhere:1: 1.1.1.1:1: the engine is out of order"]);
    assert_eq!(seen.take_log(), ["0 connect 1.1.1.1:1"]);
}

#[test]
fn only_addresses_of_the_family_that_it_is_bound_to_are_tried() {
    let options = ConnectOptions::default().bind("10.0.0.1:0".parse().unwrap());
    let fates = [
        ("[::1]:1", Fate::Connects(AT_ONCE)),
        ("1.1.1.1:1", Fate::Refuses(AT_ONCE)),
        ("2.2.2.2:1", Fate::Refuses(AT_ONCE)),
    ];
    let (seen, told) = race(&fates, &options);
    assert_eq!(
        told,
        ["closed: connect to somewhere:1: [::1]:1: not of the same address family as 10.0.0.1:0; 1.1.1.1:1: refused; \
          2.2.2.2:1: refused"]
    );
    let log = seen.take_log();
    assert_eq!((&*log[0], &*log[2]), ("0 connect 1.1.1.1:1 from 10.0.0.1:0", "0 connect 2.2.2.2:1 from 10.0.0.1:0"));
}

#[test]
fn a_connection_that_is_closed_while_the_engine_lets_go_of_the_winner_stays_closed() {
    let addresses = vec!["1.1.1.1:1".parse().unwrap(), "2.2.2.2:1".parse().unwrap()];
    let (mut reactor, seen) = clockwork(Reactor::builder().resolver(Known(addresses)));
    seen.fate("1.1.1.1:1", Fate::Connects(AT_ONCE));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    run_until(&mut reactor, |_| seen.log.borrow().iter().any(|entry| entry.contains("detach")));
    reactor.connection(id).unwrap().close();
    reactor.after(Duration::from_millis(10), |reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    assert!(seen.held.borrow().is_empty());
    assert!(!seen.take_log().iter().any(|entry| entry.contains("adopt")));
    assert!(elapsed(&reactor) < DEADLINE);
}

#[test]
fn an_engine_is_not_told_to_forget_a_connection_that_it_has_not_heard_of() {
    let (mut reactor, seen) = clockwork(Reactor::builder().resolver(Known(vec![refusing()])));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    reactor.connection(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    assert!(seen.take_log().is_empty());
}
