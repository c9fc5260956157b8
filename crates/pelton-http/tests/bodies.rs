//! Request bodies, over real connections, on every engine.

mod common;

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use common::{On, Serve, on_every_engine, statuses};
use pelton::Reactor;
use pelton_http::{BodyError, BodyEvent, Handler, Request, Responder, Response, Settings, plain};

on_every_engine![
    a_body_is_collected,
    a_chunked_body_is_collected_with_its_trailers,
    unread_body_is_discarded,
    long_unread_body_closes_the_connection,
    body_with_an_excessive_length_is_refused_before_it_is_sent,
    chunked_body_over_the_limit_is_refused,
    handler_can_raise_the_limit,
    continue_is_sent_when_the_body_is_read,
    continue_is_not_sent_for_an_unread_body,
    continue_is_sent_after_earlier_responses,
    a_body_can_be_read_later,
    paused_reader_stops_the_client,
    truncated_body_is_an_error,
    malformed_body_is_refused,
    reset_cancels_pending_requests,
    reading_twice_is_an_error,
    bodies_are_read_without_pipelining,
    closing_response_is_the_last_even_if_a_body_is_being_read,
    body_paused_at_its_end_still_ends,
    closing_response_may_precede_the_body,
];

/// Answers with the body, or with the error.
fn echo() -> impl Handler {
    echo_up_to(None)
}

fn echo_up_to(limit: Option<u64>) -> impl Handler {
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let body = request.body();
        let body = if let Some(limit) = limit { body.limit(limit) } else { body };
        body.collect(reactor, |reactor, body| match body {
            Ok(body) => responder.respond(reactor, Response::ok().body(body)),
            Err(error) => responder.respond(reactor, error.response()),
        });
    }
}

fn post(length: usize, more: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{more}\r\n")
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn a_body_is_collected(on: On) {
    let mut site = on.serve(echo());
    let answer = site.ask(post(5, "") + "hello" + &post(0, "") + GET + &post(3, "") + "abc");
    assert_eq!(statuses(&answer), [200; 4]);
    assert!(answer.contains("\r\n\r\nhelloHTTP") && answer.ends_with("\r\n\r\nabc"), "{answer}");
    let large = "x".repeat(1_500_000);
    let answer = site.ask(post(large.len(), "") + &large);
    assert!(answer.ends_with(&format!("\r\n\r\n{large}")));
}

fn a_chunked_body_is_collected_with_its_trailers(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let mut state = Some((responder, String::new()));
        request.body().read(reactor, move |reactor, event| match event {
            BodyEvent::Data(data) => {
                state.as_mut().unwrap().1.push_str(str::from_utf8(data).unwrap());
            }
            BodyEvent::End(trailers) => {
                let (responder, body) = state.take().unwrap();
                responder.respond(reactor, format!("{body} {:?}\n", trailers.text("sum")));
            }
            BodyEvent::Failed(error) => panic!("{error}"),
        });
    };
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = on.serve(handler).ask(request.to_owned() + "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nSum: 5\r\n\r\n" + GET);
    assert_eq!(statuses(&answer), [200, 200]);
    assert!(answer.contains("\r\n\r\nabcde Some(\"5\")\n"), "{answer}");
}

fn unread_body_is_discarded(on: On) {
    let mut site = on.serve(plain(|request| format!("{}\n", request.method())));
    let answer = site.ask(post(5, "") + "GET /" + GET);
    assert_eq!(statuses(&answer), [200, 200]);
    assert!(answer.ends_with("GET\n") && !answer.contains("close"), "{answer}");
}

fn long_unread_body_closes_the_connection(on: On) {
    let mut site = on.serve_with(plain(|_| "no\n"), Settings { discard: 100, ..Settings::default() });
    let answer = site.ask(post(101, "") + &"x".repeat(101) + GET);
    assert_eq!(statuses(&answer), [200]);
    assert!(answer.contains("Connection: close\r\n"), "{answer}");
    // The length of a chunked body is unknown.
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nC8\r\n".to_owned();
    let answer = site.ask(chunked + &"x".repeat(200) + "\r\n0\r\n\r\n" + GET);
    assert_eq!(statuses(&answer), [200]);
}

fn body_with_an_excessive_length_is_refused_before_it_is_sent(on: On) {
    let mut site = on.serve_with(echo(), Settings { body: 10, ..Settings::default() });
    assert_eq!(statuses(&site.ask(post(10, "") + "0123456789")), [200]);
    site.with_client(|mut client| {
        client.send(post(11, ""));
        let answer = client.read_to_end();
        assert_eq!(statuses(&answer), [413]);
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    });
}

fn chunked_body_over_the_limit_is_refused(on: On) {
    let mut site = on.serve_with(echo(), Settings { body: 10, ..Settings::default() });
    let request =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n";
    assert_eq!(statuses(&site.ask(request)), [413]);
}

fn handler_can_raise_the_limit(on: On) {
    let mut site = on.serve_with(echo_up_to(Some(20)), Settings { body: 10, ..Settings::default() });
    assert_eq!(statuses(&site.ask(post(20, "") + &"x".repeat(20))), [200]);
    assert_eq!(statuses(&site.ask(post(21, "") + &"x".repeat(21))), [413]);
}

