//! Reconnecting, on every engine; and its delays, with a simulated clock.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use pelton::{
    Address, Backoff, Chunk, Connection, EventLoop, Exit, Io, ListenOptions, ListenerId, Outage, Reactor, Reason,
    Reconnect,
};
use pelton_testing::clockwork::{Fate, clockwork, elapsed};
use pelton_testing::{Log, On, localhost, on_every_engine, poll, run, run_until};

on_every_engine![
    client_reconnects_when_the_server_returns,
    stopping_it_leaves_the_connection_and_connects_no_more,
    stopping_it_between_two_attempts_ends_the_wait,
    a_drain_ends_it,
    stopping_the_loop_ends_it,
    panic_ends_only_the_reconnecting,
];

const SOON: Duration = Duration::from_millis(1);

fn soon() -> Backoff {
    Backoff::default().start(SOON).most(Duration::from_millis(20))
}

/// Sends its number when it is opened, and logs the rest.
struct Client(Log, u64);

impl Connection for Client {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.0.add(format!("{} opened", self.1));
        io.send(self.1.to_string().as_bytes()).unwrap();
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.0.add(format!("{} received {}", self.1, String::from_utf8_lossy(&chunk)));
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.add(format!("{} closed: {reason}", self.1));
    }
}

/// Answers, and closes on request.
struct Server(Rc<Cell<bool>>);

impl Connection for Server {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
        if self.0.get() {
            io.close_after_writing();
        }
    }
}

fn serve(reactor: &mut EventLoop, address: &Address, hangs_up: &Rc<Cell<bool>>) -> (ListenerId, Address) {
    let hangs_up = hangs_up.clone();
    let options = ListenOptions::default();
    let listener = reactor.listen_with(address, &options, move |_| Server(hangs_up.clone())).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    (listener, address)
}

/// An address where nobody listens.
fn refusing() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn client_reconnects_when_the_server_returns(on: On) {
    let mut reactor = on.reactor();
    let (log, outages) = (Log::default(), Log::default());
    let hangs_up = Rc::new(Cell::new(true));
    let (listener, address) = serve(&mut reactor, &localhost(), &hangs_up);
    let (entries, entry) = (log.clone(), outages.clone());
    let id = Reconnect::to(&address)
        .backoff(soon())
        .on_outage(move |_, outage: &Outage| entry.add(format!("{} {}", outage.up.is_some(), outage.reason)))
        .run(&mut reactor, move |_, attempt| Client(entries.clone(), attempt));
    assert!(log.is_empty() && reactor.kept_connection(id).is_none(), "called before reconnect returned");
    run_until(&mut reactor, |_| log.len() >= 6);
    let told = log.take();
    assert_eq!(told[..3], ["1 opened", "1 received 1", "1 closed: finished by the other side"]);
    assert_eq!(told[3..6], ["2 opened", "2 received 2", "2 closed: finished by the other side"]);
    assert_eq!(outages.take()[..2], ["true finished by the other side", "true finished by the other side"]);

    // The server is gone for a while.
    reactor.end(listener);
    let refused = format!("false connect to {address}: refused");
    run_until(&mut reactor, |_| {
        let told = outages.take();
        told.iter().filter(|entry| **entry == refused).count() > 0
    });
    log.take();
    hangs_up.set(false);
    serve(&mut reactor, &address, &hangs_up);
    run_until(&mut reactor, |_| log.take().iter().any(|entry| entry.contains("received")));
    let connection = reactor.kept_connection(id).unwrap();
    assert!(reactor.connection(connection).unwrap().is_open());
}

fn stopping_it_leaves_the_connection_and_connects_no_more(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (_, address) = serve(&mut reactor, &localhost(), &Rc::default());
    let entries = log.clone();
    let id = Reconnect::to(address)
        .backoff(soon())
        .on_outage(|_, outage| panic!("{outage}"))
        .run(&mut reactor, move |_, attempt| Client(entries.clone(), attempt));
    run_until(&mut reactor, |_| log.len() == 2);
    let connection = reactor.kept_connection(id).unwrap();
    assert!(reactor.stop_reconnecting(id) && !reactor.stop_reconnecting(id));
    assert_eq!(reactor.kept_connection(id), None);
    let mut io = reactor.connection(connection).unwrap();
    assert!(io.is_open());
    io.close();
    poll(&mut reactor);
    assert_eq!(log.take(), ["1 opened", "1 received 1", "1 closed: closed by this side"]);
    assert_eq!(reactor.timer_count(), 0, "a timer is left");
    assert_eq!(reactor.stats().panics, 0);
}

