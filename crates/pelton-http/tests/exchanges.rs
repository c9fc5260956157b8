//! Requests and responses, over real connections, on every engine.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use common::{On, Serve, on_every_engine, statuses, undated};
use pelton::Reactor;
use pelton_http::{Handler, Request, Responder, Response, Router, Settings, plain};

on_every_engine![
    a_request_is_answered,
    a_connection_stays_open,
    pipelined_requests_are_answered_in_order,
    late_responses_are_sent_in_order,
    handler_that_resumes_another_connection_answers_its_own,
    head_gets_no_body,
    http_1_0_connections_close_unless_keep_alive_is_requested,
    options_asterisk_lists_all_methods,
    routes_are_matched,
    dropped_responder_sends_500,
    invalid_responses_become_500,
    panicking_handler_sends_500_and_closes,
    panicking_handler_leaves_no_commands_behind,
    requests_before_a_half_close_are_answered,
    handlers_wrap_each_other,
    a_request_can_be_kept,
];

fn hello() -> impl Handler {
    plain(|request| format!("hello {}\n", request.path()))
}

fn a_request_is_answered(on: On) {
    let answer = on.serve(hello()).ask("GET /world?x HTTP/1.1\r\nHost: a\r\n\r\n");
    let (date, rest): (Vec<&str>, Vec<&str>) =
        answer.split_inclusive("\r\n").partition(|line| line.starts_with("Date: "));
    assert!(date.len() == 1 && date[0].ends_with(" GMT\r\n"), "{answer}");
    let expected =
        "HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nhello /world\n";
    assert_eq!(rest.concat(), expected);
}

fn a_connection_stays_open(on: On) {
    on.serve(hello()).with_client(|mut client| {
        for path in ["/1", "/2", "/3"] {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(client.response().1, format!("hello {path}\n"));
        }
        client.send("GET /4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /5 HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.read_to_end();
        assert!(answer.contains("Connection: close\r\n") && answer.ends_with("hello /4\n"), "{answer}");
        assert_eq!(statuses(&answer), [200], "the second request is not answered");
    });
}

fn pipelined_requests_are_answered_in_order(on: On) {
    let requests: String = (0..500).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    let answer = on.serve(hello()).ask(requests);
    let bodies: Vec<&str> = answer.lines().filter(|line| line.starts_with("hello")).collect();
    let expected: Vec<String> = (0..500).map(|number| format!("hello /{number}")).collect();
    assert_eq!(bodies, expected);
}

/// Answers paths that begin with `/late` after the others, in reverse order.
fn late_responses_are_sent_in_order(on: On) {
    let late: Rc<RefCell<Vec<(String, Responder)>>> = Rc::default();
    let kept = late.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let path = request.path().to_owned();
        if path.starts_with("/late") {
            kept.borrow_mut().push((path, responder));
        } else {
            responder.respond(reactor, path + "\n");
        }
    };
    let mut site = on.serve(handler);
    let mut answered = false;
    let requests = ["/now1", "/late1", "/now2", "/late2", "/now3"];
    let sent: String = requests.map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).concat();
    let address = site.address.clone();
    let client = std::thread::spawn(move || {
        let mut client = common::Client::connect(&address);
        client.send(sent);
        client.finish();
        client.read_to_end()
    });
    let watching = site.reactor.every(Duration::from_millis(1), |_, _| {});
    site.run_until(|reactor| {
        if late.borrow().len() == 2 && !answered {
            answered = true;
            let mut waiting = late.take();
            while let Some((path, responder)) = waiting.pop() {
                responder.respond(reactor, path + "\n");
            }
        }
        client.is_finished()
    });
    site.reactor.cancel(watching);
    let answer = client.join().unwrap();
    let bodies: Vec<&str> = answer.lines().filter(|line| line.starts_with('/')).collect();
    assert_eq!(bodies, requests, "{answer}");
}

