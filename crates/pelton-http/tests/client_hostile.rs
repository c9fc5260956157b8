//! The client against servers that lie, stall, and send rubbish.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use common::scripted::Scripted;
use pelton::EventLoop;
use pelton_http::Client;
use pelton_http::client::{Error, ErrorKind, Request, Response, ResponseEvent, Settings};
use pelton_testing::{On, on_every_engine, run_until};

on_every_engine![
    malformed_responses_are_errors,
    endless_heads_and_interim_responses_are_errors,
    lengths_that_lie_are_errors,
    a_second_response_is_never_used,
    data_on_an_idle_connection_closes_it,
    a_response_before_the_request_is_not_trusted_later,
    bodies_are_limited,
    resets_at_every_byte_are_errors,
    ends_at_every_byte_are_errors,
    responses_split_at_every_byte_are_equal,
    dead_kept_connections_are_replaced,
    requests_that_must_not_be_repeated_are_not,
    servers_that_close_every_kept_connection_are_survived,
    early_responses_end_the_request,
];

fn fetch(reactor: &mut EventLoop, request: Request) -> Result<Response, Error> {
    let answer = Rc::new(RefCell::new(None));
    let slot = answer.clone();
    request.send(reactor, move |_, response| *slot.borrow_mut() = Some(response));
    run_until(reactor, |_| answer.borrow().is_some());
    answer.take().unwrap()
}

/// Fetches from a server that gives this answer, and returns the error, which names the host.
fn error_of(reactor: &mut EventLoop, answer: impl AsRef<[u8]> + Send + Sync + 'static) -> String {
    let server = Scripted::answering(answer);
    let client = Client::new();
    let error = fetch(reactor, client.get(server.url())).unwrap_err().to_string();
    run_until(reactor, |reactor| client.connections(reactor) == (0, 0));
    let start = format!("GET {}: ", server.url());
    error.strip_prefix(&start).unwrap_or_else(|| panic!("{error} does not name the request")).to_owned()
}

fn malformed_responses_are_errors(on: On) {
    let mut reactor = on.reactor();
    for (answer, expected) in [
        ("SSH-2.0-OpenSSH_9\r\n", "the response does not begin with HTTP/1."),
        ("HTTP/2.0 200 OK\r\n\r\n", "the response does not begin with HTTP/1."),
        ("HTTP/1.1 200 OK\nContent-Length: 0\n\n", "a line of the head does not end in CRLF"),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "the head is not valid HTTP"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "duplicate Content-Length"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            "both Content-Length and Transfer-Encoding",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "unsupported Transfer-Encoding"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "invalid chunk size"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "a chunk does not match its size"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "the chunk size is too large"),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "unexpected switch to another protocol"),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "the status does not allow a body"),
        ("HTTP/1.1 999 What\r\n\r\n", "the status is out of range"),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0 has no Transfer-Encoding"),
    ] {
        assert_eq!(error_of(&mut reactor, answer), format!("malformed response: {expected}"), "{answer:?}");
    }
}

fn endless_heads_and_interim_responses_are_errors(on: On) {
    let mut reactor = on.reactor();
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(1 << 17));
    assert_eq!(error_of(&mut reactor, long), "malformed response: the head is too long");
    let fields = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(1000));
    assert_eq!(error_of(&mut reactor, fields), "malformed response: too many header fields");
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
    assert_eq!(error_of(&mut reactor, interim), "malformed response: too many interim responses");
    let extensions = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", "1;a=b\r\nx\r\n".repeat(4000));
    assert_eq!(error_of(&mut reactor, extensions), "malformed response: the chunk extensions are too long");
    let trailers = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{}", "A: b\r\n".repeat(9000));
    assert_eq!(error_of(&mut reactor, trailers), "malformed response: the trailer fields are too long");
}