fn continue_is_sent_when_the_body_is_read(on: On) {
    on.serve(echo()).with_client(|mut client| {
        client.send(post(5, "Expect: 100-continue\r\n"));
        assert_eq!(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        client.send("hello");
        assert_eq!(client.response().1, "hello");
        // A client that does not wait gets no `100 Continue`.
        for sent in ["hello", "he"] {
            client.send(post(5, "Expect: 100-continue\r\n") + sent);
            // A `100 Continue` would come before the answer.
            client.send(&"hello"[sent.len()..]);
            assert!(client.response().0.starts_with("HTTP/1.1 200"));
        }
    });
}

fn continue_is_not_sent_for_an_unread_body(on: On) {
    on.serve(plain(|_| Response::new(403))).with_client(|mut client| {
        client.send(post(5, "Expect: 100-continue\r\n"));
        let answer = client.read_to_end();
        assert_eq!(statuses(&answer), [403]);
        assert!(answer.contains("Connection: close\r\n"), "the client may or may not send the body: {answer}");
    });
}

fn continue_is_sent_after_earlier_responses(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        if request.method_name() == "GET" {
            reactor.after(Duration::from_millis(20), |reactor| responder.respond(reactor, "first\n"));
        } else {
            echo().handle(reactor, request, responder);
        }
    };
    on.serve(handler).with_client(|mut client| {
        client.send(GET.to_owned() + &post(5, "Expect: 100-continue\r\n"));
        assert_eq!(client.response().1, "first\n");
        assert_eq!(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        client.send("hello");
        assert_eq!(client.response().1, "hello");
    });
}

fn a_body_can_be_read_later(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let (body, request) = (request.body(), request.keep());
        reactor.after(Duration::from_millis(20), move |reactor| {
            assert_eq!(request.get().header("X-Kept"), Some(&b"yes"[..]));
            echo().handle(reactor, request.with_body(&body), responder);
        });
    };
    let answer = on.serve(handler).ask(post(5, "X-Kept: yes\r\n") + "hello" + &post(3, "X-Kept: yes\r\n") + "abc");
    assert_eq!(statuses(&answer), [200, 200]);
    assert!(answer.contains("\r\n\r\nhello") && answer.ends_with("\r\n\r\nabc"), "{answer}");
}

/// More than the socket buffers on both sides hold.
const LARGE: usize = 30_000_000;

fn paused_reader_stops_the_client(on: On) {
    let seen: Rc<RefCell<(usize, Option<pelton_http::Body>)>> = Rc::default();
    let shown = seen.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let body = request.body().limit(LARGE as u64);
        seen.borrow_mut().1 = Some(body.clone());
        let (seen, pausing) = (seen.clone(), body.clone());
        let mut responder = Some(responder);
        body.read(reactor, move |reactor, event| match event {
            BodyEvent::Data(data) => {
                let before = seen.borrow().0;
                seen.borrow_mut().0 += data.len();
                if before == 0 {
                    pausing.pause(reactor);
                }
            }
            BodyEvent::End(_) => responder.take().unwrap().respond(reactor, "all\n"),
            BodyEvent::Failed(error) => panic!("{error}"),
        });
    };
    let mut site = on.serve(handler);
    let address = site.address.clone();
    let client = std::thread::spawn(move || {
        let mut client = common::Client::connect(&address);
        client.send(post(LARGE, ""));
        client.send(vec![b'x'; LARGE]);
        client.response().1
    });
    let state = shown.clone();
    site.run_until(move |_| state.borrow().0 > 0);
    let paused_at = shown.borrow().0;
    let (mut turns, end) = (0, site.reactor.clock() + Duration::from_millis(100));
    site.reactor.after(Duration::from_millis(100), |_| {});
    site.run_until(|reactor| {
        turns += 1;
        reactor.clock() >= end
    });
    assert_eq!(shown.borrow().0, paused_at, "no data while paused");
    assert!(turns < 100, "{turns} turns while paused");
    let body = shown.borrow_mut().1.take().unwrap();
    body.resume(&mut site.reactor);
    let state = shown.clone();
    site.run_until(move |_| state.borrow().0 == LARGE);
    let waiting = site.reactor.every(Duration::from_millis(5), |_, _| {});
    site.run_until(|_| client.is_finished());
    site.reactor.cancel(waiting);
    assert_eq!(client.join().unwrap(), "all\n");
}

fn truncated_body_is_an_error(on: On) {
    let mut site = on.serve(echo());
    assert_eq!(statuses(&site.ask(post(5, "") + "hell")), [400]);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    assert_eq!(statuses(&site.ask(chunked)), [400]);
    assert_eq!(site.ask("POST / HT"), "", "an incomplete head is not answered");
}

fn malformed_body_is_refused(on: On) {
    let mut site = on.serve(echo());
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in ["x\r\n", "5\r\nhelloGET / HTTP/1.1\r\n\r\n", "5\nhello\r\n", "1\r\na\r\n0\r\nA : b\r\n\r\n"] {
        let answer = site.ask(format!("{chunked}{body}{GET}"));
        assert_eq!(statuses(&answer), [400], "{body:?}: {answer}");
    }
}

