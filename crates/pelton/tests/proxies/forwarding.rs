//! Bytes and their end go from one connection to another.

use std::io::Write;

use pelton::{PassOn, Proxy};
use pelton_testing::{Log, Network, On, on_every_network, pattern, run_until, run_with};

use super::{Side, listen_once, pair, pair_of, run_out, sorted};

on_every_network![
    bytes_and_half_closes_go_both_ways,
    the_other_direction_lives_on_after_a_half_close,
    input_that_arrived_early_is_forwarded,
    an_end_that_was_told_already_is_passed_on,
    one_way_leaves_the_other_direction_to_the_handler,
    bytes_alone_leave_the_target_open,
    large_streams_arrive_complete_in_both_directions;
    with_a_kernel: a_pipe_is_proxied_to_a_socket
];

fn bytes_and_half_closes_go_both_ways(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let (heard, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"request").unwrap();
        client.finish();
        let request = server.read_all().unwrap();
        server.write_all(b"the answer").unwrap();
        server.finish();
        (request, client.read_all().unwrap())
    });
    assert_eq!(heard, (b"request".to_vec(), b"the answer".to_vec()));
    run_out(&mut reactor);
    let ends = [
        "client: 7 bytes, peer finished",
        "client: finished by the other side",
        "server: 10 bytes, peer finished",
        "server: finished by the other side",
    ];
    assert_eq!(sorted(&log), ends);
}

fn the_other_direction_lives_on_after_a_half_close(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    let (heard, _) = pair.run(&mut reactor, on, |mut client, mut server| {
        // The server finishes first.
        server.finish();
        assert_eq!(client.read_all().unwrap(), b"");
        for _ in 0..100 {
            client.write_all(b"still here ").unwrap();
        }
        client.finish();
        server.read_all().unwrap()
    });
    assert_eq!(heard, b"still here ".repeat(100));
    run_out(&mut reactor);
}

fn input_that_arrived_early_is_forwarded(on: impl Network) {
    // The client has sent everything and finished before the target is connected.
    let (mut reactor, log) = (on.reactor(), Log::default());
    let back = on.listen_peer();
    let (target, entries) = (back.address(), log.clone());
    let front = listen_once(
        &mut reactor,
        Side::new("client", &log).opened(move |io| {
            io.pause();
            let client = io.id();
            io.reactor().after(std::time::Duration::from_millis(20), move |reactor| {
                let server = reactor.connect(&target, Side::new("server", &entries)).unwrap();
                reactor.proxy(client, server, Proxy::new()).unwrap();
                reactor.connection(client).unwrap().resume();
            });
        }),
    );
    let heard = run_with(&mut reactor, move || {
        let mut client = on.connect_peer(&front);
        client.write_all(&pattern(50_000)).unwrap();
        client.finish();
        let mut server = back.accept();
        let heard = server.read_all().unwrap();
        server.write_all(b"thanks").unwrap();
        drop(server);
        assert_eq!(client.read_all().unwrap(), b"thanks");
        heard
    });
    assert!(heard == pattern(50_000));
    run_out(&mut reactor);
}

fn an_end_that_was_told_already_is_passed_on(on: impl Network) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let back = on.listen_peer();
    let front = listen_once(
        &mut reactor,
        Side::new("client", &log).stays().opened(move |io| {
            *io.reactor().state() = Some(io.id());
        }),
    );
    let client = std::thread::spawn(move || {
        let mut client = on.connect_peer(&front);
        client.write_all(b"early").unwrap();
        client.finish();
        client.read_all().unwrap()
    });
    run_until(&mut reactor, |_| log.entries().contains(&"client: peer finished".to_owned()));
    let from = reactor.state::<Option<pelton::ConnectionId>>().unwrap();
    let to = reactor.connect(&back.address(), Side::new("server", &log)).unwrap();
    reactor.connection(to).unwrap().send(b"early").unwrap();
    reactor.proxy(from, to, Proxy::new()).unwrap();
    let heard = run_with(&mut reactor, move || {
        let mut server = back.accept();
        let heard = server.read_all().unwrap();
        server.write_all(b"late").unwrap();
        heard
    });
    assert_eq!(heard, b"early");
    run_out(&mut reactor);
    assert_eq!(run_with(&mut reactor, move || client.join().unwrap()), b"late");
}

