//! Connections that get another handler in the middle of their lives.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Chunk, Connection, ConnectionId, Io, Limit, Reactor, Reason};
use pelton_testing::{Log, on_every_network, run_until};

use super::{Network, listen, run_with, with_peer};

on_every_network![
    another_handler_hears_of_everything_from_then_on,
    a_connection_may_be_handed_over_from_outside,
    a_handler_may_hand_over_as_soon_as_it_is_opened,
    one_that_is_closed_at_once_is_closed_for_both,
    a_handler_that_panics_after_handing_over_is_closed_for_both,
    the_handler_before_may_close_it_when_told,
    that_the_peer_has_finished_is_told_again,
    one_that_is_not_established_yet_is_opened_for_the_other,
    what_waits_is_sent_first_and_reading_goes_on,
    one_that_is_handed_over_while_the_reactor_drains_is_told,
    what_is_kept_lives_as_long_as_the_connection,
];

const HANDED_OVER: &str = "closed: handed over to another handler";
const LOCAL: &str = "closed: closed by this side";

type Act = fn(&mut Named, &mut Io<'_>);

/// Logs what it is told with its name, and does something when it is opened, when it has received something, or at its end.
struct Named {
    name: &'static str,
    log: Log,
    opened: Act,
    received: Act,
    closed: fn(&mut Reactor),
}

/// The connection that was opened last.
#[derive(Default)]
struct Latest(Option<ConnectionId>);

fn latest(reactor: &mut Reactor) -> ConnectionId {
    reactor.state::<Latest>().0.expect("one was opened")
}

impl Named {
    fn new(name: &'static str, log: &Log) -> Named {
        Named { name, log: log.clone(), opened: |_, _| {}, received: |_, _| {}, closed: |_| {} }
    }

    fn add(&self, what: &str) {
        self.log.add(format!("{}: {what}", self.name));
    }

    /// Another one, which logs to the same place.
    fn next(&self, name: &'static str) -> Box<Named> {
        Box::new(Named::new(name, &self.log))
    }
}

impl Connection for Named {
    fn opened(&mut self, io: &mut Io<'_>) {
        let id = io.id();
        io.reactor().state::<Latest>().0 = Some(id);
        self.add("opened");
        (self.opened)(self, io);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        for byte in chunk.iter() {
            self.add(&format!("received {}", char::from(*byte)));
        }
        (self.received)(self, io);
    }

    fn drained(&mut self, _: &mut Io<'_>) {
        self.add("drained");
    }

    fn sent(&mut self, _: &mut Io<'_>) {
        self.add("sent");
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.add("peer finished");
        io.close_after_writing();
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        self.add(&format!("timed out: {limit}"));
        io.set_limit(limit, None);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        self.add("draining");
        io.close_after_writing();
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        self.add(&format!("closed: {reason}"));
        (self.closed)(reactor);
    }
}

/// What one of them was told.
fn told(log: &Log, name: &str) -> Vec<String> {
    let prefix = format!("{name}: ");
    log.entries().iter().filter_map(|entry| entry.strip_prefix(&prefix)).map(str::to_owned).collect()
}

fn another_handler_hears_of_everything_from_then_on(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let serve = log.clone();
    let much = on.more_than_fits();
    let address = listen(&mut reactor, move |_| {
        let mut first = Named::new("first", &serve);
        first.received = |first, io| {
            let mut second = first.next("second");
            second.opened = |_, io| {
                io.set_limit(Limit::Inactivity, Some(Duration::from_millis(30)));
                io.tell_when_sent();
            };
            // It has read more than is its own.
            io.hand_over(second, b"xy".to_vec());
            // All of this is still the first one's.
            assert_eq!(first.log.entries().len(), 2);
        };
        first
    });
    let heard = log.clone();
    let (sent, timed_out) = ("second: sent".to_owned(), "second: timed out: nothing was sent or received".to_owned());
    let mut peer = on.connect_peer(&address);
    peer.write_all(b"a").unwrap();
    run_until(&mut reactor, |_| heard.entries().contains(&sent) && heard.entries().contains(&timed_out));
    assert_eq!(told(&log, "first"), ["opened", "received a", HANDED_OVER]);
    // Everything that a connection can be told: what was read already, what comes later, room to send, the end.
    let id = latest(&mut reactor);
    reactor.connection(id).unwrap().send_bytes(vec![0; much]).unwrap();
    let received = run_with(&mut reactor, move || {
        peer.write_all(b"z").unwrap();
        let received = peer.read_some(much).len();
        peer.finish();
        received + peer.read_all().unwrap().len()
    });
    assert_eq!(received, much);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(told(&log, "first"), ["opened", "received a", HANDED_OVER]);
    let mut second = told(&log, "second");
    assert_eq!(second[0], "opened");
    assert_eq!(second.last().unwrap(), "closed: finished by the other side");
    second.sort();
    second.dedup();
    let mut expected = [
        "closed: finished by the other side",
        "drained",
        "opened",
        "peer finished",
        "received x",
        "received y",
        "received z",
        "sent",
        "timed out: nothing was sent or received",
    ];
    expected.sort_unstable();
    assert_eq!(second, expected);
    assert_eq!(reactor.stats().panics, 0);
}

/// Serves what `make` makes to a peer that sends one letter, until that is over. Gives what was told.
fn story(on: impl Network, make: fn(&Log) -> Named) -> (Log, u64) {
    let mut reactor = on.catching();
    reactor.on_fault(|_, _| {});
    let log = Log::default();
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| make(&serve));
    let mut peer = on.connect_peer(&address);
    peer.write_all(b"a").unwrap();
    peer.finish();
    run_until(&mut reactor, |_| log.entries().iter().any(|entry| entry.starts_with("second: closed: ")));
    assert_eq!(reactor.connection_count(), 0);
    (log, reactor.stats().panics)
}

