//! The reverse proxy: what servers and clients get, several targets, bodies, tunnels.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::scripted::{Scripted, Visitor};
use common::{Serve, Site, field, statuses};
use pelton::{Balance, Reactor, Targets};
use pelton_http::client::Settings as ClientSettings;
use pelton_http::{Client, HostField, ReverseProxy, Router, Scheme, Server, Settings, Upstream, plain};
use pelton_testing::{On, on_every_engine};

on_every_engine![
    requests_and_responses_pass,
    only_what_concerns_both_ends_passes,
    connections_to_the_server_are_kept,
    origins_of_requests_are_recorded,
    trusted_proxies_are_believed,
    prefixes_are_kept_or_replaced,
    the_head_of_a_slow_response_does_not_wait_for_the_body,
    bodies_of_any_kind_pass_in_both_directions,
    slow_readers_slow_the_server_down,
    slow_servers_slow_the_client_down,
    consent_comes_from_the_server,
    a_server_may_refuse_a_body_that_was_announced,
    a_response_before_the_end_of_the_request_ends_it,
    interim_responses_pass,
    trailers_pass,
    head_requests_have_no_bodies,
    protocols_are_switched,
    a_refused_switch_is_a_response,
    another_target_is_tried,
    requests_with_a_body_go_elsewhere_before_it_is_read,
    targets_share_the_load,
    servers_on_unix_sockets_are_reached,
];

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn proxy(server: &Scripted) -> ReverseProxy {
    to([format!("http://{}", server.address())])
}

fn to<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> ReverseProxy {
    ReverseProxy::to(urls).unwrap()
}

/// A server that records the heads of its requests, in lower case, and answers them.
fn recording(answer: &'static str) -> (Scripted, mpsc::Receiver<String>) {
    let (heard, requests) = mpsc::channel();
    let heard = std::sync::Mutex::new(heard);
    let server = Scripted::new(move |visitor| {
        while let Some(request) = visitor.request() {
            heard.lock().unwrap().send(request).unwrap();
            if !visitor.send(answer) {
                break;
            }
        }
    });
    (server, requests)
}

fn requests_and_responses_pass(on: On) {
    let (server, requests) = recording("HTTP/1.1 201 Made\r\nX-From: server\r\nContent-Length: 5\r\n\r\nhello");
    let mut site = on.serve(proxy(&server));
    let (head, body) = site.request("GET", "/a/b?c=%20d", &["X-To: server", "Cookie: x=y"]);
    assert!(head.starts_with("HTTP/1.1 201 Created\r\n"), "{head}");
    assert_eq!((field(&head, "X-From"), field(&head, "Content-Length")), (Some("server"), Some("5")));
    assert_eq!(body, b"hello");
    let request = requests.recv().unwrap();
    assert!(request.starts_with("GET /a/b?c=%20d HTTP/1.1\r\nHost: a\r\n"), "{request}");
    assert_eq!((field(&request, "X-To"), field(&request, "Cookie")), (Some("server"), Some("x=y")));
    assert_eq!(field(&request, "Via"), Some("1.1 pelton"));
    for own in ["User-Agent", "Accept-Encoding", "Connection", "Content-Length"] {
        assert_eq!(field(&request, own), None, "{own}: {request}");
    }
}

fn only_what_concerns_both_ends_passes(on: On) {
    let (server, requests) = recording(
        "HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\nX-End: 2\r\n\
         Proxy-Authenticate: x\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
    );
    let mut site = on.serve(proxy(&server));
    let answer = site.ask(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, x-mine, Host\r\nX-Mine: 1\r\nX-Yours: 2\r\nTE: trailers\r\n\
         Proxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nProxy-Authorization: x\r\nUpgrade: h2c\r\n\r\n",
    );
    let request = requests.recv().unwrap();
    for hop in ["Connection", "X-Mine", "TE", "Proxy-Connection", "Keep-Alive", "Proxy-Authorization", "Upgrade"] {
        assert_eq!(field(&request, hop), None, "{hop}: {request}");
    }
    assert_eq!((field(&request, "X-Yours"), field(&request, "Host")), (Some("2"), Some("a")));
    for hop in ["X-Hop", "Keep-Alive", "Proxy-Authenticate", "Upgrade"] {
        assert_eq!(field(&answer, hop), None, "{hop}: {answer}");
    }
    assert_eq!((field(&answer, "X-End"), field(&answer, "Connection")), (Some("2"), None), "{answer}");
}

