//! Servers at their limits, and without limits, on every engine. These tests move a lot of data, so they are separate from those
//! that measure time.

mod common;

use std::time::Duration;

use common::{Client, On, Serve, on_every_engine, statuses};
use pelton_http::wire::{ChunkLimits, HeadLimits};
use pelton_http::{Request, Response, Settings, plain};

on_every_engine![
    oldest_refused_connection_is_closed_first,
    new_connections_are_refused_while_too_much_output_is_queued,
    excessive_limits_are_clamped,
];

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn hello(_: &Request<'_>) -> &'static str {
    "hello\n"
}

/// The clients neither read nor close, and the number of connections is still bounded.
fn oldest_refused_connection_is_closed_first(on: On) {
    let settings = Settings { connections: 1, turned_away: 3, linger: common::DEADLINE, ..Settings::default() };
    let mut site = on.serve_with(plain(hello), settings);
    let address = site.address.clone();
    let mut clients: Vec<Client> = (0..10).map(|_| Client::connect(&address)).collect();
    let server = site.server.clone();
    site.run_until(move |_| server.stats().turned_away == 9);
    // One accepted connection and three that linger. Closed ones are gone when the turn ends.
    site.run_until(|reactor| reactor.connection_count() == 4);
    site.run(move |_| {
        clients[0].send(GET);
        assert!(clients[0].response().0.starts_with("HTTP/1.1 200 "));
        for client in &mut clients[1..] {
            assert!(client.response().0.starts_with("HTTP/1.1 503 "), "every client gets the refusal");
        }
    });
    site.run_until(|reactor| reactor.connection_count() == 0);
    assert_eq!(site.server.connections(), 0);
}

fn new_connections_are_refused_while_too_much_output_is_queued(on: On) {
    const MUCH: usize = 12 << 20;
    let body = pelton::Bytes::from(vec![b'x'; MUCH]);
    let handler = plain(move |_: &Request<'_>| Response::ok().body(body.clone()));
    let mut site = on.serve_with(handler, Settings { queued: 100_000, ..Settings::default() });
    let address = site.address.clone();
    let mut greedy = Client::connect(&address);
    greedy.send(GET);
    site.run_until(|reactor| reactor.queued() > 100_000);
    assert_eq!(statuses(&site.with_client(|mut client| client.read_to_end())), [503]);
    assert_eq!(site.server.stats().turned_away, 1);
    let read = site.run(move |_| greedy.response().1.len());
    assert_eq!(read, MUCH);
    let (head, _) = site.with_client(|mut client| {
        client.send(GET);
        client.response()
    });
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}

/// Nothing overflows, however the head is split.
fn excessive_limits_are_clamped(on: On) {
    const MOST: usize = usize::MAX;
    let settings = Settings {
        head: HeadLimits { request_line: MOST, header_bytes: MOST, headers: MOST },
        chunks: ChunkLimits {
            extensions: MOST,
            trailers: HeadLimits { request_line: MOST, header_bytes: MOST, headers: MOST },
        },
        body: u64::MAX,
        discard: u64::MAX,
        header_time: Duration::MAX,
        idle: Duration::MAX,
        body_rate: u32::MAX,
        body_window: Duration::MAX,
        drain_idle: Duration::MAX,
        linger: Duration::MAX,
        requests: Some(u32::MAX),
        pipelined: MOST,
        connections: MOST,
        connections_per_address: Some(MOST),
        queued: MOST,
        turned_away: MOST,
    };
    let mut site = on.serve_with(plain(hello), settings);
    site.with_client(|mut client| {
        for byte in GET.bytes().chain(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n".bytes(),
        ) {
            client.send([byte]);
        }
        assert!(client.response().0.starts_with("HTTP/1.1 200 "));
        assert!(client.response().0.starts_with("HTTP/1.1 200 "));
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nB: {}", "b".repeat(HeadLimits::MOST_BYTES)));
        assert!(client.response().0.starts_with("HTTP/1.1 431 "));
    });
    site.with_client(|mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\nx");
        assert!(client.response().0.starts_with("HTTP/1.1 200 "), "the handler does not read the body");
    });
    assert_eq!(site.reactor.stats().panics, 0);
}