fn lengths_that_lie_are_errors(on: On) {
    let mut reactor = on.reactor();
    let short = Scripted::closing_after("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    let error = fetch(&mut reactor, Client::new().get(short.url())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Ended { begun: true, .. }), "{error}");
    let unfinished = Scripted::closing_after("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let error = fetch(&mut reactor, Client::new().get(unfinished.url())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Ended { begun: true, .. }), "{error}");
    let until_close = Scripted::closing_after("HTTP/1.1 200 OK\r\n\r\nhello");
    assert_eq!(fetch(&mut reactor, Client::new().get(until_close.url())).unwrap().body(), b"hello");
}

/// More bytes than the response has, in the same packet or a later one, belong to nobody.
fn a_second_response_is_never_used(on: On) {
    const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood";
    const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let mut reactor = on.reactor();
    let server = Scripted::answering(format!("{GOOD}{EVIL}"));
    let client = Client::with_settings(Settings { per_origin: 1, ..Settings::default() });
    for number in 1..5 {
        assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"good");
        assert_eq!(server.accepted(), number, "the connection is not reused");
    }
    let lying = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc");
    assert_eq!(fetch(&mut reactor, client.get(lying.url())).unwrap().body(), b"ab");
    assert_eq!(fetch(&mut reactor, client.get(lying.url())).unwrap().body(), b"ab");
    assert_eq!(lying.accepted(), 2);
    let head = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
    assert_eq!(fetch(&mut reactor, client.head(head.url())).unwrap().body(), b"");
    assert_eq!(fetch(&mut reactor, client.head(head.url())).unwrap().body(), b"");
    assert_eq!(head.accepted(), 2, "a body in an answer to HEAD");
}

fn data_on_an_idle_connection_closes_it(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
        std::thread::sleep(Duration::from_millis(5));
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil");
        visitor.wait_for_end();
    });
    let client = Client::new();
    assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"good");
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
    assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"good");
    assert_eq!(server.accepted(), 2);
}

/// Two responses are sent before any request. The first cannot be told from an answer, but the second is never used.
fn a_response_before_the_request_is_not_trusted_later(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n2");
        visitor.wait_for_end();
    });
    let client = Client::new();
    for number in 1..4 {
        assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"1");
        assert_eq!(server.accepted(), number);
    }
}

fn bodies_are_limited(on: On) {
    let mut reactor = on.reactor();
    let client = Client::with_settings(Settings { body: 10, ..Settings::default() });
    for (answer, fits) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789".to_owned(), true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n".to_owned(), false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n".to_owned(), false),
        (format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100_000)), false),
        (format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", "2\r\nab\r\n".repeat(6)), false),
    ] {
        let server = Scripted::answering(answer);
        match fetch(&mut reactor, client.get(server.url())) {
            Ok(_) => assert!(fits),
            Err(error) => {
                assert!(error.to_string().ends_with(": the body is larger than 10 bytes"), "{error}");
                assert!(!fits);
            }
        }
    }
}

const CORPUS: [&str; 5] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 500 Oops\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
];

/// What a receiver sees: status, fields, body, trailers.
fn observe(reactor: &mut EventLoop, request: Request) -> Result<String, Error> {
    let seen = Rc::new(RefCell::new((String::new(), None)));
    let log = seen.clone();
    request.stream(reactor, move |_, event| {
        let (text, outcome) = &mut *log.borrow_mut();
        match event {
            ResponseEvent::Interim(head) => *text += &format!("interim {} ", head.status()),
            ResponseEvent::Head(head) => *text += &format!("{} {:?} ", head.status(), head.fields()),
            ResponseEvent::Data(data) => *text += &String::from_utf8_lossy(data),
            ResponseEvent::End(trailers) => *outcome = Some(Ok(format!(" {trailers:?}"))),
            ResponseEvent::Failed(error) => *outcome = Some(Err(error)),
        }
    });
    run_until(reactor, |_| seen.borrow().1.is_some());
    let (text, outcome) = seen.take();
    outcome.unwrap().map(|end| text + &end)
}

fn responses_split_at_every_byte_are_equal(on: On) {
    let mut reactor = on.reactor();
    for whole in CORPUS {
        let expected = {
            let server = Scripted::answering(whole);
            observe(&mut reactor, Client::new().get(server.url())).unwrap()
        };
        let server = Scripted::new(move |visitor| {
            while let Some(request) = visitor.request() {
                let path = request.split(' ').nth(1).unwrap();
                let cut = path[1..].parse::<usize>().unwrap();
                visitor.stream.set_nodelay(true).unwrap();
                visitor.send(&whole[..cut]);
                // Long enough to be read separately most of the time. The result must not depend on it.
                std::thread::sleep(Duration::from_micros(300));
                visitor.send(&whole[cut..]);
            }
        });
        let client = Client::new();
        for cut in 1..whole.len() {
            let seen = observe(&mut reactor, client.get(format!("{}{cut}", server.url()))).unwrap();
            assert_eq!(seen, expected, "cut at {cut}");
        }
    }
}