fn connections_to_the_server_are_kept(on: On) {
    let (server, requests) = recording(OK);
    let mut site = on.serve(proxy(&server));
    let answer = site.with_client(|mut client| {
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut bodies = String::new();
        for _ in 0..5 {
            client.send(get);
            bodies += &client.response().1;
        }
        // Pipelined ones are answered in order, over several connections.
        client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
        bodies + &client.response().1 + &client.response().1
    });
    assert_eq!(answer, "ok".repeat(7));
    assert_eq!(requests.try_iter().count(), 7);
    assert!(server.accepted() <= 2);
}

fn origins_of_requests_are_recorded(on: On) {
    let (server, requests) = recording(OK);
    let proxy = proxy(&server).scheme(Scheme::Https).host(HostField::Target);
    let mut site = on.serve(proxy);
    let forged = [
        "X-Forwarded-For: 1.1.1.1",
        "x_forwarded_for: 1.1.1.1",
        "Forwarded: for=1.1.1.1",
        "X-Forwarded-Proto: gopher",
        "X-Forwarded-Prefix: /admin",
        "X-Real-IP: 1.1.1.1",
    ];
    site.request("GET", "/", &forged);
    let request = requests.recv().unwrap();
    assert!(!request.contains("1.1.1.1") && !request.contains("gopher") && !request.contains("admin"), "{request}");
    assert_eq!(field(&request, "X-Forwarded-For"), Some("127.0.0.1"));
    assert_eq!(field(&request, "X-Forwarded-Proto"), Some("https"));
    assert_eq!(field(&request, "X-Forwarded-Host"), Some("a"));
    assert_eq!(field(&request, "Forwarded"), Some("for=127.0.0.1;host=a;proto=https"));
    assert_eq!(field(&request, "Host"), Some(&*server.address().to_string()));
}

fn trusted_proxies_are_believed(on: On) {
    let (server, requests) = recording(OK);
    let mut site = on.serve(proxy(&server).trust(Arc::new("127.0.0.0/8".parse().unwrap())));
    let fields = [
        "X-Forwarded-For: 192.0.2.1",
        "Forwarded: for=192.0.2.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: www",
        "X-Forwarded-Prefix: /x",
    ];
    site.request("GET", "/", &fields);
    let request = requests.recv().unwrap();
    assert_eq!(field(&request, "X-Forwarded-For"), Some("192.0.2.1, 127.0.0.1"));
    assert_eq!(field(&request, "Forwarded"), Some("for=192.0.2.1, for=127.0.0.1;host=a;proto=http"));
    assert_eq!(field(&request, "X-Forwarded-Proto"), Some("https"));
    assert_eq!(field(&request, "X-Forwarded-Host"), Some("www"));
    assert_eq!(field(&request, "X-Forwarded-Prefix"), Some("/x"));
}

fn prefixes_are_kept_or_replaced(on: On) {
    let (server, requests) = recording(OK);
    let base = format!("http://{}", server.address());
    let router = Router::new()
        .get("/", plain(|_| "own"))
        .mount("/kept", to([&base]))
        .mount("/root", to([format!("{base}/")]))
        .mount("/moved", to([format!("{base}/v1/")]));
    let mut site = on.serve(router);
    for (path, expected) in [
        ("/kept/a?b", "/kept/a?b"),
        ("/kept", "/kept"),
        ("/root/a?b", "/a?b"),
        ("/root", "/"),
        ("/moved/a//b%2Fc", "/v1/a//b%2Fc"),
        ("/moved/.well-known?", "/v1/.well-known?"),
        ("http://other/moved/x", "/v1/x"),
    ] {
        let (head, _) = site.request("GET", path, &[]);
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        let request = requests.recv().unwrap();
        assert!(request.starts_with(&format!("GET {expected} HTTP/1.1\r\n")), "{path}: {request}");
        let host = if path.starts_with('/') { "a" } else { "other" };
        assert_eq!(field(&request, "Host"), Some(host));
    }
    for path in ["/kept/../x", "/moved/%2e%2E/x", "/root/a/..%2fx", "/kept/..\\x"] {
        assert!(site.request("GET", path, &[]).0.starts_with("HTTP/1.1 400"), "{path}");
    }
    assert_eq!(site.request("GET", "/", &[]).1, b"own");
    assert!(requests.try_recv().is_err());
}

fn the_head_of_a_slow_response_does_not_wait_for_the_body(on: On) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = Scripted::new(move |visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..2 {
            wait.lock().unwrap().recv().unwrap();
            visitor.send("3\r\none\r\n");
        }
        visitor.send("0\r\n\r\n");
    });
    let mut site = on.serve(proxy(&server));
    site.with_client(move |mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.read_until("\r\n\r\n").contains("Transfer-Encoding: chunked"));
        for _ in 0..2 {
            go.send(()).unwrap();
            client.read_until("3\r\none\r\n");
        }
        client.read_until("0\r\n\r\n");
    });
}