fn reset_cancels_pending_requests(on: On) {
    type Told = Rc<RefCell<Vec<String>>>;
    let told: Told = Rc::default();
    let log = told.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let (path, log) = (request.path().to_owned(), log.clone());
        if request.content_length() == Some(0) {
            let gone = (log.clone(), path.clone());
            responder.on_gone(reactor, move |_| gone.0.borrow_mut().push(format!("{} is gone", gone.1)));
            log.borrow_mut().push(path);
            // Kept, so that it outlives the connection.
            reactor.after(Duration::from_secs(3600), move |_| drop(responder));
        } else {
            let mut responder = Some(responder);
            request.body().read(reactor, move |reactor, event| match event {
                BodyEvent::Data(_) => log.borrow_mut().push("data".to_owned()),
                BodyEvent::End(_) => unreachable!(),
                BodyEvent::Failed(error) => {
                    assert_eq!(error, BodyError::Gone);
                    assert!(responder.as_ref().unwrap().is_gone(reactor));
                    responder.take().unwrap().respond(reactor, "ignored");
                    log.borrow_mut().push("failed".to_owned());
                }
            });
        }
    };
    let mut site = on.serve(handler);
    let mut client = common::Client::connect(&site.address);
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned() + &post(5, "") + "x");
    let log = told.clone();
    site.run_until(move |_| log.borrow().len() == 3);
    // With this option set, closing resets the connection.
    reset_when_closed(&client.0);
    drop(client);
    let log = told.clone();
    site.run_until(move |_| log.borrow().len() == 6);
    let mut told = told.take();
    told.sort();
    assert_eq!(told, ["/1", "/1 is gone", "/2", "/2 is gone", "data", "failed"]);
    assert_eq!(site.server.connections(), 0);
}

fn reset_when_closed(stream: &std::net::TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn reading_twice_is_an_error(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        request.body().read(reactor, |_, _| {});
        request.body().collect(reactor, |reactor, body| {
            assert_eq!(body, Err(BodyError::Taken));
            responder.respond(reactor, "second\n");
        });
    };
    let answer = on.serve(handler).ask(post(5, "") + "hello" + &post(5, "") + "hello");
    assert_eq!(statuses(&answer), [200, 200]);
}

fn bodies_are_read_without_pipelining(on: On) {
    let mut site = on.serve_with(echo(), Settings { pipelined: 1, ..Settings::default() });
    let answer = site.ask((post(5, "") + "hello").repeat(3));
    assert_eq!(statuses(&answer), [200; 3]);
}

fn closing_response_may_precede_the_body(on: On) {
    let read = Rc::new(RefCell::new(Vec::new()));
    let log = read.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let log = log.clone();
        request.body().collect(reactor, move |_, body| log.borrow_mut().push(body.unwrap()));
        responder.respond(reactor, Response::ok().close());
    };
    let mut site = on.serve(handler);
    let answer = site.with_client(|mut client| {
        client.send(post(5, "") + "he");
        assert!(client.response().0.contains("Connection: close\r\n"));
        client.send("llo".to_owned() + GET);
        client.finish();
        client.read_to_end()
    });
    assert_eq!(answer, "", "no other request is answered");
    assert_eq!(read.take(), [b"hello"]);
}

fn body_paused_at_its_end_still_ends(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let body = request.body();
        let mut responder = Some(responder);
        let pausing = body.clone();
        body.read(reactor, move |reactor, event| match event {
            BodyEvent::Data(_) => {
                pausing.pause(reactor);
                let resuming = pausing.clone();
                reactor.after(Duration::from_millis(1), move |reactor| resuming.resume(reactor));
            }
            BodyEvent::End(_) => responder.take().unwrap().respond(reactor, "all\n"),
            BodyEvent::Failed(error) => panic!("{error}"),
        });
    };
    on.serve(handler).with_client(|mut client| {
        for _ in 0..3 {
            client.send(post(5, "") + "hello");
            assert_eq!(client.response().1, "all\n");
        }
    });
}

fn closing_response_is_the_last_even_if_a_body_is_being_read(on: On) {
    let failed = Rc::new(RefCell::new(Vec::new()));
    let log = failed.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        if request.method_name() == "GET" {
            let answer = Response::text("last\n").close();
            reactor.after(Duration::from_millis(20), |reactor| responder.respond(reactor, answer));
        } else {
            let log = log.clone();
            request.body().collect(reactor, move |reactor, body| {
                log.borrow_mut().extend(body.err());
                responder.respond(reactor, "too late\n");
            });
        }
    };
    let mut site = on.serve(handler);
    let answer = site.with_client(|mut client| {
        client.send(GET.to_owned() + &post(10, "") + "hello");
        let answer = client.read_until("last\n");
        let _ = client.0.write_all(b"hello");
        client.finish();
        answer + &client.read_to_end()
    });
    assert_eq!(statuses(&answer), [200], "{answer}");
    assert_eq!(failed.take(), [BodyError::Gone]);
}