fn stopping_it_between_two_attempts_ends_the_wait(on: On) {
    let mut reactor = on.reactor();
    let attempts = Rc::new(Cell::new(0));
    let (count, dropped) = (attempts.clone(), Rc::new(()));
    let held = dropped.clone();
    Reconnect::to(refusing())
        .backoff(soon())
        .on_outage(|reactor, outage| {
            // From its own callback, too.
            if outage.attempt == 3 {
                assert!(reactor.stop_reconnecting(outage.id));
            }
        })
        .run(&mut reactor, move |_, attempt| {
            let _held = &held;
            count.set(attempt);
            Client(Log::default(), attempt)
        });
    run_until(&mut reactor, |_| attempts.get() == 3);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    poll(&mut reactor);
    assert_eq!((reactor.timer_count(), Rc::strong_count(&dropped)), (0, 1));
    assert_eq!(attempts.get(), 3);
}

fn a_drain_ends_it(on: On) {
    for used in [false, true] {
        let mut reactor = on.reactor();
        let log = Log::default();
        let (_, address) = serve(&mut reactor, &localhost(), &Rc::default());
        let entries = log.clone();
        let target = if used { address } else { refusing().into() };
        let id = Reconnect::to(target)
            .backoff(soon())
            .on_outage(|reactor, _| assert!(!reactor.stopping()))
            .run(&mut reactor, move |_, attempt| Client(entries.clone(), attempt));
        run_until(&mut reactor, |_| log.len() >= 2);
        log.take();
        // The loop keeps running long enough to connect again.
        let hold = reactor.hold();
        reactor.after(Duration::from_millis(50), move |_| drop(hold));
        reactor.drain(Duration::from_secs(10));
        assert_eq!(run(&mut reactor), Exit::Drained);
        assert!(!log.take().iter().any(|entry| entry.contains("opened")));
        assert!(!reactor.stop_reconnecting(id), "reconnecting has already ended");
        assert_eq!(reactor.stats().panics, 0);
    }
}

fn stopping_the_loop_ends_it(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (_, address) = serve(&mut reactor, &localhost(), &Rc::default());
    let entries = log.clone();
    let id = Reconnect::to(address)
        .on_outage(|_, outage| panic!("{outage}"))
        .run(&mut reactor, move |_, attempt| Client(entries.clone(), attempt));
    run_until(&mut reactor, |_| log.len() == 2);
    reactor.stop();
    run(&mut reactor);
    assert_eq!(log.take(), ["1 opened", "1 received 1", "1 closed: closed by this side"]);
    assert!(!reactor.stop_reconnecting(id));
    assert_eq!(reactor.stats().panics, 0);
}

fn panic_ends_only_the_reconnecting(on: On) {
    let mut reactor = on.catching();
    let faults = Rc::new(RefCell::new(Vec::new()));
    let list = faults.clone();
    reactor.on_fault(move |_, fault| list.borrow_mut().push(fault.to_string()));
    let serving = Reconnect::to(refusing()).backoff(soon()).run(&mut reactor, |_, attempt| -> Client {
        assert!(attempt < 2, "no more handlers");
        Client(Log::default(), attempt)
    });
    let hook = Reconnect::to(refusing())
        .on_outage(|_, _| panic!("on purpose"))
        .run(&mut reactor, |_, attempt| Client(Log::default(), attempt));
    run_until(&mut reactor, |_| faults.borrow().len() == 2);
    let mut told = faults.take();
    told.sort();
    assert!(told[0].starts_with("connection (") && told[0].ends_with("on purpose"), "{told:?}");
    assert!(told[1].starts_with("timer (") && told[1].ends_with("no more handlers"), "{told:?}");
    assert!(told.iter().all(|fault| fault.contains("tests/reconnect.rs")), "{told:?}");
    assert!(!reactor.stop_reconnecting(serving) && !reactor.stop_reconnecting(hook));
    assert_eq!((reactor.stats().panics, reactor.timer_count()), (2, 0));
}