/// A server on the proxy's own loop that sends back what it gets.
fn echo(reactor: &mut Reactor) -> String {
    let echo = |reactor: &mut Reactor, request: pelton_http::Request<'_>, responder: pelton_http::Responder| {
        let stream = std::cell::RefCell::new(Some(responder.stream(reactor, pelton_http::Response::ok())));
        request.body().limit(u64::MAX).read(reactor, move |reactor, event| match event {
            pelton_http::BodyEvent::Data(data) => {
                let stream = stream.borrow();
                stream.as_ref().unwrap().send(reactor, data.to_vec()).unwrap();
            }
            pelton_http::BodyEvent::End(_) => stream.take().unwrap().finish(reactor),
            pelton_http::BodyEvent::Failed(_) => drop(stream.take()),
        });
    };
    let listener = Server::new(echo).listen(reactor, "127.0.0.1:0").unwrap();
    format!("http://{}", reactor.listening_on(listener).unwrap())
}

fn bodies_of_any_kind_pass_in_both_directions(on: On) {
    let mut reactor = on.reactor();
    let url = echo(&mut reactor);
    let mut site = Site::new(reactor, to([url]).body_limit(u64::MAX), Settings::default());
    for size in [1, 4096, 70_000, 3_000_000] {
        let body: Vec<u8> = (0..size).map(|index: usize| (index % 251) as u8).collect();
        let sent = body.clone();
        let answer = site.with_client(move |client| {
            let mut writing = client.0.try_clone().unwrap();
            let writer = std::thread::spawn(move || {
                let head = format!(
                    "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    sent.len()
                );
                writing.write_all(head.as_bytes()).unwrap();
                writing.write_all(&sent).unwrap();
            });
            let mut client = client;
            let answer = client.read_all();
            writer.join().unwrap();
            answer
        });
        assert_eq!(dechunked(&answer), body, "{size}");
    }
    let answer = site.with_client(|mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
        for byte in b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n" {
            client.send([*byte]);
        }
        client.read_all()
    });
    assert_eq!(dechunked(&answer), b"abcdefg");
}

/// The body of a chunked response.
fn dechunked(answer: &[u8]) -> Vec<u8> {
    let start = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut rest = &answer[start..];
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 4 + size..];
    }
}

/// Writes until the other end stops reading, and returns how much that was.
fn write_until_stuck(stream: &std::net::TcpStream) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let (piece, mut written) = (vec![b'x'; 65536], 0);
    while written < 64 << 20 {
        match (&*stream).write(&piece) {
            Ok(count) => written += count,
            Err(_) => return written,
        }
    }
    written
}

fn slow_readers_slow_the_server_down(on: On) {
    let (report, written) = mpsc::channel();
    let report = std::sync::Mutex::new(report);
    let server = Scripted::new(move |visitor| {
        visitor.request();
        visitor.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 64 << 20));
        report.lock().unwrap().send(write_until_stuck(&visitor.stream)).unwrap();
    });
    let mut site = on.serve(proxy(&server));
    let written = site.with_client(move |mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_until("\r\n\r\n");
        written.recv().unwrap()
    });
    assert!(written < 32 << 20, "{written} bytes");
}

fn slow_servers_slow_the_client_down(on: On) {
    let server = Scripted::new(|visitor| {
        head_of(visitor);
        wait_without_reading(visitor);
    });
    let mut site = on.serve(proxy(&server).body_limit(u64::MAX));
    let written = site.with_client(|mut client| {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 64u64 << 30));
        write_until_stuck(&client.0)
    });
    assert!(written < 32 << 20, "{written} bytes");
}

/// Waits until the client has gone.
fn wait_without_reading(visitor: &Visitor) {
    while !has_hung_up(&visitor.stream) {}
}

fn has_hung_up(stream: &std::net::TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let soon = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut fds, Some(&soon)).is_ok_and(|count| count > 0)
}

