//! The client: forms of requests, pooling, time limits.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use common::scripted::Scripted;
use common::{Serve, Site};
use pelton::{EventLoop, Promise, Reactor};
use pelton_http::client::{Error, ErrorKind, Response, ResponseEvent, Settings, TimeLimit};
use pelton_http::{Client, Request, Responder, Response as Answer, Router, plain};
use pelton_testing::{On, block_on, on_every_engine, run_until, run_with};

on_every_engine![
    callbacks_receive_whole_responses,
    promises_and_tasks_receive_whole_responses,
    other_threads_receive_whole_responses,
    pieces_are_delivered_in_order,
    bodies_and_fields_are_sent,
    connections_are_reused,
    connections_per_origin_are_limited,
    connections_in_total_are_limited,
    requests_per_connection_are_limited,
    idle_connections_are_closed,
    a_request_in_the_last_callback_takes_the_connection,
    names_are_looked_up,
    a_burst_of_requests_to_a_name_is_answered,
    refused_connections_fail,
    invalid_requests_fail_later,
    time_limits_are_kept,
    waiting_requests_time_out,
    cancelled_requests_are_forgotten,
    dropped_futures_cancel_their_requests,
    paused_responses_wait,
    receivers_may_do_anything,
    draining_finishes_the_current_request,
    panics_do_not_take_connections_from_the_pool,
];

fn site(on: On) -> Site {
    let echo = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let head = format!("{} {} {:?}\n", request.method_name(), request.target(), request.header("X-Test"));
        request.body().limit(64 << 20).collect(reactor, move |reactor, body| {
            let mut answer = head.into_bytes();
            answer.extend(body.unwrap());
            responder.respond(reactor, Answer::text(answer));
        });
    };
    let big = |_: &Request<'_>| Answer::ok().body(vec![b'x'; 3_000_000]);
    let never = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        reactor.after(Duration::from_secs(60), move |_| drop(responder));
    };
    let router = Router::new()
        .get("/", plain(|_| "hello\n"))
        .get("/big", plain(big))
        .get("/never", never)
        .get("/echo", echo)
        .post("/echo", echo)
        .put("/echo", echo);
    on.serve(router)
}

fn url(address: &str, path: &str) -> String {
    format!("http://{address}{path}")
}

/// Sends a request and runs the loop until it is answered.
fn fetch(reactor: &mut EventLoop, request: pelton_http::client::Request) -> Result<Response, Error> {
    let answer = Rc::new(RefCell::new(None));
    let slot = answer.clone();
    request.send(reactor, move |_, response| *slot.borrow_mut() = Some(response));
    assert!(answer.borrow().is_none(), "called before the method has returned");
    run_until(reactor, |_| answer.borrow().is_some());
    answer.take().unwrap()
}

fn kind(outcome: Result<Response, Error>) -> String {
    format!("{}", outcome.unwrap_err())
}

fn callbacks_receive_whole_responses(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let response = fetch(&mut reactor, Client::new().get(url(&address, "/"))).unwrap();
    assert_eq!((response.status(), response.body(), &*response.text()), (200, &b"hello\n"[..], "hello\n"));
    assert_eq!(response.header("content-length"), Some(&b"6"[..]));
    assert_eq!(response.url().as_str(), url(&address, "/"));
    let missing = fetch(&mut reactor, Client::new().get(url(&address, "/missing"))).unwrap();
    assert_eq!((missing.status(), missing.is_success()), (404, false));
    let error = missing.error_for_status().unwrap_err();
    assert_eq!(error.to_string(), format!("GET {}: status 404", url(&address, "/missing")));
    let head = fetch(&mut reactor, Client::new().head(url(&address, "/big"))).unwrap();
    assert_eq!((head.header("content-length"), head.body()), (Some(&b"3000000"[..]), &b""[..]));
}

fn promises_and_tasks_receive_whole_responses(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let client = Client::new();
    let promises: Vec<Promise<Response, Error>> =
        (0..3).map(|number| client.get(url(&address, &format!("/echo?{number}"))).promise(&mut reactor)).collect();
    let all = Promise::all(&reactor, promises);
    let texts = all.map(|all| all.iter().map(|response| response.text().into_owned()).collect::<String>());
    let texts = block_on(&mut reactor, texts).unwrap();
    assert_eq!(texts, "GET /echo?0 None\nGET /echo?1 None\nGET /echo?2 None\n");

    let address = url(&address, "/");
    let text = block_on(&mut reactor, async move {
        let one = client.get(&address).await?;
        let two = client.get(&address).await?;
        Ok::<_, Error>(format!("{}{}", one.text(), two.text()))
    });
    assert_eq!(text.unwrap(), "hello\nhello\n");
}

