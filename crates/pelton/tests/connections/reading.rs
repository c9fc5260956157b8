//! Receiving, pausing and errors.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;

use pelton::{Chunk, Connection, Io, Reactor, Reason};
use pelton_testing::{Log, activity, on_every_network, poll, run_until};

use super::{Network, Scripted, listen, pattern, with_peer};

on_every_network![
    paused_connection_reads_nothing_and_a_hang_up_costs_nothing,
    paused_input_is_held_in_order,
    data_before_an_error_is_delivered_first,
    data_before_an_error_is_delivered_even_if_paused,
    failing_send_while_receiving_loses_no_data,
];

fn paused_connection_reads_nothing_and_a_hang_up_costs_nothing(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let id = Rc::new(Cell::new(None));
    let (entries, known) = (log.clone(), id.clone());
    let address = listen(&mut reactor, move |_| {
        let known = known.clone();
        let opened = move |io: &mut Io<'_>| {
            io.pause();
            known.set(Some(io.id()));
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    with_peer(&mut reactor, on, &address, |mut peer| peer.write_all(b"data").unwrap());
    run_until(&mut reactor, |_| log.len() == 1);
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
    reactor.connection(id.get().unwrap()).unwrap().resume();
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(
        log.take(),
        ["received data", "peer finished", "closed: finished by the other side"],
        "data is delivered first"
    );
    assert!(reactor.connection(id.get().unwrap()).is_none());
}

/// Pauses after each piece; resumed alternately from outside and from its own callbacks.
#[derive(Default)]
struct Halting {
    collected: Rc<RefCell<Vec<u8>>>,
    pauses: usize,
    ended: Rc<Cell<bool>>,
}

impl Connection for Halting {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        assert!(!io.is_paused());
        self.collected.borrow_mut().extend_from_slice(&chunk);
        self.pauses += 1;
        io.pause();
        let (id, inside) = (io.id(), self.pauses.is_multiple_of(2));
        // Two ticks, so that data in flight can arrive.
        io.reactor().next_tick(move |reactor| {
            reactor.next_tick(move |reactor| match inside {
                true => reactor.visit(id, |_: &mut Halting, io| io.resume()).unwrap(),
                false => reactor.connection(id).unwrap().resume(),
            });
        });
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        assert!(!io.is_paused());
        io.close();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        assert!(matches!(reason, Reason::Local), "{reason}");
        self.ended.set(true);
    }
}

fn paused_input_is_held_in_order(on: impl Network) {
    let mut reactor = on.reactor();
    let (collected, ended) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
    let (into, end) = (collected.clone(), ended.clone());
    let address =
        listen(&mut reactor, move |_| Halting { collected: into.clone(), ended: end.clone(), ..Halting::default() });
    let data = pattern(500_000);
    let sent = data.clone();
    with_peer(&mut reactor, on, &address, move |mut peer| peer.write_all(&sent).unwrap());
    run_until(&mut reactor, |_| ended.get());
    assert!(*collected.borrow() == data);
    assert_eq!(reactor.stats().panics, 0);
}

fn data_before_an_error_is_delivered_first(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| Scripted::logging(&entries));
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"before it").unwrap();
        peer.reset();
    });
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(log.take(), ["opened", "received before it", "closed: reset by the other side"]);
}

fn data_before_an_error_is_delivered_even_if_paused(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let id = Rc::new(Cell::new(None));
    let (entries, known) = (log.clone(), id.clone());
    let address = listen(&mut reactor, move |_| {
        let known = known.clone();
        let opened = move |io: &mut Io<'_>| {
            io.pause();
            known.set(Some(io.id()));
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"before it").unwrap();
        peer.reset();
    });
    run_until(&mut reactor, |_| log.len() == 1);
    // A paused connection notices it when it sends.
    reactor.connection(id.get().unwrap()).unwrap().send(b"anybody there?").unwrap();
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(log.take(), ["opened", "received before it", "closed: reset by the other side"]);
}

fn failing_send_while_receiving_loses_no_data(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let id = Rc::new(Cell::new(None));
    let (entries, known) = (log.clone(), id.clone());
    let address = listen(&mut reactor, move |_| {
        let (told, known) = (entries.clone(), known.clone());
        let received = move |io: &mut Io<'_>, chunk: Chunk| {
            told.received(&chunk);
            match known.replace(Some(io.id())) {
                None => io.pause(),
                // Refused from the second time on.
                Some(_) => drop(io.send_now(b"anybody there?")),
            }
        };
        Scripted { received: Some(Box::new(received)), ..Scripted::logging(&entries) }
    });
    let text = "0123456789".repeat(100);
    let sent = text.clone();
    with_peer(&mut reactor, on, &address, move |mut peer| {
        peer.write_all(sent.as_bytes()).unwrap();
        peer.reset();
    });
    run_until(&mut reactor, |_| id.get().is_some());
    for _ in 0..10 {
        poll(&mut reactor);
    }
    // The error may have arrived already, and everything before it.
    if let Some(mut io) = reactor.connection(id.get().unwrap()) {
        io.resume();
    }
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["opened", &format!("received {text}"), "closed: reset by the other side"]);
}
