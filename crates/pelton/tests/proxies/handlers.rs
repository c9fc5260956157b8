//! Handlers that act when proxying ends, stop it, or panic.

use std::io::{Read, Write};

use pelton::{Proxy, ProxyEnd};
use pelton_testing::{Log, Network, on_every_network, pattern, run_until, run_with};

use super::{Side, listen_once, pair_of, run_out};

on_every_network![
    stopping_loses_nothing,
    a_finished_proxy_can_be_followed_by_another,
    a_handler_can_outlive_its_target,
    a_panic_in_the_callback_ends_only_its_connection,
    closing_in_the_callback_is_allowed,
];

fn stopping_loses_nothing(on: impl Network) {
    let mut reactor = on.reactor();
    let count = on.more_than_fits();
    let pair = pair_of(
        &mut reactor,
        on,
        Side::stays,
        |server| server,
        |io, server| {
            io.proxy_to(server, Proxy::new()).unwrap();
        },
    );
    let ids = pair.ids.clone();
    let ((client, server), log) = pair.run(&mut reactor, on, |client, server| (client, server));
    let mut writer = client.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&pattern(count)).unwrap();
        writer.finish();
    });
    let (from, to) = ids.get().unwrap();
    // In the middle, while the target is full.
    run_until(&mut reactor, |reactor| {
        let mut io = reactor.connection(to).unwrap();
        // Bulk may wait in a pipe.
        io.queued() > 0 || io.queued_in_files() > 0
    });
    let mut io = reactor.connection(from).unwrap();
    let proxied = io.stop_proxying().unwrap();
    assert_eq!((proxied.end, proxied.target), (ProxyEnd::Stopped, to));
    assert_eq!((io.stop_proxying(), io.proxied_bytes()), (None, None));
    run_until(&mut reactor, |_| log.entries().contains(&"client: peer finished".to_owned()));
    writing.join().unwrap();
    reactor.connection(to).unwrap().close_after_writing();
    let mut server = server;
    let heard = run_with(&mut reactor, move || server.read_all().unwrap());
    let bytes = proxied.bytes as usize;
    assert!(heard == pattern(count)[..bytes]);
    let entries = log.take();
    let received = String::from_utf8_lossy(&pattern(count)[bytes..]).len();
    assert!(entries[0].len() >= "received ".len() + received / 2, "{} of {received}", entries[0].len());
    assert!(!entries.iter().any(|entry| entry.contains("bytes,")), "stopping is not told");
    drop(client);
}

fn a_finished_proxy_can_be_followed_by_another(on: impl Network) {
    // A header of four bytes goes to one target, the rest to another.
    let (mut reactor, log) = (on.reactor(), Log::default());
    let (first, second) = (on.listen_peer(), on.listen_peer());
    let (to_first, to_second, entries) = (first.address(), second.address(), log.clone());
    let client = Side::new("client", &log)
        .opened(move |io| {
            let target = io.reactor().connect(&to_first, Side::new("first", &entries).stays()).unwrap();
            io.proxy_to(target, Proxy::new().limit(4)).unwrap();
        })
        .finished({
            let entries = log.clone();
            move |io, proxied| {
                if proxied.end == ProxyEnd::LimitReached {
                    let target = io.reactor().connect(&to_second, Side::new("second", &entries).stays()).unwrap();
                    io.proxy_to(target, Proxy::new()).unwrap();
                }
            }
        });
    let front = listen_once(&mut reactor, client);
    let heard = run_with(&mut reactor, move || {
        let mut client = on.connect_peer(&front);
        client.write_all(b"headbody").unwrap();
        client.finish();
        let (mut first, mut second) = (first.accept(), second.accept());
        (first.read_some(4), second.read_all().unwrap())
    });
    assert_eq!(heard, (b"head".to_vec(), b"body".to_vec()));
    let entries = log.take();
    assert_eq!(entries[..2], ["client: 4 bytes, limit reached", "client: 4 bytes, peer finished"]);
}

fn a_handler_can_outlive_its_target(on: impl Network) {
    // As EventMachine does: the source stays, and its handler receives what follows.
    let mut reactor = on.reactor();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client.finished(|_, _| {}),
        |server| server,
        |io, server| {
            io.proxy_to(server, Proxy::new()).unwrap();
        },
    );
    let (client, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"first").unwrap();
        assert_eq!(server.read_some(5), b"first");
        server.reset();
        client
    });
    run_until(&mut reactor, |_| log.entries().contains(&"client: 5 bytes, target failed".to_owned()));
    let mut client = client;
    client.write_all(b"second").unwrap();
    run_until(&mut reactor, |_| log.entries().contains(&"received second".to_owned()));
    drop(client);
    run_out(&mut reactor);
}

fn a_panic_in_the_callback_ends_only_its_connection(on: impl Network) {
    let mut reactor = on.catching();
    reactor.on_fault(|_, _| {});
    let panics = |side: Side| side.finished(|_, _| panic!("in proxy_finished"));
    let pair = pair_of(&mut reactor, on, panics, panics, |io, server| {
        io.proxy_both(server, Proxy::new()).unwrap();
    });
    let ((), log) = pair.run(&mut reactor, on, |client, mut server| {
        client.reset();
        let _ = server.read(&mut [0]);
    });
    run_out(&mut reactor);
    let entries = log.take();
    assert!(entries.contains(&"client: reset by the other side".to_owned()), "{entries:?}");
    assert_eq!(entries.iter().filter(|entry| entry.starts_with("server: ") && !entry.contains("bytes")).count(), 1);
}

fn closing_in_the_callback_is_allowed(on: impl Network) {
    let mut reactor = on.reactor();
    let closes = |side: Side| {
        side.finished(|io, proxied| {
            let target = proxied.target;
            io.stop_proxying();
            if let Some(mut target) = io.reactor().connection(target) {
                target.close();
            }
            io.close();
            io.close_after_writing();
            io.reset();
        })
    };
    let pair = pair_of(&mut reactor, on, closes, closes, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ((), log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        client.finish();
        let _ = server.read_all();
        let _ = client.read_all();
    });
    run_out(&mut reactor);
    let entries = log.take();
    assert_eq!(entries.iter().filter(|entry| entry.starts_with("client: ")).count(), 2, "{entries:?}");
}