fn other_threads_receive_whole_responses(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let (client, handle, address) = (Client::new(), reactor.handle(), url(&address, "/"));
    let answers = run_with(&mut reactor, move || {
        let replies: Vec<_> = (0..8).map(|_| client.get(&address).reply(&handle)).collect();
        replies.into_iter().map(|reply| reply.wait().unwrap().unwrap().text().into_owned()).collect::<String>()
    });
    assert_eq!(answers, "hello\n".repeat(8));
}

fn pieces_are_delivered_in_order(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let log = Rc::new(RefCell::new((Vec::new(), 0)));
    let seen = log.clone();
    Client::new().get(url(&address, "/big")).stream(&mut reactor, move |_, event| {
        let (names, bytes) = &mut *seen.borrow_mut();
        match event {
            ResponseEvent::Interim(_) => {}
            ResponseEvent::Head(head) => {
                assert_eq!((head.status(), head.content_length()), (200, Some(3_000_000)));
                names.push("head");
            }
            ResponseEvent::Data(data) => {
                assert!(data.iter().all(|byte| *byte == b'x'));
                *bytes += data.len();
            }
            ResponseEvent::End(trailers) => {
                assert!(trailers.is_empty());
                names.push("end");
            }
            ResponseEvent::Failed(error) => panic!("{error}"),
        }
    });
    run_until(&mut reactor, |_| log.borrow().0.len() == 2);
    assert_eq!(*log.borrow(), (vec!["head", "end"], 3_000_000));
}

fn bodies_and_fields_are_sent(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let client = Client::new();
    let echo = url(&address, "/echo");
    let post = client.post(&echo).header("X-Test", " seven ").body("a body");
    let expected = "POST /echo Some([115, 101, 118, 101, 110])\na body";
    assert_eq!(fetch(&mut reactor, post).unwrap().text(), expected);
    // Larger than the copied ones, than a piece, and than the reactor's queue limit.
    for length in [5_000, 300_000, 20_000_000] {
        let body = pelton_testing::pattern(length);
        let put = client.put(&echo).body(body.clone()).body_limit(100_000_000);
        let answer = fetch(&mut reactor, put);
        assert_eq!(answer.unwrap().into_body(), [&b"PUT /echo None\n"[..], &body].concat());
    }
    let form = client.post(&echo).form([("a", "b c"), ("d", "&")]);
    assert_eq!(fetch(&mut reactor, form).unwrap().text(), "POST /echo None\na=b%20c&d=%26");
    let query = client.get(&echo).query([("q", "x y")]);
    assert_eq!(fetch(&mut reactor, query).unwrap().text(), "GET /echo?q=x%20y None\n");
}

fn connections_are_reused(on: On) {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut reactor = on.reactor();
    let client = Client::new();
    for _ in 0..10 {
        assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"ok");
        assert_eq!(client.connections(&mut reactor), (1, 1));
    }
    assert_eq!(server.accepted(), 1);
    let other = Client::new();
    assert_eq!(other.connections(&mut reactor), (0, 0), "clients do not share connections");
    client.close_idle(&mut reactor);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}

fn many(reactor: &mut EventLoop, client: &Client, urls: Vec<String>) {
    let left = Rc::new(Cell::new(urls.len()));
    for url in urls {
        let left = left.clone();
        client.get(url).send(reactor, move |_, response| {
            assert_eq!(response.unwrap().body(), b"ok");
            left.set(left.get() - 1);
        });
    }
    run_until(reactor, |_| left.get() == 0);
}

fn connections_per_origin_are_limited(on: On) {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut reactor = on.reactor();
    let client = Client::with_settings(Settings { per_origin: 3, ..Settings::default() });
    many(&mut reactor, &client, vec![server.url(); 20]);
    assert_eq!((server.accepted(), client.connections(&mut reactor)), (3, (3, 3)));
}