fn a_connection_may_be_handed_over_from_outside(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| Named::new("first", &serve));
    let mut peer = on.connect_peer(&address);
    run_until(&mut reactor, |reactor| reactor.state::<Latest>().0.is_some());
    let id = latest(&mut reactor);
    assert!(reactor.visit(id, |_: &mut Named, _| {}).is_some());
    let second = Box::new(super::Scripted::logging(&log));
    reactor.connection(id).unwrap().hand_over(second, b"b".to_vec());
    assert_eq!(log.entries(), ["first: opened"], "nobody is called from here");
    peer.write_all(b"c").unwrap();
    let heard = log.clone();
    run_until(&mut reactor, |_| heard.entries().last().is_some_and(|last| last.ends_with("bc")));
    assert_eq!(
        log.entries(),
        ["first: opened".into(), format!("first: {HANDED_OVER}"), "opened".into(), "received bc".into()]
    );
    // It is the other one's now, also for those who look for it.
    assert!(reactor.visit(id, |_: &mut Named, _| {}).is_none());
    assert!(reactor.visit(id, |_: &mut super::Scripted, io| io.close()).is_some());
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.entries().last().unwrap(), LOCAL);
}

fn a_handler_may_hand_over_as_soon_as_it_is_opened(on: impl Network) {
    /// Hands over to another of its kind so many times. That takes no stack.
    struct Relay(u32, Log);

    impl Connection for Relay {
        fn opened(&mut self, io: &mut Io<'_>) {
            match self.0 {
                0 => self.1.add("the last one is opened"),
                left => io.hand_over(Box::new(Relay(left - 1, self.1.clone())), Vec::new()),
            }
        }

        fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
            self.1.received(&chunk);
            assert_eq!(self.0, 0);
        }

        fn closed(&mut self, _: &mut Reactor, reason: Reason) {
            assert_eq!(matches!(reason, Reason::HandedOver), self.0 > 0, "{reason}");
            self.1.add("closed");
        }
    }

    const RELAYS: u32 = 20_000;
    let mut reactor = on.reactor();
    let log = Log::default();
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| Relay(RELAYS, serve.clone()));
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"a").unwrap();
        peer.finish();
        peer.read_all().unwrap();
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    let entries = log.entries();
    let relays = RELAYS as usize;
    assert_eq!(entries.len(), relays + 3);
    assert_eq!(entries[relays..], ["the last one is opened", "received a", "closed"]);
    assert_eq!(reactor.stats().panics, 0);
}

fn one_that_is_closed_at_once_is_closed_for_both(on: impl Network) {
    let (log, _) = story(on, |log| {
        let mut first = Named::new("first", log);
        first.opened = |first, io| {
            io.hand_over(first.next("second"), b"b".to_vec());
            io.close();
        };
        first
    });
    assert_eq!(told(&log, "first"), ["opened", HANDED_OVER]);
    assert_eq!(told(&log, "second"), [LOCAL]);
}

fn a_handler_that_panics_after_handing_over_is_closed_for_both(on: impl Network) {
    let (log, panics) = story(on, |log| {
        let mut first = Named::new("first", log);
        first.opened = |first, io| {
            io.hand_over(first.next("second"), Vec::new());
            panic!("on purpose");
        };
        first
    });
    assert_eq!((told(&log, "first"), panics), (vec!["opened".to_owned(), HANDED_OVER.to_owned()], 1));
    assert_eq!(told(&log, "second"), ["closed: its handler panicked"]);
    // Its own end is no reason for the connection to end.
    let (log, panics) = story(on, |log| {
        let mut first = Named::new("first", log);
        first.opened = |first, io| io.hand_over(first.next("second"), Vec::new());
        first.closed = |_| panic!("on purpose");
        first
    });
    assert_eq!((told(&log, "first"), panics), (vec!["opened".to_owned(), HANDED_OVER.to_owned()], 1));
    let second = ["opened", "received a", "peer finished", "closed: finished by the other side"];
    assert_eq!(told(&log, "second"), second);
}