/// Responding to a kept request makes its connection handle the next one, inside the handler that responds.
fn handler_that_resumes_another_connection_answers_its_own(on: On) {
    let kept: Rc<RefCell<Option<Responder>>> = Rc::default();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| match request.path() {
        "/kept" => *kept.borrow_mut() = Some(responder),
        "/before" => {
            responder.respond(reactor, "before\n");
            kept.take().unwrap().respond(reactor, "kept\n");
        }
        "/after" => {
            kept.take().unwrap().respond(reactor, "kept\n");
            responder.respond(reactor, "after\n");
        }
        path => responder.respond(reactor, format!("{path}\n")),
    };
    let mut site = on.serve_with(handler, Settings { pipelined: 1, ..Settings::default() });
    site.run(|address| {
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (mut one, mut other) = (common::Client::connect(&address), common::Client::connect(&address));
        for own in ["/before", "/after"] {
            one.send(get("/1") + &get("/kept") + &get("/2"));
            assert_eq!(one.response().1, "/1\n", "the next request was handled");
            other.send(get(own));
            assert_eq!(other.response().1, format!("{}\n", &own[1..]));
            assert_eq!((one.response().1, one.response().1), ("kept\n".to_owned(), "/2\n".to_owned()));
        }
    });
}

fn head_gets_no_body(on: On) {
    let mut site = on.serve(Router::new().get("/", plain(|_| "hello\n")));
    let answer = site.ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = undated(&answer);
    let (head, get) = answer.split_at(answer.rfind("HTTP/1.1").unwrap());
    assert_eq!(get, format!("{head}hello\n"), "only the body differs");
    assert!(head.contains("Content-Length: 6\r\n"));
}

fn http_1_0_connections_close_unless_keep_alive_is_requested(on: On) {
    let mut site = on.serve(hello());
    site.with_client(|mut client| {
        client.send("GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let (head, body) = client.response();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Connection: keep-alive\r\n"), "{head}");
        assert_eq!(body, "hello /1\n");
        client.send("GET /2 HTTP/1.0\r\n\r\n");
        let answer = client.read_to_end();
        assert!(answer.contains("Connection: close\r\n") && answer.ends_with("hello /2\n"), "{answer}");
    });
}

