//! Limits on clients, over real connections, on every engine.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::tree::Tree;
use common::{Client, On, Serve, on_every_engine, statuses};
use pelton::Reactor;
use pelton_http::wire::HeadLimits;
use pelton_http::{Census, Request, Responder, Response, Server, Settings, plain};

on_every_engine![
    slow_head_gets_408,
    a_silent_connection_is_closed,
    an_idle_connection_is_closed,
    slow_handlers_do_not_time_out,
    slow_body_gets_408,
    steady_body_is_read,
    requests_per_connection_are_limited,
    connections_are_limited,
    connections_per_address_are_limited,
    pipelined_requests_are_limited,
    heads_that_are_too_long_are_refused,
    responses_arrive_even_after_an_error,
    refused_client_may_keep_sending,
    refused_client_may_not_send_forever,
    servers_that_share_a_census_share_limits,
    connection_is_not_idle_while_a_response_is_in_flight,
    refused_client_gets_earlier_responses,
    draining_finishes_started_requests,
    draining_answers_requests_in_flight,
    draining_waits_for_requests_no_longer_than_allowed,
];

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const SHORT: Duration = Duration::from_millis(60);

fn hello(_: &Request<'_>) -> &'static str {
    "hello\n"
}

/// Sends a head byte by byte. Progress alone does not extend the deadline.
fn slow_head_gets_408(on: On) {
    let mut site = on.serve_with(plain(hello), Settings { header_time: SHORT, ..Settings::default() });
    site.with_client(|mut client| {
        client.send(GET);
        client.response();
        client.0.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let begun = Instant::now();
        let mut answer = Vec::new();
        for byte in GET.bytes().cycle().take(GET.len() - 1).chain(std::iter::repeat(b'x')) {
            if std::io::Write::write_all(&mut client.0, &[byte]).is_err() {
                break;
            }
            let mut buffer = [0; 1000];
            match std::io::Read::read(&mut client.0, &mut buffer) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
                Err(_) => {}
            }
            assert!(begun.elapsed() < common::DEADLINE);
        }
        assert_eq!(statuses(&String::from_utf8(answer).unwrap()), [408]);
        assert!(begun.elapsed() >= SHORT);
    });
}

fn a_silent_connection_is_closed(on: On) {
    let mut site = on.serve_with(plain(hello), Settings { header_time: SHORT, ..Settings::default() });
    assert_eq!(site.with_client(|mut client| client.read_to_end()), "", "without a response");
}

fn an_idle_connection_is_closed(on: On) {
    let mut site = on.serve_with(plain(hello), Settings { idle: SHORT, ..Settings::default() });
    site.with_client(|mut client| {
        let begun = Instant::now();
        client.send(GET);
        client.response();
        // Each request restarts the idle time.
        std::thread::sleep(SHORT / 2);
        client.send(GET);
        client.response();
        assert_eq!(client.read_to_end(), "", "without a response");
        assert!(begun.elapsed() >= SHORT * 3 / 2, "{:?}", begun.elapsed());
    });
}

fn slow_handlers_do_not_time_out(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        reactor.after(SHORT * 2, |reactor| responder.respond(reactor, "late\n"));
    };
    let settings = Settings { idle: SHORT, header_time: SHORT, body_window: SHORT, ..Settings::default() };
    let mut site = on.serve_with(handler, settings);
    site.with_client(|mut client| {
        client.send(GET);
        assert_eq!(client.response().1, "late\n");
        client.send(GET);
        assert_eq!(client.response().1, "late\n");
    });
}

fn collect(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().collect(reactor, |reactor, body| match body {
        Ok(body) => responder.respond(reactor, format!("{}\n", body.len())),
        Err(error) => responder.respond(reactor, error.response()),
    });
}

fn slow_body_gets_408(on: On) {
    let mut site = on.serve_with(collect, Settings { body_window: SHORT, body_rate: 1000, ..Settings::default() });
    site.with_client(|mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nfew");
        assert_eq!(statuses(&client.read_to_end()), [408]);
    });
}