fn consent_comes_from_the_server(on: On) {
    let server = Scripted::new(|visitor| {
        let head = head_of(visitor);
        assert_eq!(field(&head, "Expect"), Some("100-continue"), "{head}");
        visitor.send("HTTP/1.1 100 Continue\r\n\r\n");
        let mut body = [0; 5];
        (&*visitor.stream).read_exact(&mut body).unwrap();
        assert_eq!(&body, b"hello");
        visitor.send(OK);
    });
    let mut site = on.serve(proxy(&server));
    let answer = site.with_client(|mut client| {
        client.send(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        );
        assert_eq!(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        client.send("hello");
        client.read_to_end()
    });
    assert_eq!(statuses(&answer), [200]);
}

/// Reads a head, but not the body.
fn head_of(visitor: &Visitor) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        (&*visitor.stream).read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn a_server_may_refuse_a_body_that_was_announced(on: On) {
    let server = Scripted::new(|visitor| {
        head_of(visitor);
        visitor.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
        visitor.wait_for_end();
    });
    let mut site = on.serve(proxy(&server));
    let answer = site.with_client(|mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
        client.read_to_end()
    });
    assert_eq!(statuses(&answer), [403]);
}

fn a_response_before_the_end_of_the_request_ends_it(on: On) {
    let server = Scripted::new(|visitor| {
        head_of(visitor);
        visitor.send("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
        visitor.wait_for_end();
    });
    let mut site = on.serve(proxy(&server).body_limit(u64::MAX));
    let answer = site.with_client(|mut client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nsome");
        let answer = client.read_until("\r\n\r\n");
        // The rest is not wanted, and the connection ends.
        let piece = vec![0; 65536];
        while (&client.0).write_all(&piece).is_ok() {}
        answer
    });
    assert_eq!(statuses(&answer), [413]);
}

fn interim_responses_pass(on: On) {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: x-y\r\nX-Y: 1\r\n\r\n";
    let server =
        Scripted::answering(format!("HTTP/1.1 100 Continue\r\n\r\n{hints}HTTP/1.1 102 Processing\r\n\r\n{OK}"));
    let mut site = on.serve(proxy(&server));
    let answer = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(statuses(&answer), [103, 102, 200], "{answer}");
    assert!(answer.starts_with("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102"), "{answer}");
    let old = site.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(statuses(&old), [200], "{old}");
}

fn trailers_pass(on: On) {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\n";
    let server = Scripted::new(move |visitor| {
        head_of(visitor);
        let mut rest = Vec::new();
        let mut byte = [0];
        while !rest.ends_with(b"\r\n\r\n") {
            (&*visitor.stream).read_exact(&mut byte).unwrap();
            rest.push(byte[0]);
        }
        assert_eq!(String::from_utf8(rest).unwrap(), "2\r\nhi\r\n0\r\nX-Mine: 1\r\n\r\n");
        visitor.send(chunked);
    });
    let mut site = on.serve(proxy(&server));
    let answer = site.ask(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Mine: 1\r\nHost: b\r\n\r\n",
    );
    assert!(answer.ends_with("2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"), "{answer}");
}

fn head_requests_have_no_bodies(on: On) {
    for (answer, length, coding) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n", Some("123"), None),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None, Some("chunked")),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 123\r\n\r\n", None, None),
        ("HTTP/1.1 204 No Content\r\n\r\n", None, None),
    ] {
        let server = Scripted::answering(answer);
        let mut site = on.serve(proxy(&server));
        let head = site.ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(statuses(&head).len(), 2, "{head}");
        assert_eq!((field(&head, "Content-Length"), field(&head, "Transfer-Encoding")), (length, coding), "{head}");
    }
}

fn protocols_are_switched(on: On) {
    let server = Scripted::new(|visitor| {
        let head = head_of(visitor);
        assert_eq!((field(&head, "Upgrade"), field(&head, "Connection")), (Some("chat"), Some("upgrade")), "{head}");
        // The first bytes of the protocol come with the head.
        visitor.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\nX-A: b\r\n\r\nwelcome\n",
        );
        let mut buffer = [0; 65536];
        loop {
            match (&*visitor.stream).read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => assert!(visitor.send(&buffer[..count])),
                Err(error) => panic!("{error}"),
            }
        }
        visitor.send("bye\n");
    });
    let mut site = on.serve(proxy(&server));
    let rest = site.with_client(|mut client| {
        client.send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: chat\r\n\r\nearly\n");
        let head = client.read_until("\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert_eq!((field(&head, "Upgrade"), field(&head, "Connection")), (Some("chat"), Some("upgrade")), "{head}");
        assert_eq!(field(&head, "X-A"), Some("b"));
        assert_eq!(client.read_until("welcome\n"), "welcome\n");
        assert_eq!(client.read_until("early\n"), "early\n");
        let bulk = vec![b'z'; 500_000];
        let (mut writing, sent) = (client.0.try_clone().unwrap(), bulk.clone());
        let writer = std::thread::spawn(move || writing.write_all(&sent).unwrap());
        assert!(client.read_exactly(bulk.len()) == bulk);
        writer.join().unwrap();
        client.finish();
        client.read_to_end()
    });
    assert_eq!(rest, "bye\n");
}

