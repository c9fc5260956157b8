//! Either side is reset, closed or cannot be reached.

use std::io::{ErrorKind, Read, Write};

use pelton::{Proxy, ProxyError};
use pelton_testing::{Log, Network, On, on_every_network, pattern, run_until, run_with};

use super::{Side, listen_once, pair, run_out, sorted};

on_every_network![
    a_reset_client_ends_the_connection_to_the_server,
    a_reset_server_ends_the_connection_to_the_client,
    a_reset_after_a_half_close_reaches_the_other_side,
    a_local_close_finishes_the_other_side,
    a_target_that_refuses_fails_the_source,
    a_target_that_finishes_sending_ends_proxying,
    proxying_is_refused_with_a_reason,
    draining_closes_a_pair_after_writing,
    shutting_down_tells_every_handler_once;
    with_a_kernel: the_peer_sees_a_reset_and_no_orderly_end
];

fn a_reset_client_ends_the_connection_to_the_server(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ((), log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        assert_eq!(server.read_some(4), b"ping");
        client.reset();
        let _ = server.read(&mut [0]);
    });
    run_out(&mut reactor);
    let ends = [
        "client: 4 bytes, source closed",
        "client: reset by the other side",
        "server: 0 bytes, target failed",
        "server: closed by this side",
    ];
    assert_eq!(sorted(&log), ends);
}

fn a_reset_server_ends_the_connection_to_the_client(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ((), log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        assert_eq!(server.read_some(4), b"ping");
        server.reset();
        let _ = client.read(&mut [0]);
    });
    run_out(&mut reactor);
    let entries = sorted(&log);
    assert!(entries.contains(&"server: 0 bytes, source closed".to_owned()), "{entries:?}");
    assert!(entries.contains(&"server: reset by the other side".to_owned()), "{entries:?}");
    assert!(entries.contains(&"client: closed by this side".to_owned()), "{entries:?}");
    assert_eq!(entries.len(), 4, "each is told once: {entries:?}");
}

fn a_reset_after_a_half_close_reaches_the_other_side(on: impl Network) {
    // The client has finished, so it is no source any more when the server fails.
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ((), log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        client.finish();
        assert_eq!(server.read_all().unwrap(), b"ping");
        server.reset();
        let _ = client.read(&mut [0]);
    });
    run_out(&mut reactor);
    let entries = sorted(&log);
    assert_eq!(entries[..2], ["client: 4 bytes, peer finished", "client: closed by this side"]);
}

fn the_peer_sees_a_reset_and_no_orderly_end(on: On) {
    for client_fails in [true, false] {
        let mut reactor = on.reactor();
        let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
        let (error, _) = pair.run(&mut reactor, on, move |client, server| {
            let (failing, mut other) = if client_fails { (client, server) } else { (server, client) };
            failing.reset();
            other.read(&mut [0]).expect_err("an orderly end").kind()
        });
        assert_eq!(error, ErrorKind::ConnectionReset);
        run_out(&mut reactor);
    }
}

fn a_local_close_finishes_the_other_side(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let ((mut client, mut server), log) = pair.run(&mut reactor, on, |mut client, server| {
        client.write_all(&pattern(30_000)).unwrap();
        (client, server)
    });
    let (from, _) = ids.get().unwrap();
    run_until(&mut reactor, |reactor| reactor.connection(from).unwrap().proxied_bytes() == Some(30_000));
    reactor.connection(from).unwrap().close();
    // Forwarded bytes are not lost, and the end is orderly.
    let heard = run_with(&mut reactor, move || {
        let _ = client.read(&mut [0]);
        server.read_all().unwrap()
    });
    assert!(heard == pattern(30_000));
    run_out(&mut reactor);
    assert_eq!(sorted(&log)[..2], ["client: 30000 bytes, source closed", "client: closed by this side"]);
}