fn options_asterisk_lists_all_methods(on: On) {
    let mut site = on.serve(Router::new().get("/a", hello()).post("/b", hello()));
    let answer = undated(&site.ask("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(answer, "HTTP/1.1 204 No Content\r\nAllow: GET, HEAD, OPTIONS, POST\r\n\r\n");
}

fn routes_are_matched(on: On) {
    let user = plain(|request: &Request<'_>| format!("user {}\n", request.parameter("id").unwrap()));
    let rest = plain(|request: &Request<'_>| format!("rest {}\n", request.parameter("rest").unwrap()));
    let router = Router::new()
        .get("/users/{id}", user)
        .get("/users/me", hello())
        .delete("/users/{id}", plain(|_| Response::new(204)))
        .route("PURGE", "/users/{id}", plain(|_| Response::new(202)))
        .get("/files/{*rest}", rest)
        .get("/plain/{id}", plain(|request| format!("{:?}\n", request.plain_parameter("id"))));
    let mut site = on.serve(router);
    let mut ask = |line: &str| undated(&site.ask(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n")));
    assert!(ask("GET /users/7").ends_with("\r\n\r\nuser 7\n"));
    assert!(
        ask("GET /users/a%2Fb%20c?x=/y").ends_with("\r\n\r\nuser a/b c\n"),
        "parameters are decoded after matching"
    );
    assert!(ask("GET /users/me").ends_with("\r\n\r\nhello /users/me\n"));
    assert!(ask("GET http://b/users/9").ends_with("\r\n\r\nuser 9\n"), "an absolute URI");
    assert!(ask("GET /files/a/b").ends_with("\r\n\r\nrest a/b\n"));
    assert!(ask("GET /plain/7").ends_with("\r\n\r\nSome(\"7\")\n"));
    assert!(ask("GET /plain/%2F").ends_with("\r\n\r\nNone\n"), "an escaped parameter is not plain");
    assert_eq!(statuses(&ask("DELETE /users/7")), [204]);
    assert_eq!(statuses(&ask("PURGE /users/7")), [202]);
    assert_eq!(statuses(&ask("GET /nothing")), [404]);
    let refused = ask("PUT /users/7");
    assert!(
        refused.starts_with("HTTP/1.1 405 ") && refused.contains("Allow: GET, HEAD, OPTIONS, DELETE, PURGE\r\n"),
        "{refused}"
    );
    assert!(ask("OPTIONS /files/x").contains("Allow: GET, HEAD, OPTIONS\r\n"));
    assert_eq!(statuses(&ask("CONNECT a:1")), [501]);
}

fn dropped_responder_sends_500(on: On) {
    let mut site = on.serve(|_: &mut Reactor, _: Request<'_>, responder: Responder| drop(responder));
    site.reactor.on_fault(|reactor, fault| reactor.state::<Vec<String>>().push(fault.message.clone()));
    let answer = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(statuses(&answer), [500, 500], "the connection stays open");
    let faults = site.reactor.take_state::<Vec<String>>().unwrap_or_default();
    assert_eq!(faults, ["request not answered, the client gets a 500"; 2]);
}

fn invalid_responses_become_500(on: On) {
    let answers = |request: &Request<'_>| match request.path() {
        "/split" => Response::text("x").header("A", "b\r\nSet-Cookie: c"),
        "/name" => Response::text("x").header("A b", "c"),
        "/status" => Response::new(99),
        "/interim" => Response::new(100),
        "/short" => Response::text("abc").header("Content-Length", "4"),
        _ => Response::text("fine").header("Content-Length", "4").header("Transfer-Encoding", "chunked"),
    };
    let mut site = on.serve(plain(answers));
    for path in ["/split", "/name", "/status", "/interim", "/short"] {
        let answer = site.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(statuses(&answer), [500], "{path}: {answer}");
        assert!(!answer.contains("Set-Cookie"), "{answer}");
    }
    let answer = site.ask("GET /fine HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nfine") && !answer.contains("chunked"), "{answer}");
}

fn panicking_handler_leaves_no_commands_behind(on: On) {
    let sent = Arc::new(());
    let held = Arc::downgrade(&sent);
    let sent = Cell::new(Some(sent));
    let handler = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let owner = sent.take().unwrap();
        responder.on_gone(reactor, move |_| drop(owner));
        panic!("on purpose");
    };
    let mut site = on.serve_catching(handler);
    assert_eq!(statuses(&site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")), [500]);
    assert_eq!(held.strong_count(), 0, "the connection is gone, but the server is not");
}

fn panicking_handler_sends_500_and_closes(on: On) {
    let panics = plain(|request: &Request<'_>| {
        assert_ne!(request.path(), "/panic", "on purpose");
        "fine\n"
    });
    let mut site = on.serve_catching(panics);
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = site.ask(request("/") + &request("/panic") + &request("/"));
    assert_eq!(statuses(&answer), [200, 500], "{answer}");
    assert_eq!(statuses(&site.ask(request("/"))), [200], "other connections are served");
}

fn requests_before_a_half_close_are_answered(on: On) {
    let handler = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        reactor.after(Duration::from_millis(20), |reactor| responder.respond(reactor, "late\n"));
    };
    let answer = on.serve(handler).ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nlate\n"), "{answer}");
}

/// Adds a line to the response that names the handler it went through.
fn marked(mark: &'static str, inner: impl Handler) -> impl Handler {
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let responder = responder.before_sending(move |response| response.fields_mut().append("Mark", mark));
        inner.handle(reactor, request, responder);
    }
}

fn handlers_wrap_each_other(on: On) {
    let streams = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        responder.stream(reactor, Response::ok()).finish(reactor);
    };
    let router = Router::new().get("/", plain(|_| Response::ok())).get("/stream", streams);
    let mut site = on.serve(marked("outer", marked("inner", router)));
    for path in ["/", "/stream"] {
        let answer = site.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let marks: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("Mark: ")).collect();
        assert_eq!(marks, ["inner", "outer"], "{answer}");
    }
}

fn a_request_can_be_kept(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let address = responder.peer_address(reactor).unwrap();
        assert!(address.to_string().starts_with("127.0.0.1:"));
        let kept = request.keep();
        reactor.after(Duration::from_millis(5), move |reactor| {
            let request = kept.get().keep();
            let request = request.get();
            let text = format!(
                "{} {} {:?} {} {}\n",
                request.method_name(),
                request.path(),
                request.query(),
                request.parameter("id").unwrap(),
                request.fields().text("x").unwrap()
            );
            responder.respond(reactor, text);
        });
    };
    let mut site = on.serve(Router::new().route("LOOK", "/a/{id}", handler));
    let answer = site.ask("LOOK /a/7%21?q HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n".repeat(2));
    assert_eq!(answer.matches("\r\n\r\nLOOK /a/7%21 Some(\"q\") 7! y\n").count(), 2, "{answer}");
}