fn steady_body_is_read(on: On) {
    let mut site = on.serve_with(collect, Settings { body_window: SHORT, body_rate: 100, ..Settings::default() });
    site.with_client(|mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n\r\n");
        // For several windows. The sleep is the client's sending rate; it does not wait for anything.
        for _ in 0..20 {
            std::thread::sleep(SHORT / 6);
            client.send([b'x'; 10]);
        }
        assert_eq!(client.response().1, "200\n");
    });
}

fn requests_per_connection_are_limited(on: On) {
    let mut site = on.serve_with(plain(hello), Settings { requests: Some(3), ..Settings::default() });
    let answer = site.ask(GET.repeat(5));
    assert_eq!(statuses(&answer), [200; 3]);
    assert_eq!(answer.matches("Connection: close").count(), 1, "{answer}");
}

fn connections_are_limited(on: On) {
    let mut site = on.serve_with(plain(hello), Settings { connections: 2, ..Settings::default() });
    site.run(|address| {
        let ask = |client: &mut Client| {
            client.send(GET);
            client.response().0
        };
        let (mut one, mut two) = (Client::connect(&address), Client::connect(&address));
        assert!(ask(&mut one).starts_with("HTTP/1.1 200"));
        assert!(ask(&mut two).starts_with("HTTP/1.1 200"));
        let answer = Client::connect(&address).read_to_end();
        assert_eq!(statuses(&answer), [503], "before any request");
        drop(one);
        let deadline = Instant::now() + common::DEADLINE;
        loop {
            let mut another = Client::connect(&address);
            another.send(GET);
            another.finish();
            if statuses(&another.read_to_end()) == [200] {
                break;
            }
            assert!(Instant::now() < deadline, "no room");
        }
    });
}

fn connections_per_address_are_limited(on: On) {
    let settings = Settings { connections_per_address: Some(1), ..Settings::default() };
    let mut site = on.serve_with(plain(hello), settings);
    site.run(|address| {
        let mut one = Client::connect(&address);
        one.send(GET);
        assert!(one.response().0.starts_with("HTTP/1.1 200"));
        assert_eq!(statuses(&Client::connect(&address).read_to_end()), [503]);
    });
    site.run_until(|reactor| reactor.connection_count() == 0);
    assert_eq!(statuses(&site.ask(GET)), [200], "the first connection has ended");
}

fn pipelined_requests_are_limited(on: On) {
    let (now, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let shown = most.clone();
    let handler = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        now.set(now.get() + 1);
        most.set(most.get().max(now.get()));
        let now = now.clone();
        reactor.after(Duration::from_millis(1), move |reactor| {
            now.set(now.get() - 1);
            responder.respond(reactor, "x");
        });
    };
    let mut site = on.serve_with(handler, Settings { pipelined: 4, ..Settings::default() });
    assert_eq!(statuses(&site.ask(GET.repeat(50))), [200; 50]);
    assert_eq!(shown.get(), 4);
}

fn heads_that_are_too_long_are_refused(on: On) {
    let head = HeadLimits { request_line: 20, header_bytes: 40, headers: 2 };
    let mut site = on.serve_with(plain(hello), Settings { head, ..Settings::default() });
    assert_eq!(statuses(&site.ask(GET)), [200]);
    assert_eq!(statuses(&site.ask("GET /0123456789 HTTP/1.1\r\nHost: a\r\n\r\n")), [414]);
    assert_eq!(statuses(&site.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "x".repeat(40)))), [431]);
    assert_eq!(statuses(&site.ask("GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nC: d\r\n\r\n")), [431]);
    // A request line of 1 MB without an end.
    assert_eq!(statuses(&site.ask("GET /".to_owned() + &"x".repeat(1_000_000))), [414]);
}

/// Closing a socket with unread input causes a reset, which can discard output that the peer has not read.
fn responses_arrive_even_after_an_error(on: On) {
    let mut site = on.serve(plain(hello));
    for _ in 0..20 {
        let answer = site.ask(GET.to_owned() + "nonsense\r\n\r\n" + &"x".repeat(300_000));
        assert_eq!(statuses(&answer), [200, 400]);
    }
}