fn one_way_leaves_the_other_direction_to_the_handler(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client,
        |server| server.stays(),
        |io, server| {
            io.proxy_to(server, Proxy::new()).unwrap();
        },
    );
    let ((), log) = pair.run(&mut reactor, on, |mut client, mut server| {
        server.write_all(b"to the handler").unwrap();
        client.write_all(b"to the server").unwrap();
        client.finish();
        assert_eq!(server.read_all().unwrap(), b"to the server");
        // Nothing is proxied to the client, so its end closes it.
        assert_eq!(client.read_all().unwrap(), b"");
        server.finish();
    });
    run_out(&mut reactor);
    let entries = log.take();
    // It may come in pieces, with other entries in between.
    let received: String = entries.iter().filter_map(|entry| entry.strip_prefix("received ")).collect();
    assert_eq!(received, "to the handler");
    assert!(entries.contains(&"client: 13 bytes, peer finished".to_owned()), "{entries:?}");
    assert!(!entries.iter().any(|entry| entry.starts_with("server: ") && entry.contains("bytes")), "{entries:?}");
}

fn bytes_alone_leave_the_target_open(on: impl Network) {
    let mut reactor = on.reactor();
    let pair = pair_of(
        &mut reactor,
        on,
        |client| client.finished(|_, _| {}),
        |server| server,
        |io, server| {
            io.proxy_to(server, Proxy::new().pass_on(PassOn::Bytes)).unwrap();
        },
    );
    let ids = pair.ids.clone();
    let (server, log) = pair.run(&mut reactor, on, |mut client, mut server| {
        client.write_all(b"first").unwrap();
        client.finish();
        assert_eq!(client.read_all().unwrap(), b"");
        assert_eq!(server.read_some(5), b"first");
        server
    });
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    let (_, to_server) = ids.get().unwrap();
    reactor.connection(to_server).unwrap().send(b" and last").unwrap();
    reactor.connection(to_server).unwrap().close_after_writing();
    let mut server = server;
    assert_eq!(run_with(&mut reactor, move || server.read_all().unwrap()), b" and last");
    run_out(&mut reactor);
    assert_eq!(log.take()[..2], ["client: 5 bytes, peer finished", "client: peer finished"]);
}

fn large_streams_arrive_complete_in_both_directions(on: impl Network) {
    let mut reactor = on.reactor();
    let count = on.more_than_fits();
    let pair = pair(&mut reactor, on, |io, server| io.proxy_both(server, Proxy::new()).unwrap());
    pair.run(&mut reactor, on, move |client, server| {
        // Both send everything before they read: the directions must not wait for each other.
        let sending = [client, server].map(|peer| {
            let mut writer = peer.clone();
            let writing = std::thread::spawn(move || {
                writer.write_all(&pattern(count)).unwrap();
                writer.finish();
            });
            (peer, writing)
        });
        let reading = sending.map(|(mut peer, writing)| {
            std::thread::spawn(move || {
                assert!(peer.read_all().unwrap() == pattern(count));
                writing.join().unwrap();
            })
        });
        reading.into_iter().for_each(|reading| reading.join().unwrap());
    });
    run_out(&mut reactor);
}

fn a_pipe_is_proxied_to_a_socket(on: On) {
    let (mut reactor, log) = (on.reactor(), Log::default());
    let back = on.listen_peer();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let server = reactor.connect(&back.address(), Side::new("server", &log)).unwrap();
    let pipe = reactor.adopt(reader, Side::new("pipe", &log)).unwrap();
    reactor.connection(pipe).unwrap().proxy_to(server, Proxy::new()).unwrap();
    // The other way is refused: nothing can be sent to a pipe's read end.
    let back_again = reactor.connection(server).unwrap().proxy_to(pipe, Proxy::new());
    assert_eq!(back_again, Err(pelton::ProxyError::TargetClosed));
    let heard = run_with(&mut reactor, move || {
        let mut server = back.accept();
        writer.write_all(b"through a pipe").unwrap();
        drop(writer);
        server.read_all().unwrap()
    });
    assert_eq!(heard, b"through a pipe");
    run_out(&mut reactor);
    assert_eq!(log.take()[0], "pipe: 14 bytes, peer finished");
}