fn a_target_that_refuses_fails_the_source(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let nobody = {
        let listener = on.listen_peer();
        listener.address()
    };
    let entries = log.clone();
    let front = listen_once(
        &mut reactor,
        Side::new("client", &log).opened(move |io| {
            let server = io.reactor().connect(&nobody, Side::new("server", &entries)).unwrap();
            io.proxy_both(server, Proxy::new()).unwrap();
        }),
    );
    run_with(&mut reactor, move || {
        let mut client = on.connect_peer(&front);
        let _ = client.write_all(b"anybody?");
        let _ = client.read(&mut [0]);
    });
    run_out(&mut reactor);
    let entries = sorted(&log);
    assert!(entries[0].ends_with(" bytes, target failed"), "{entries:?}");
    assert!(entries.iter().any(|entry| entry.contains("refused")), "{entries:?}");
}

fn a_target_that_finishes_sending_ends_proxying(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = super::pair_of(
        &mut reactor,
        on,
        |client| client.finished(|_, _| {}),
        |server| server.stays(),
        |io, server| {
            io.proxy_to(server, Proxy::new()).unwrap();
            io.reactor().connection(server).unwrap().finish();
        },
    );
    let (_peers, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        assert_eq!(server.read_all().unwrap(), b"");
        client.write_all(b"too late").unwrap();
        (client, server)
    });
    run_until(&mut reactor, |_| log.entries().last().is_some_and(|last| last == "received too late"));
    assert_eq!(log.take(), ["client: 0 bytes, target closed", "received too late"]);
}

fn proxying_is_refused_with_a_reason(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| {
        let client = io.id();
        let third = io.reactor().connect(&"127.0.0.1:9".parse().unwrap(), Side::default()).unwrap();
        io.proxy_to(server, Proxy::new()).unwrap();
        assert_eq!(io.proxy_to(third, Proxy::new()), Err(ProxyError::SourceBusy));
        let mut other = io.reactor().connection(third).unwrap();
        assert_eq!(other.proxy_to(server, Proxy::new()), Err(ProxyError::TargetBusy));
        other.close();
        assert_eq!(io.reactor().proxy(third, client, Proxy::new()), Err(ProxyError::SourceClosed));
        let mut server = io.reactor().connection(server).unwrap();
        assert_eq!(server.proxy_to(third, Proxy::new()), Err(ProxyError::TargetClosed));
        assert_eq!((server.proxied_from(), server.proxies_to(), server.proxied_bytes()), (Some(client), None, None));
        // A pair of which one direction is refused is not proxied at all.
        let server = server.id();
        assert_eq!(io.reactor().proxy(server, client, Proxy::new()), Err(ProxyError::SourceBusy));
        assert_eq!(io.reactor().connection(server).unwrap().proxies_to(), None);
        assert_eq!((io.proxies_to(), io.proxied_from()), (Some(server), None));
        io.close_after_writing();
        assert_eq!(io.reactor().proxy(client, client, Proxy::new()), Err(ProxyError::SourceClosed));
    });
    pair.run(&mut reactor, on, |client, server| drop((client, server)));
    run_out(&mut reactor);
}

fn draining_closes_a_pair_after_writing(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let ids = pair.ids.clone();
    let ((mut client, mut server), log) = pair.run(&mut reactor, on, |mut client, server| {
        client.write_all(b"in flight").unwrap();
        (client, server)
    });
    let (from, _) = ids.get().unwrap();
    run_until(&mut reactor, |reactor| reactor.connection(from).unwrap().proxied_bytes() == Some(9));
    reactor.drain(std::time::Duration::from_secs(10));
    let reading = std::thread::spawn(move || (client.read_all().unwrap(), server.read_all().unwrap()));
    pelton_testing::run(&mut reactor);
    drop(reactor);
    assert_eq!(reading.join().unwrap(), (b"".to_vec(), b"in flight".to_vec()));
    assert_eq!(log.take().iter().filter(|entry| entry.contains("bytes")).count(), 2);
}

fn shutting_down_tells_every_handler_once(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let (peers, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"ping").unwrap();
        assert_eq!(server.read_some(4), b"ping");
        (client, server)
    });
    reactor.stop();
    reactor.run().unwrap();
    drop(peers);
    let ends = [
        "client: 4 bytes, source closed",
        "client: closed by this side",
        "server: 0 bytes, source closed",
        "server: closed by this side",
    ];
    assert_eq!(sorted(&log), ends);
}