fn refused_client_may_keep_sending(on: On) {
    let mut site = on.serve(plain(hello));
    site.with_client(|mut client| {
        client.send("nonsense\r\n\r\n");
        // It has been answered but has not read the answer yet.
        client.0.peek(&mut [0]).unwrap();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            client.send("more");
        }
        client.finish();
        assert_eq!(statuses(&client.read_to_end()), [400]);
    });
}

fn refused_client_may_not_send_forever(on: On) {
    let mut site = on.serve_with(plain(hello), Settings { linger: SHORT, ..Settings::default() });
    site.with_client(|mut client| {
        client.send("nonsense\r\n\r\n");
        let begun = Instant::now();
        while std::io::Write::write_all(&mut client.0, b"more").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(begun.elapsed() < common::DEADLINE, "the connection is still open");
        }
    });
    assert_eq!(site.reactor.connection_count(), 0);
}

/// More than the system accepts at once.
const LARGE: usize = 12_000_000;

/// Serves a large file. For the connection, the response is complete as soon as it is queued.
fn serve_large(on: On, settings: Settings) -> common::Site {
    let tree = Tree::new();
    tree.write("large", vec![b'x'; LARGE]);
    let file = std::sync::Arc::new(std::fs::File::open(tree.path().join("large")).unwrap());
    on.serve_with(plain(move |_| Response::new(200).file(file.clone(), 0, LARGE as u64)), settings)
}

/// Reads slowly for four times the limit, calling `act` before each read. Returns the number of bytes read.
fn read_slowly(client: &mut Client, limit: Duration, act: impl Fn(&mut Client)) -> usize {
    let mut read = 0;
    for _ in 0..20 {
        std::thread::sleep(limit / 5);
        act(client);
        read += client.read_exactly(40_000).len();
    }
    read
}

fn connection_is_not_idle_while_a_response_is_in_flight(on: On) {
    let idle = Duration::from_millis(200);
    let mut site = serve_large(on, Settings { idle, ..Settings::default() });
    site.with_client(move |mut client| {
        client.send(GET);
        client.read_until("\r\n\r\n");
        let read = read_slowly(&mut client, idle, |_| {});
        client.read_exactly(LARGE - read);
        client.send(GET);
        client.read_until("\r\n\r\n");
        client.read_exactly(LARGE);
        assert_eq!(client.read_to_end(), "", "the connection is idle now");
    });
}

fn refused_client_gets_earlier_responses(on: On) {
    let linger = Duration::from_millis(200);
    let mut site = serve_large(on, Settings { linger, ..Settings::default() });
    site.with_client(move |mut client| {
        // Otherwise the receive buffer would grow until it holds the whole response.
        socket2::SockRef::from(&client.0).set_recv_buffer_size(100_000).unwrap();
        client.send(format!("{GET}nonsense\r\n\r\n"));
        client.read_until("\r\n\r\n");
        // The kernel sends the rest, the refusal is queued behind it, and the client keeps sending.
        let left = 1_500_000;
        client.read_exactly(LARGE - left);
        let read = read_slowly(&mut client, linger, |client| client.send("more"));
        client.read_exactly(left - read);
        assert_eq!(statuses(&client.read_to_end()), [400]);
    });
}

fn draining_finishes_started_requests(on: On) {
    let begun = Rc::new(Cell::new(false));
    let flag = begun.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        if request.path() == "/late" {
            flag.set(true);
            reactor.after(Duration::from_millis(30), |reactor| responder.respond(reactor, "late\n"));
        } else {
            responder.respond(reactor, "hello\n");
        }
    };
    let mut site = on.serve(handler);
    let mut idle = Client::connect(&site.address);
    idle.send(GET);
    let mut busy = Client::connect(&site.address);
    busy.send("GET /late HTTP/1.1\r\nHost: a\r\n\r\n");
    let (mut idle, _) = site.run(move |_| {
        let answer = idle.response();
        (idle, answer)
    });
    site.run_until(move |_| begun.get());
    site.reactor.drain(common::DEADLINE);
    let exit = site.reactor.run().unwrap();
    assert_eq!(exit, pelton::Exit::Drained);
    assert_eq!(idle.read_to_end(), "");
    let answer = busy.read_to_end();
    assert!(answer.contains("Connection: close\r\n") && answer.ends_with("late\n"), "{answer}");
}

