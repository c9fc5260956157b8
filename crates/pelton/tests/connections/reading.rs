//! What comes in.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;

use pelton::Io;

use super::common::{Log, activity, on_every_network, run_until};
use super::{Network, Scripted, listen, with_peer};

on_every_network![a_paused_connection_reads_nothing_and_a_hang_up_on_it_costs_nothing];

fn a_paused_connection_reads_nothing_and_a_hang_up_on_it_costs_nothing(on: impl Network) {
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
        "data comes first"
    );
    assert!(reactor.connection(id.get().unwrap()).is_none());
}