fn connections_in_total_are_limited(on: On) {
    let servers: Vec<_> =
        (0..3).map(|_| Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")).collect();
    let mut reactor = on.reactor();
    let client = Client::with_settings(Settings { connections: 2, ..Settings::default() });
    // In an order in which each has to wait for another's connection.
    let urls = (0..18).map(|number| servers[number % 3].url()).collect();
    many(&mut reactor, &client, urls);
    assert!(client.connections(&mut reactor).0 <= 2);
    many(&mut reactor, &client, servers.iter().map(Scripted::url).collect());
    assert!(client.connections(&mut reactor).0 <= 2);
}

fn requests_per_connection_are_limited(on: On) {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut reactor = on.reactor();
    let client = Client::with_settings(Settings { requests: 2, per_origin: 1, ..Settings::default() });
    many(&mut reactor, &client, vec![server.url(); 6]);
    assert_eq!(server.accepted(), 3);
}

fn idle_connections_are_closed(on: On) {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut reactor = on.reactor();
    let client = Client::with_settings(Settings { idle: Duration::from_millis(5), ..Settings::default() });
    many(&mut reactor, &client, vec![server.url()]);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
    many(&mut reactor, &client, vec![server.url()]);
    assert_eq!(server.accepted(), 2);
}

fn a_request_in_the_last_callback_takes_the_connection(on: On) {
    fn next(reactor: &mut Reactor, client: Client, url: String, left: usize) {
        if left == 0 {
            return reactor.stop();
        }
        client.clone().get(&url).send(reactor, move |reactor, response| {
            assert_eq!(response.unwrap().body(), b"ok");
            next(reactor, client, url, left - 1);
        });
    }
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut reactor = on.reactor();
    next(&mut reactor, Client::new(), server.url(), 20);
    pelton_testing::run(&mut reactor);
    assert_eq!(server.accepted(), 1);
}

fn names_are_looked_up(on: On) {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut reactor = on.reactor();
    let port = server.address().port();
    let response = fetch(&mut reactor, Client::new().get(format!("http://localhost:{port}/"))).unwrap();
    assert_eq!(response.body(), b"ok");
    let error = fetch(&mut reactor, Client::new().get("http://does-not-exist.invalid/")).unwrap_err();
    assert!(error.is_connect(), "{error}");
    assert!(error.to_string().starts_with("GET http://does-not-exist.invalid/: not connected: "), "{error}");
}

fn a_burst_of_requests_to_a_name_is_answered(on: On) {
    const BURST: usize = 400;
    let Site { mut reactor, server: _server, address } = site(on);
    let port = address.rsplit(':').next().unwrap();
    let client = Client::with_settings(Settings { per_origin: BURST, ..Settings::default() });
    let answered = Rc::new(Cell::new(0));
    for _ in 0..BURST {
        let answered = answered.clone();
        client.get(format!("http://localhost:{port}/")).send(&mut reactor, move |_, response| {
            assert_eq!(response.unwrap().status(), 200);
            answered.set(answered.get() + 1);
        });
    }
    run_until(&mut reactor, |_| answered.get() == BURST);
}

fn refused_connections_fail(on: On) {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut reactor = on.reactor();
    let client = Client::new();
    for _ in 0..3 {
        let error = fetch(&mut reactor, client.get(format!("http://{address}/"))).unwrap_err();
        assert_eq!(error.to_string(), format!("GET http://{address}/: not connected: connect to {address}: refused"));
    }
    assert_eq!(client.connections(&mut reactor), (0, 0));
}

fn invalid_requests_fail_later(on: On) {
    let mut reactor = on.reactor();
    let client = Client::new();
    let bad = fetch(&mut reactor, client.get("file:///etc/passwd"));
    assert_eq!(kind(bad), "GET file:///etc/passwd: the scheme is neither http nor https");
    for request in [
        client.get("http://a/").header("A", "b\r\nC: d"),
        client.get("http://a/").header("A\n", "b"),
        client.get("http://a/").header("", "b"),
        client.get("http://a/").header("Host", "a").header("host", "b"),
        client.get("http://a/").method("G ET"),
        client.get("http://a/").method("CONNECT"),
        client.get("http://a/").basic_auth("a:b", "c"),
        client.get("http://a/").bearer_auth("a\nb"),
    ] {
        let error = fetch(&mut reactor, request).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::BadRequest(_)), "{error}");
    }
}