fn the_handler_before_may_close_it_when_told(on: impl Network) {
    let (log, _) = story(on, |log| {
        let mut first = Named::new("first", log);
        first.opened = |first, io| io.hand_over(first.next("second"), Vec::new());
        first.closed = |reactor| {
            let id = latest(reactor);
            reactor.connection(id).unwrap().close();
        };
        first
    });
    assert_eq!(told(&log, "first"), ["opened", HANDED_OVER]);
    assert_eq!(told(&log, "second"), [LOCAL]);
}

fn that_the_peer_has_finished_is_told_again(on: impl Network) {
    struct First(Log);

    impl Connection for First {
        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

        fn peer_finished(&mut self, io: &mut Io<'_>) {
            self.0.add("first: peer finished");
            io.hand_over(Box::new(Named::new("second", &self.0)), b"bc".to_vec());
        }
    }

    let mut reactor = on.reactor();
    let log = Log::default();
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| First(serve.clone()));
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.finish();
        peer.read_all().unwrap();
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(told(&log, "first"), ["peer finished"]);
    let second = ["opened", "received b", "received c", "peer finished", "closed: finished by the other side"];
    assert_eq!(told(&log, "second"), second);
}

fn one_that_is_not_established_yet_is_opened_for_the_other(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let listener = on.listen_peer();
    let id = reactor.connect(&listener.address(), Named::new("first", &log)).unwrap();
    reactor.connection(id).unwrap().hand_over(Box::new(Named::new("second", &log)), b"b".to_vec());
    let mut peer = run_with(&mut reactor, move || listener.accept());
    peer.write_all(b"c").unwrap();
    let heard = log.clone();
    run_until(&mut reactor, |_| told(&heard, "second").len() == 3);
    assert_eq!(told(&log, "first"), [HANDED_OVER]);
    assert_eq!(told(&log, "second"), ["opened", "received b", "received c"]);
}

fn what_waits_is_sent_first_and_reading_goes_on(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| {
        let mut first = Named::new("first", &serve);
        first.opened = |first, io| {
            io.pause();
            io.tell_when_sent();
            io.send(b"from the first, ").unwrap();
            let mut second = first.next("second");
            second.opened = |_, io| io.send(b"from the second").unwrap();
            io.hand_over(second, Vec::new());
        };
        first
    });
    let received = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"a").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(received, b"from the first, from the second");
    assert_eq!(told(&log, "first"), ["opened", HANDED_OVER]);
    // It was the first one that wanted to know what was sent.
    let second = ["opened", "received a", "peer finished", "closed: finished by the other side"];
    assert_eq!(told(&log, "second"), second);
}

fn one_that_is_handed_over_while_the_reactor_drains_is_told(on: impl Network) {
    struct First(Log);

    impl Connection for First {
        fn opened(&mut self, io: &mut Io<'_>) {
            let id = io.id();
            io.count_as_used();
            io.reactor().state::<Latest>().0 = Some(id);
        }

        fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

        fn draining(&mut self, io: &mut Io<'_>) {
            io.hand_over(Box::new(Named::new("second", &self.0)), Vec::new());
        }
    }

    let mut reactor = on.reactor();
    let log = Log::default();
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| First(serve.clone()));
    let _peer = on.connect_peer(&address);
    run_until(&mut reactor, |reactor| reactor.state::<Latest>().0.is_some());
    reactor.drain(Duration::from_secs(20));
    assert_eq!(reactor.run().unwrap(), pelton::Exit::Drained);
    assert_eq!(told(&log, "second"), ["opened", "draining", LOCAL]);
}

fn what_is_kept_lives_as_long_as_the_connection(on: impl Network) {
    struct Kept(Rc<Cell<u32>>, Log);

    impl Drop for Kept {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            self.1.add("dropped");
        }
    }

    let mut reactor = on.reactor();
    let (log, dropped) = (Log::default(), Rc::new(Cell::new(0)));
    let serve = log.clone();
    let address = listen(&mut reactor, move |_| {
        let mut first = Named::new("first", &serve);
        first.received = |first, io| io.hand_over(first.next("second"), Vec::new());
        first
    });
    let mut peer = on.connect_peer(&address);
    run_until(&mut reactor, |reactor| reactor.state::<Latest>().0.is_some());
    let id = latest(&mut reactor);
    for _ in 0..2 {
        reactor.connection(id).unwrap().keep(Kept(dropped.clone(), log.clone()));
    }
    peer.write_all(b"a").unwrap();
    let heard = log.clone();
    run_until(&mut reactor, |_| told(&heard, "second") == ["opened"]);
    assert_eq!(dropped.get(), 0);
    peer.finish();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(dropped.get(), 2);
    assert_eq!(log.entries()[log.len() - 3..], ["second: closed: finished by the other side", "dropped", "dropped"]);
}