/// Connects to an address with this fate until there have been this many outages; returns the time of each attempt, in
/// milliseconds.
fn attempts(fate: Fate, backoff: Backoff, count: u64) -> Vec<u64> {
    let (mut reactor, seen) = clockwork(Reactor::builder());
    seen.fate("1.1.1.1:1", fate);
    Reconnect::to("1.1.1.1:1".parse::<Address>().unwrap())
        .backoff(backoff)
        .on_outage(move |reactor, outage| {
            if outage.attempt == count {
                reactor.stop();
            }
        })
        .run(&mut reactor, |_, attempt| Client(Log::default(), attempt));
    reactor.run().unwrap();
    assert!(seen.held.borrow().is_empty() && elapsed(&reactor) > Duration::ZERO);
    let log = seen.take_log();
    let connects = log.iter().filter_map(|entry| entry.strip_suffix(" connect 1.1.1.1:1"));
    connects.map(|time| time.parse().unwrap()).collect()
}

fn waits(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn delay_grows_up_to_its_maximum() {
    let at_once = Fate::Refuses(Duration::from_nanos(1));
    let times = attempts(at_once, Backoff::default().jitter(0.0), 12);
    assert_eq!(
        waits(&times),
        [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000],
        "the simulated minute and a half took too long"
    );
    let capped = Backoff::default().start(Duration::from_millis(10)).most(Duration::from_millis(35)).jitter(0.0);
    assert_eq!(waits(&attempts(at_once, capped, 5)), [10, 20, 35, 35]);
    // Attempts that the engine refuses to start count, too.
    assert_eq!(waits(&attempts(Fate::Fails, Backoff::default().jitter(0.0), 4)), [100, 200, 400]);
}

#[test]
fn jitter_shortens_delays_and_a_seed_repeats_them() {
    let random = |seed| waits(&attempts(Fate::Fails, Backoff::default().seed(seed), 10));
    let (one, again, other) = (random(1), random(1), random(2));
    assert_eq!(one, again);
    assert_ne!(one, other);
    for (index, wait) in one.iter().enumerate() {
        let most = (100 << index).min(30_000);
        assert!((most / 2 - 1..=most).contains(wait), "{one:?}");
    }
}

#[test]
fn long_connection_resets_the_delay() {
    let backoff = Backoff::default().jitter(0.0).steady_after(Duration::from_secs(5));
    let up = |up| Fate::ConnectsAndEnds(Duration::from_nanos(1), Duration::from_secs(up));
    assert_eq!(waits(&attempts(up(5), backoff.clone(), 4)), [5_100, 5_100, 5_100]);
    assert_eq!(waits(&attempts(up(1), backoff, 4)), [1_100, 1_200, 1_400], "not long enough");
}

#[test]
fn outage_describes_what_happened() {
    let (mut reactor, seen) = clockwork(Reactor::builder());
    seen.fate("1.1.1.1:1", Fate::ConnectsAndEnds(Duration::ZERO, Duration::from_secs(3)));
    let words = Rc::new(RefCell::new(Vec::new()));
    let list = words.clone();
    let (script, backoff) = (seen.clone(), Backoff::default().jitter(0.0));
    Reconnect::to("1.1.1.1:1".parse::<Address>().unwrap())
        .backoff(backoff)
        .on_outage(move |reactor, outage| {
            list.borrow_mut().push(outage.to_string());
            script.fate("1.1.1.1:1", Fate::Refuses(Duration::ZERO));
            if outage.attempt == 2 {
                reactor.stop();
            }
        })
        .run(&mut reactor, |_, attempt| Client(Log::default(), attempt));
    reactor.run().unwrap();
    assert_eq!(
        words.take(),
        [
            "1.1.1.1:1 was connected for 3.0s: reset by the other side; reconnecting in 100.0ms",
            "1.1.1.1:1 is not connected: connect to 1.1.1.1:1: refused; reconnecting in 200.0ms",
        ]
    );
}
