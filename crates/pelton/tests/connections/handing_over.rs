//! Connections that get another handler in the middle of their lives.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Chunk, Connection, ConnectionId, Io, Limit, Reactor, Reason};
use pelton_testing::{Log, on_every_network, run_until};

use super::{Network, listen, run_with, with_peer};

on_every_network![
    new_handler_gets_every_callback,
    a_connection_may_be_handed_over_from_outside,
    a_handler_may_hand_over_as_soon_as_it_is_opened,
    closing_at_once_closes_both_handlers,
    panic_after_handing_over_closes_both_handlers,
    previous_handler_may_close_the_connection,
    peer_finished_is_repeated_for_the_new_handler,
    connection_that_is_not_established_is_opened_for_the_new_handler,
    queued_output_is_sent_first_and_reading_continues,
    handing_over_while_draining_calls_draining,
    kept_values_live_as_long_as_the_connection,
];

const HANDED_OVER: &str = "closed: handed over to another handler";
const LOCAL: &str = "closed: closed by this side";

type Act = fn(&mut Named, &mut Io<'_>);

/// Logs its callbacks under its name, and runs closures when it is opened, when it has received something, and when it is
/// closed.
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
    reactor.state::<Latest>().0.expect("none was opened")
}

impl Named {
    fn new(name: &'static str, log: &Log) -> Named {
        Named { name, log: log.clone(), opened: |_, _| {}, received: |_, _| {}, closed: |_| {} }
    }

    fn add(&self, what: &str) {
        self.log.add(format!("{}: {what}", self.name));
    }

    /// Creates another handler with the same log.
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

    fn writable(&mut self, _: &mut Io<'_>) {
        self.add("writable");
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

/// The log entries of one handler.
fn told(log: &Log, name: &str) -> Vec<String> {
    let prefix = format!("{name}: ");
    log.entries().iter().filter_map(|entry| entry.strip_prefix(&prefix)).map(str::to_owned).collect()
}

fn new_handler_gets_every_callback(on: impl Network) {
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
            // It has read more than it consumes.
            io.hand_over(second, b"xy".to_vec());
            // The first handler still gets all of this.
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
    // Every callback that a connection has: data read earlier, data that arrives later, room to send, the end.
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
        "writable",
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

/// Serves the handlers of `make` to a peer that sends one letter, until the connection ends. Returns the log.
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
    assert_eq!(log.entries(), ["first: opened"], "no callback runs yet");
    peer.write_all(b"c").unwrap();
    let heard = log.clone();
    run_until(&mut reactor, |_| heard.entries().last().is_some_and(|last| last.ends_with("bc")));
    assert_eq!(
        log.entries(),
        ["first: opened".into(), format!("first: {HANDED_OVER}"), "opened".into(), "received bc".into()]
    );
    // Visits now find the new handler.
    assert!(reactor.visit(id, |_: &mut Named, _| {}).is_none());
    assert!(reactor.visit(id, |_: &mut super::Scripted, io| io.close()).is_some());
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.entries().last().unwrap(), LOCAL);
}

fn a_handler_may_hand_over_as_soon_as_it_is_opened(on: impl Network) {
    /// Hands over to another of its kind this many times. The stack does not grow.
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

fn closing_at_once_closes_both_handlers(on: impl Network) {
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

fn panic_after_handing_over_closes_both_handlers(on: impl Network) {
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
    // A panic in its own `closed` does not end the connection.
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

fn previous_handler_may_close_the_connection(on: impl Network) {
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

fn peer_finished_is_repeated_for_the_new_handler(on: impl Network) {
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

fn connection_that_is_not_established_is_opened_for_the_new_handler(on: impl Network) {
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

fn queued_output_is_sent_first_and_reading_continues(on: impl Network) {
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
    // Only the first handler asked to be told about sent data.
    let second = ["opened", "received a", "peer finished", "closed: finished by the other side"];
    assert_eq!(told(&log, "second"), second);
}

fn handing_over_while_draining_calls_draining(on: impl Network) {
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

fn kept_values_live_as_long_as_the_connection(on: impl Network) {
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
