//! Bulk between sockets, which the kernel moves.
#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use pelton::{ConnectionId, Proxy};
use pelton_testing::{On, on_every_engine, pattern, run_until, run_with};

use super::toys::{Shift, unshift};
use super::{pair, run_out};

on_every_engine![
    bulk_arrives_complete_and_leaves_no_pipe_behind,
    bulk_to_a_slow_reader_arrives_complete_and_in_order,
    stopping_in_the_middle_of_bulk_loses_nothing,
    a_layer_in_the_middle_of_bulk_gets_the_rest,
    a_reset_in_the_middle_of_bulk_ends_both_sides,
];

const BULK: usize = 30_000_000;

/// The pipes that this process has open.
fn pipes() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with("pipe:")).count()
}

/// Turns the loop until the source splices. Other tests open pipes at the same time, so the test asks the source.
fn run_until_it_splices(reactor: &mut pelton::EventLoop, ids: &Rc<Cell<Option<(ConnectionId, ConnectionId)>>>) {
    run_until(reactor, |reactor| {
        let Some((from, _)) = ids.get() else { return false };
        reactor.connection(from).is_some_and(|mut io| io.is_spliced())
    });
}

fn bulk_arrives_complete_and_leaves_no_pipe_behind(on: On) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let (ids, bytes) = (pair.ids.clone(), pattern(BULK));
    let spliced = Rc::new(Cell::new(false));
    let (seen, watched) = (spliced.clone(), ids.clone());
    reactor.every(Duration::from_micros(100), move |reactor, _| {
        let source = watched.get().and_then(|(from, _)| reactor.connection(from));
        seen.set(seen.get() || source.is_some_and(|mut io| io.is_spliced()));
    });
    let (peers, log) = pair.run(&mut reactor, on, move |mut client, server| {
        let (sent, mut reader) = (bytes.clone(), server.clone());
        let reading = std::thread::spawn(move || reader.read_some(BULK) == sent);
        client.write_all(&bytes).unwrap();
        assert!(reading.join().unwrap());
        (client, server)
    });
    assert!(spliced.get(), "the kernel did not move it");
    // The pair is idle now, and gives its pipe back.
    run_until(&mut reactor, |reactor| !reactor.connection(ids.get().unwrap().0).unwrap().is_spliced());
    drop(peers);
    run_out(&mut reactor);
    assert!(log.take().contains(&format!("client: {BULK} bytes, peer finished")));
    assert!(pipes() < 200, "{} pipes", pipes());
}

fn bulk_to_a_slow_reader_arrives_complete_and_in_order(on: On) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let bytes = pattern(BULK);
    pair.run(&mut reactor, on, move |mut client, mut server| {
        let sent = bytes.clone();
        let writing = std::thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client.finish();
        });
        let mut heard = Vec::new();
        for piece in [1, 1_000, 100_000, 3_000_000, 7, 5_000_000] {
            heard.extend(server.read_some(piece));
            std::thread::sleep(Duration::from_millis(10));
        }
        heard.extend(server.read_all().unwrap());
        assert!(heard == bytes);
        writing.join().unwrap();
    });
    run_out(&mut reactor);
}

fn stopping_in_the_middle_of_bulk_loses_nothing(on: On) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_to(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let ((mut client, mut server), _) = pair.run(&mut reactor, on, |client, server| (client, server));
    let (bytes, sent) = (pattern(BULK), pattern(BULK));
    let writing = std::thread::spawn(move || {
        // Fails when the connection is closed.
        let _ = client.write_all(&sent);
    });
    run_until_it_splices(&mut reactor, &ids);
    let (from, to) = ids.get().unwrap();
    run_until(&mut reactor, |reactor| reactor.connection(to).unwrap().queued_in_files() > 0);
    let proxied = reactor.connection(from).unwrap().stop_proxying().unwrap();
    reactor.connection(to).unwrap().close_after_writing();
    let heard = run_with(&mut reactor, move || server.read_all().unwrap());
    assert!(heard == bytes[..proxied.bytes as usize]);
    reactor.connection(from).unwrap().close();
    run_out(&mut reactor);
    writing.join().unwrap();
}

fn a_layer_in_the_middle_of_bulk_gets_the_rest(on: On) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let ((mut client, mut server), _) = pair.run(&mut reactor, on, |client, server| (client, server));
    let (bytes, sent) = (pattern(BULK), pattern(BULK));
    let writing = std::thread::spawn(move || {
        client.write_all(&sent).unwrap();
        client.finish();
    });
    run_until_it_splices(&mut reactor, &ids);
    let (from, to) = ids.get().unwrap();
    let plain = reactor.connection(from).unwrap().proxied_bytes().unwrap() as usize;
    reactor.connection(to).unwrap().push_layer(Shift::default());
    let heard = run_with(&mut reactor, move || {
        let heard = server.read_all().unwrap();
        server.finish();
        heard
    });
    assert!(heard[..plain] == bytes[..plain]);
    assert!(unshift(&heard[plain..]) == bytes[plain..]);
    run_out(&mut reactor);
    writing.join().unwrap();
}

fn a_reset_in_the_middle_of_bulk_ends_both_sides(on: On) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let ((mut client, server), _) = pair.run(&mut reactor, on, |client, server| (client, server));
    let writing = std::thread::spawn(move || client.write_all(&pattern(BULK)).is_err());
    run_until_it_splices(&mut reactor, &ids);
    server.reset();
    run_out(&mut reactor);
    assert!(writing.join().unwrap());
}