/// The connection ends after every possible part of a response, with a reset or not.
fn ending_at_every_byte(on: On, resets: bool) {
    let mut reactor = on.reactor();
    for whole in &CORPUS[..2] {
        let server = Scripted::new(move |visitor| {
            let Some(request) = visitor.request() else { return };
            let cut = request.split(' ').nth(1).unwrap()[1..].parse::<usize>().unwrap();
            visitor.send(&whole[..cut]);
            if resets {
                visitor.reset();
            }
        });
        let client = Client::new();
        for cut in 0..whole.len() {
            let outcome = observe(&mut reactor, client.get(format!("{}{cut}", server.url())));
            let error = outcome.unwrap_err();
            match error.kind() {
                // A reset may overtake the data.
                ErrorKind::Ended { begun, .. } => assert!(resets || *begun == (cut > 0), "{error} at {cut}"),
                _ => panic!("{error} at {cut}"),
            }
        }
        run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
    }
}

fn resets_at_every_byte_are_errors(on: On) {
    ending_at_every_byte(on, true);
}

fn ends_at_every_byte_are_errors(on: On) {
    ending_at_every_byte(on, false);
}

/// A server that closes a kept connection when the next request arrives, without an answer.
fn forgetful() -> Scripted {
    Scripted::new(|visitor| {
        if visitor.request().is_some() {
            visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            visitor.request();
        }
    })
}

fn dead_kept_connections_are_replaced(on: On) {
    let mut reactor = on.reactor();
    let (server, client) = (forgetful(), Client::new());
    for number in 1..6 {
        let request = if number % 2 == 0 { client.put(server.url()).body("x") } else { client.get(server.url()) };
        assert_eq!(fetch(&mut reactor, request).unwrap().body(), b"ok");
        assert_eq!(server.accepted(), number);
    }
}

fn requests_that_must_not_be_repeated_are_not(on: On) {
    let mut reactor = on.reactor();
    let (server, client) = (forgetful(), Client::new());
    assert!(fetch(&mut reactor, client.post(server.url()).body("x")).is_ok());
    let error = fetch(&mut reactor, client.post(server.url()).body("x")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Ended { begun: false, .. }), "{error}");
    assert_eq!(server.accepted(), 1);
    assert!(fetch(&mut reactor, client.post(server.url()).body("x")).is_ok());
    assert!(fetch(&mut reactor, client.post(server.url()).body("x").repeatable(true)).is_ok());
    let error = fetch(&mut reactor, client.get(server.url()).repeatable(false)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Ended { begun: false, .. }), "{error}");
}

/// A new connection that ends without an answer is an error, and no loop.
fn servers_that_close_every_kept_connection_are_survived(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| drop(visitor.request()));
    let error = fetch(&mut reactor, Client::new().get(server.url())).unwrap_err();
    assert!(error.to_string().contains("the connection ended before the response began"), "{error}");
    assert_eq!(server.accepted(), 1);
    let client = Client::with_settings(Settings { retries: 2, ..Settings::default() });
    assert!(fetch(&mut reactor, client.get(server.url())).is_err());
    assert_eq!(server.accepted(), 1 + 3);
    assert!(fetch(&mut reactor, client.post(server.url()).body("x")).is_err());
    assert_eq!(server.accepted(), 1 + 3 + 1);
}

/// The server answers before it has read the body, and reads no more.
fn early_responses_end_the_request(on: On) {
    let mut reactor = on.reactor();
    let server = Scripted::new(|visitor| {
        use std::io::Read;
        let mut some = [0; 100];
        (&*visitor.stream).read_exact(&mut some).unwrap();
        visitor.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!");
        visitor.wait_for_end();
    });
    let client = Client::new();
    let request = client.put(server.url()).body(vec![0; 12_000_000]);
    let response = fetch(&mut reactor, request).unwrap();
    assert_eq!((response.status(), response.body()), (413, &b"no!"[..]));

    // A body that is never finished: the connection cannot be used again.
    let client = Client::new();
    let answer = Rc::new(RefCell::new(None));
    let slot = answer.clone();
    let request = client.put(server.url()).streamed_body(None);
    let exchange = request.send(&mut reactor, move |_, response| *slot.borrow_mut() = Some(response));
    exchange.send(&mut reactor, vec![b'x'; 1000]).unwrap();
    run_until(&mut reactor, |_| answer.borrow().is_some());
    assert_eq!(answer.take().unwrap().unwrap().status(), 413);
    assert!(exchange.send(&mut reactor, "more").is_err());
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}
