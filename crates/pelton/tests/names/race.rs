//! The race between addresses, with a simulated clock and network.

use std::rc::Rc;
use std::time::Duration;

use pelton::{ConnectOptions, Reactor};
use pelton_testing::clockwork::{Fate, Seen, clockwork, elapsed};
use pelton_testing::{DEADLINE, Log, poll, run, run_until};

use super::{Known, Logging, refusing};

const AT_ONCE: Duration = Duration::ZERO;

/// Connects to a name with these addresses; returns the engine's log and the handler's.
fn race(fates: &[(&str, Fate)], options: &ConnectOptions) -> (Rc<Seen>, Vec<String>) {
    let addresses = fates.iter().map(|(address, _)| address.parse().unwrap()).collect();
    let (mut reactor, seen) = clockwork(Reactor::builder().resolver(Known(addresses)));
    for (address, fate) in fates {
        seen.fate(address, *fate);
    }
    let log = Log::default();
    let id = reactor.connect_to_with("somewhere:1", options, Logging(log.clone())).unwrap();
    reactor.connection(id).unwrap().send(b"hello").unwrap();
    assert!(seen.log.borrow().is_empty() && log.is_empty());
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
        "the last address is not tried"
    );
    assert_eq!((seen.held.borrow().len(), seen.sent.take()), (1, b"hello".to_vec()));
}

#[test]
fn failure_starts_the_next_attempt_and_restarts_the_delay() {
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
fn single_address_needs_no_race() {
    let (seen, told) = race(&[("1.1.1.1:1", Fate::Connects(AT_ONCE))], &ConnectOptions::default());
    assert_eq!(told, ["opened: 1.1.1.1:1"]);
    assert_eq!(seen.take_log(), ["0 connect 1.1.1.1:1"]);
    assert_eq!(seen.sent.take(), b"hello");
    let (seen, told) = race(&[("1.1.1.1:1", Fate::Fails)], &ConnectOptions::default());
    assert_eq!(told, ["closed: connect to somewhere:1: 1.1.1.1:1: the engine is out of order"]);
    assert_eq!(seen.take_log(), ["0 connect 1.1.1.1:1"]);
}

#[test]
fn only_addresses_of_the_bound_family_are_tried() {
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
fn connection_closed_while_the_engine_releases_the_winner_stays_closed() {
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
fn engine_is_not_asked_to_forget_an_unknown_connection() {
    let (mut reactor, seen) = clockwork(Reactor::builder().resolver(Known(vec![refusing()])));
    let log = Log::default();
    let id = reactor.connect_to("somewhere:1", Logging(log.clone())).unwrap();
    reactor.connection(id).unwrap().close();
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: closed by this side"]);
    assert!(seen.take_log().is_empty());
}
