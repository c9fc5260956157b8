//! Chains and circles of connections, and layers on them.

use std::io::Write;

use pelton::{ConnectionId, Proxy, Reactor};
use pelton_testing::{Log, Network, on_every_network, pattern, run_with};

use super::toys::{Shift, shift, unshift};
use super::{Side, listen_once, pair, run_out};

on_every_network![
    a_connection_proxied_to_itself_echoes,
    a_chain_passes_each_input_one_step_on,
    a_circle_of_three_ends_when_all_have_finished,
    layers_transform_what_is_proxied,
    layers_can_be_pushed_on_a_proxied_pair,
];

fn a_connection_proxied_to_itself_echoes(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let front = listen_once(
        &mut reactor,
        Side::new("self", &log).opened(|io| {
            let id = io.id();
            io.proxy_to(id, Proxy::new()).unwrap();
            assert_eq!((io.proxies_to(), io.proxied_from()), (Some(id), Some(id)));
        }),
    );
    let count = on.more_than_fits();
    run_with(&mut reactor, move || {
        let mut client = on.connect_peer(&front);
        let mut writer = client.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&pattern(count)).unwrap();
            writer.finish();
        });
        assert!(client.read_all().unwrap() == pattern(count));
        writing.join().unwrap();
    });
    run_out(&mut reactor);
    let ends = [format!("self: {count} bytes, peer finished"), "self: finished by the other side".to_owned()];
    assert_eq!(log.take(), ends);
}

/// Connects to three peers, called a, b and c.
fn three(reactor: &mut Reactor, log: &Log, on: impl Network) -> ([ConnectionId; 3], [pelton_testing::PeerListener; 3]) {
    let listeners = [(); 3].map(|()| on.listen_peer());
    let mut names = ["a", "b", "c"].into_iter();
    let ids = [0, 1, 2].map(|index| {
        let side = Side::new(names.next().unwrap(), log).stays();
        reactor.connect(&listeners[index].address(), side).unwrap()
    });
    (ids, listeners)
}

fn a_chain_passes_each_input_one_step_on(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let ([a, b, c], listeners) = three(&mut reactor, &log, on);
    reactor.connection(a).unwrap().proxy_to(b, Proxy::new()).unwrap();
    reactor.connection(b).unwrap().proxy_to(c, Proxy::new()).unwrap();
    let heard = run_with(&mut reactor, move || {
        let [mut a, mut b, mut c] = listeners.map(|listener| listener.accept());
        a.write_all(b"from a").unwrap();
        b.write_all(b"from b").unwrap();
        a.finish();
        b.finish();
        let heard = (b.read_all().unwrap(), c.read_all().unwrap());
        c.finish();
        heard
    });
    assert_eq!(heard, (b"from a".to_vec(), b"from b".to_vec()));
    run_out(&mut reactor);
}

fn a_circle_of_three_ends_when_all_have_finished(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let ([a, b, c], listeners) = three(&mut reactor, &log, on);
    for (from, to) in [(a, b), (b, c), (c, a)] {
        reactor.connection(from).unwrap().proxy_to(to, Proxy::new()).unwrap();
    }
    run_with(&mut reactor, move || {
        let peers = listeners.map(|listener| listener.accept());
        let mut each = peers.clone();
        for (peer, said) in each.iter_mut().zip([b"a", b"b", b"c"]) {
            peer.write_all(said).unwrap();
            peer.finish();
        }
        let heard = peers.map(|mut peer| peer.read_all().unwrap());
        assert_eq!(heard, [b"c", b"a", b"b"]);
    });
    run_out(&mut reactor);
    let finished = log.take().into_iter().filter(|entry| entry.ends_with(": finished by the other side")).count();
    assert_eq!(finished, 3);
}

fn layers_transform_what_is_proxied(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| {
        io.push_layer(Shift::default());
        io.proxy_both(server, Proxy::new()).unwrap();
    });
    let count = on.more_than_fits() / 4;
    pair.run(&mut reactor, on, move |mut client, mut server| {
        let mut writer = client.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&shift(&pattern(count))).unwrap();
            writer.finish();
        });
        assert!(server.read_all().unwrap() == pattern(count));
        writing.join().unwrap();
        server.write_all(b"in clear").unwrap();
        server.finish();
        assert_eq!(unshift(&client.read_all().unwrap()), b"in clear");
    });
    run_out(&mut reactor);
}

fn layers_can_be_pushed_on_a_proxied_pair(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let ((mut client, mut server), _) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"plain").unwrap();
        assert_eq!(server.read_some(5), b"plain");
        (client, server)
    });
    // On both sides, with forwarded bytes before and behind.
    let (from, to) = ids.get().unwrap();
    reactor.connection(to).unwrap().push_layer(Shift::default());
    reactor.connection(from).unwrap().push_layer(Shift::default());
    run_with(&mut reactor, move || {
        client.write_all(&shift(b"to the server")).unwrap();
        client.finish();
        assert_eq!(unshift(&server.read_all().unwrap()), b"to the server");
        server.write_all(&shift(b"to the client")).unwrap();
        server.finish();
        assert_eq!(unshift(&client.read_all().unwrap()), b"to the client");
    });
    run_out(&mut reactor);
}