/// An idle connection that has been used, and a new one.
fn idle_and_new(site: &mut common::Site) -> (Client, Client) {
    let clients = site.run(|address| {
        let mut idle = Client::connect(&address);
        idle.send(GET);
        assert!(!idle.response().0.contains("Connection: close"));
        (idle, Client::connect(&address))
    });
    let server = site.server.clone();
    site.run_until(move |_| server.connections() == 2);
    clients
}

fn draining_answers_requests_in_flight(on: On) {
    // Draining ends when both have been answered, and not before.
    let settings = Settings { drain_idle: Duration::from_secs(3600), ..Settings::default() };
    let mut site = on.serve_with(plain(hello), settings);
    let (mut idle, mut new) = idle_and_new(&mut site);
    site.reactor.drain(common::DEADLINE);
    // The connections know that the reactor drains.
    site.run_until(|reactor| reactor.stopping());
    for _ in 0..3 {
        site.reactor.turn(Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(site.reactor.connection_count(), 2);
    let asking = std::thread::spawn(move || {
        // In two pieces: a request that has begun is waited for.
        let (first, rest) = GET.split_at(10);
        idle.send(first);
        new.send(GET);
        let answer = new.read_to_end();
        idle.send(rest);
        [idle.read_to_end(), answer]
    });
    assert_eq!(site.reactor.run().unwrap(), pelton::Exit::Drained);
    for answer in asking.join().unwrap() {
        assert!(answer.contains("Connection: close\r\n") && answer.ends_with("hello\n"), "{answer}");
    }
}

fn draining_waits_for_requests_no_longer_than_allowed(on: On) {
    for drain_idle in [Duration::ZERO, SHORT] {
        let mut site = on.serve_with(plain(hello), Settings { drain_idle, ..Settings::default() });
        let (mut idle, mut new) = idle_and_new(&mut site);
        let begun = Instant::now();
        site.reactor.drain(common::DEADLINE);
        assert_eq!(site.reactor.run().unwrap(), pelton::Exit::Drained);
        assert!(begun.elapsed() >= drain_idle);
        assert_eq!((idle.read_to_end(), new.read_to_end()), (String::new(), String::new()));
    }
}

fn servers_that_share_a_census_share_limits(on: On) {
    let settings = Settings { connections: 3, connections_per_address: Some(2), ..Settings::default() };
    let census = Census::default();
    let mut first = on.serve(plain(hello));
    first.server = Server::sharing(plain(hello), settings.clone(), &census);
    let second = Server::sharing(plain(hello), settings, &census);
    let mut addresses = Vec::new();
    for (server, address) in [(&first.server, "127.0.0.1:0"), (&second, "127.0.0.1:0")] {
        let listener = server.listen(&mut first.reactor, address).unwrap();
        addresses.push(first.reactor.listening_on(listener).unwrap().to_string());
    }
    let from = |address: &str, ip: &str| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::new(ip.parse().unwrap(), 0).into()).unwrap();
        socket.connect(&address.parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.set_read_timeout(Some(common::DEADLINE)).unwrap();
        Client(socket.into())
    };
    let told = addresses.clone();
    first.run(move |_| {
        let status = |client: &mut Client| {
            client.send(GET);
            client.response().0[9..12].to_owned()
        };
        let (one, other) = (&told[0], &told[1]);
        let mut kept = [from(one, "127.0.0.1"), from(other, "127.0.0.1")];
        assert_eq!(kept.each_mut().map(status), ["200", "200"]);
        assert_eq!(from(one, "127.0.0.1").response().0[9..12], *"503", "the limit per address is two");
        let mut elsewhere = from(other, "127.0.0.2");
        assert_eq!(status(&mut elsewhere), "200");
        assert_eq!(from(one, "127.0.0.3").response().0[9..12], *"503", "the limit is three");
    });
    first.run_until(|_| census.connections() == 0);
    assert_eq!((first.server.connections(), second.connections()), (0, 0));
    let told = addresses.clone();
    let answer = first.run(move |_| {
        let mut client = from(&told[1], "127.0.0.1");
        client.send(GET);
        client.response().0
    });
    assert_eq!(statuses(&answer), [200]);
}