fn a_refused_switch_is_a_response(on: On) {
    let server = Scripted::answering("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
    let mut site = on.serve(proxy(&server));
    let (head, body) = site.with_client(|mut client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n");
        let first = client.response();
        assert!(first.0.starts_with("HTTP/1.1 401"), "{first:?}");
        // The connection speaks HTTP as before.
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.response()
    });
    assert!(head.starts_with("HTTP/1.1 401") && body == "no", "{head}");
}

/// The URL of a port on which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn balanced(urls: &[String], balance: Balance) -> (ReverseProxy, Arc<Targets>) {
    let mut targets = Targets::new(balance, 2, Duration::from_secs(600));
    let upstream = Arc::new(Upstream::new(&mut targets, urls).unwrap());
    let targets = Arc::new(targets);
    (ReverseProxy::balanced(&targets, &upstream), targets)
}

fn another_target_is_tried(on: On) {
    let (server, requests) = recording(OK);
    let dies = Scripted::new(|visitor| drop(visitor.request()));
    let urls = [nobody(), format!("http://{}", dies.address()), format!("http://{}", server.address())];
    let (proxy, targets) = balanced(&urls, Balance::RoundRobin);
    let mut site = on.serve(proxy);
    for path in ["/1", "/2", "/3"] {
        assert_eq!(site.request("GET", path, &[]).1, b"ok", "{path}");
        assert!(requests.recv().unwrap().starts_with(&format!("GET {path} ")));
    }
    assert!(targets.all()[0].failures() > 0 && targets.all()[2].failures() == 0, "{targets:?}");
    assert!(targets.all().iter().all(|target| target.busy() == 0));
    // After two failures in a row the dead ones are not tried any more.
    for _ in 0..6 {
        site.request("GET", "/", &[]);
    }
    assert!(!targets.is_up(0) && !targets.is_up(1) && targets.is_up(2));
    let failures = targets.all()[0].failures();
    site.request("GET", "/", &[]);
    assert_eq!(targets.all()[0].failures(), failures);

    // What may have had an effect is not repeated.
    let urls = [format!("http://{}", dies.address()), format!("http://{}", server.address())];
    let (proxy, _) = balanced(&urls, Balance::RoundRobin);
    let mut site = on.serve(proxy);
    requests.try_iter().for_each(drop);
    assert!(site.request("POST", "/", &[]).0.starts_with("HTTP/1.1 502"));
    assert!(requests.try_recv().is_err());
}

fn requests_with_a_body_go_elsewhere_before_it_is_read(on: On) {
    let (server, requests) = recording(OK);
    let (proxy, _) = balanced(&[nobody(), format!("http://{}", server.address())], Balance::RoundRobin);
    let mut site = on.serve(proxy);
    let answer = site.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(statuses(&answer), [200]);
    assert!(requests.recv().unwrap().ends_with("\r\n\r\nhello"));
}

fn targets_share_the_load(on: On) {
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    let servers = counts.clone().map(|count| {
        Scripted::new(move |visitor| {
            while visitor.request().is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                visitor.send(OK);
            }
        })
    });
    let urls = servers.each_ref().map(|server| format!("http://{}", server.address()));
    let mut site = on.serve(balanced(&urls, Balance::Least).0);
    for _ in 0..10 {
        site.request("GET", "/", &[]);
    }
    assert_eq!(counts.each_ref().map(|count| count.load(Ordering::SeqCst)), [5, 5]);
    // One client keeps its server.
    let mut site = on.serve(balanced(&urls, Balance::Hash).0);
    for _ in 0..10 {
        site.request("GET", "/", &[]);
    }
    let mut both = counts.map(|count| count.load(Ordering::SeqCst) - 5);
    both.sort_unstable();
    assert_eq!(both, [0, 10]);
}

fn servers_on_unix_sockets_are_reached(on: On) {
    let mut reactor = on.reactor();
    let directory = common::tree::Tree::new();
    let path = directory.path().join("server.sock");
    let server = Server::new(plain(|request| format!("{:?}", request.host())));
    server.listen(&mut reactor, pelton::Address::Unix(path.clone())).unwrap();
    let url = format!("http+unix://{}", path.to_str().unwrap().replace('/', "%2F"));
    let client = Client::with_settings(ClientSettings::default());
    let mut site = Site::new(reactor, to([url]).client(client), Settings::default());
    assert_eq!(site.request("GET", "/", &[]).1, b"Some(\"a\")");
}