fn time_limits_are_kept(on: On) {
    const SHORT: Duration = Duration::from_millis(20);
    let mut reactor = on.reactor();
    let limit = |outcome: Result<Response, Error>| match *outcome.unwrap_err().kind() {
        ErrorKind::TimedOut { limit, after: SHORT } => limit,
        ref other => panic!("{other}"),
    };
    let silent = pelton_testing::Network::silent_listener(on);
    let client = Client::with_settings(Settings { connect: SHORT, ..Settings::default() });
    let unreached = fetch(&mut reactor, client.get(format!("http://{}/", silent.address())));
    assert_eq!(limit(unreached), TimeLimit::Connect);

    let mute = Scripted::new(|visitor| visitor.wait_for_end());
    let client = Client::with_settings(Settings { head: SHORT, ..Settings::default() });
    assert_eq!(limit(fetch(&mut reactor, client.get(mute.url()))), TimeLimit::Head);
    let whole = fetch(&mut reactor, Client::new().get(mute.url()).time_limit(SHORT));
    assert_eq!(limit(whole), TimeLimit::Whole);

    let stuck = Scripted::new(|visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
        visitor.wait_for_end();
    });
    assert_eq!(limit(fetch(&mut reactor, Client::new().get(stuck.url()).between_limit(SHORT))), TimeLimit::Between);

    // One byte at a time satisfies the limit between bytes, but not that for the head, nor the whole.
    let drip = Scripted::new(|visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nA: ");
        while visitor.send("b") {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let dripping = Scripted::new(|visitor| {
        visitor.request();
        visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n");
        while visitor.send("x") {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let head = fetch(&mut reactor, Client::new().get(drip.url()).head_limit(SHORT));
    assert_eq!(limit(head), TimeLimit::Head);
    let whole = fetch(&mut reactor, Client::new().get(dripping.url()).time_limit(SHORT).between_limit(SHORT));
    assert!(matches!(limit(whole), TimeLimit::Whole | TimeLimit::Between));
}

fn waiting_requests_time_out(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let client = Client::with_settings(Settings { per_origin: 1, ..Settings::default() });
    let first = client.get(url(&address, "/never")).send(&mut reactor, |_, _| panic!("never answered"));
    let second = fetch(&mut reactor, client.get(url(&address, "/")).time_limit(Duration::from_millis(20)));
    assert!(kind(second).ends_with("the exchange was not completed within 20ms"));
    first.cancel(&mut reactor);
    assert_eq!(fetch(&mut reactor, client.get(url(&address, "/"))).unwrap().status(), 200);
    let client = Client::with_settings(Settings { per_origin: 1, waiting: 1, ..Settings::default() });
    client.get(url(&address, "/never")).send(&mut reactor, |_, _| panic!("never answered"));
    let busy = fetch(&mut reactor, client.get(url(&address, "/")));
    assert!(kind(busy).ends_with("1 requests are waiting for a connection"));
}

fn cancelled_requests_are_forgotten(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let client = Client::new();
    let alive = Rc::new(());
    let kept = alive.clone();
    let exchange = client.get(url(&address, "/never")).send(&mut reactor, move |_, _| {
        drop(kept);
        panic!("cancelled");
    });
    exchange.cancel(&mut reactor);
    assert_eq!((exchange.is_over(), Rc::strong_count(&alive)), (true, 1), "the callback is dropped at once");
    let kept = alive.clone();
    let exchange = client.get(url(&address, "/never")).send(&mut reactor, move |_, _| drop(kept));
    run_until(&mut reactor, |_| _server.stats().requests > 0);
    exchange.cancel(&mut reactor);
    exchange.cancel(&mut reactor);
    assert_eq!(Rc::strong_count(&alive), 1);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}

fn dropped_futures_cancel_their_requests(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let client = Client::new();
    let (task, never) = (client.clone(), url(&address, "/never"));
    let elapsed = block_on(&mut reactor, async move {
        pelton::task::timeout(Duration::from_millis(20), async { task.get(&never).await }).await.is_err()
    });
    assert!(elapsed);
    run_until(&mut reactor, |reactor| client.connections(reactor) == (0, 0));
}

fn paused_responses_wait(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let received = Rc::new(Cell::new(0));
    let ended = Rc::new(Cell::new(false));
    let (count, end) = (received.clone(), ended.clone());
    let exchange = Client::new().get(url(&address, "/big")).stream(&mut reactor, move |_, event| match event {
        ResponseEvent::Data(data) => count.set(count.get() + data.len()),
        ResponseEvent::End(_) => end.set(true),
        ResponseEvent::Failed(error) => panic!("{error}"),
        ResponseEvent::Interim(_) | ResponseEvent::Head(_) => {}
    });
    run_until(&mut reactor, |_| received.get() > 0);
    exchange.pause(&mut reactor);
    let before = received.get();
    let end = reactor.clock() + Duration::from_millis(30);
    while reactor.clock() < end {
        reactor.turn(Some(Duration::from_millis(5))).unwrap();
    }
    assert_eq!(received.get(), before);
    exchange.resume(&mut reactor);
    run_until(&mut reactor, |_| ended.get());
    assert_eq!(received.get(), 3_000_000);
}

/// Pauses, resumes, cancels, and starts requests inside callbacks.
fn receivers_may_do_anything(on: On) {
    let Site { mut reactor, server: _server, address } = site(on);
    let client = Client::new();
    for act in 0..4 {
        let exchange: Rc<RefCell<Option<pelton_http::client::Exchange>>> = Rc::default();
        let (own, again, root) = (exchange.clone(), client.clone(), url(&address, "/"));
        let done = Rc::new(Cell::new(0));
        let count = done.clone();
        *exchange.borrow_mut() = Some(client.get(url(&address, "/big")).stream(&mut reactor, move |reactor, event| {
            let own = own.borrow().clone().unwrap();
            match event {
                ResponseEvent::Data(_) if act == 0 => {
                    own.pause(reactor);
                    reactor.next_tick(move |reactor| own.resume(reactor));
                }
                ResponseEvent::Data(_) if act == 1 => {
                    own.cancel(reactor);
                    count.set(2);
                }
                ResponseEvent::Head(_) if act == 2 => {
                    let count = count.clone();
                    again.get(&root).send(reactor, move |_, response| {
                        response.unwrap();
                        count.set(count.get() + 1);
                    });
                }
                ResponseEvent::Data(_) if act == 3 => {
                    own.pause(reactor);
                    own.resume(reactor);
                }
                ResponseEvent::End(_) => count.set(count.get() + if act == 2 { 1 } else { 2 }),
                ResponseEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }));
        run_until(&mut reactor, |_| done.get() == 2);
        exchange.borrow_mut().take();
    }
}

fn draining_finishes_the_current_request(on: On) {
    let server = Scripted::new(|visitor| {
        while visitor.request().is_some() {
            std::thread::sleep(Duration::from_millis(5));
            visitor.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let mut reactor = on.reactor();
    let client = Client::new();
    assert!(fetch(&mut reactor, client.get(server.url())).is_ok());
    let answered = Rc::new(Cell::new(false));
    let flag = answered.clone();
    client.get(server.url()).send(&mut reactor, move |_, response| flag.set(response.is_ok()));
    reactor.drain(Duration::from_secs(10));
    pelton_testing::run(&mut reactor);
    assert!(answered.get());
}

/// Receivers panic at every event. The pool has one place, which must become free each time.
fn panics_do_not_take_connections_from_the_pool(on: On) {
    let server = Scripted::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let broken = Scripted::closing_after("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok");
    let mut reactor = on.catching();
    let client = Client::with_settings(Settings { per_origin: 1, connections: 1, ..Settings::default() });
    let panicked = pelton_testing::count_faults(&mut reactor);
    let mut expected = 0;
    for url in [server.url(), format!("http://{refusing}/"), broken.url()] {
        for event in 0..4 {
            let called = Rc::new(Cell::new(false));
            let flag = called.clone();
            client.get(&url).stream(&mut reactor, move |_, seen| {
                let is_it = match seen {
                    ResponseEvent::Interim(_) => false,
                    ResponseEvent::Head(_) => event == 0,
                    ResponseEvent::Data(_) => event == 1,
                    ResponseEvent::End(_) | ResponseEvent::Failed(_) => true,
                };
                if is_it {
                    flag.set(true);
                    panic!("on purpose");
                }
            });
            run_until(&mut reactor, |_| called.get());
            expected += 1;
        }
    }
    assert!(panicked.get() >= expected);
    assert_eq!(fetch(&mut reactor, client.get(server.url())).unwrap().body(), b"ok");
    run_until(&mut reactor, |reactor| client.connections(reactor) == (1, 1));
}
