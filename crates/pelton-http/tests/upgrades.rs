//! Upgrades and tunnels, over real connections, on every engine.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use common::{Client, On, Serve, on_every_engine, statuses, undated};
use pelton::{Chunk, Connection, ConnectionId, Io, Limit, Reactor, Reason};
use pelton_http::{BodyError, BodyEvent, Request, Responder, Response, Settings, plain, tunnelling};

on_every_engine![
    an_upgrade_hands_over_the_connection,
    declined_upgrade_continues_with_http,
    upgraded_connection_gets_every_callback,
    an_upgrade_waits_for_the_body_of_its_request,
    upgrade_after_an_oversized_body_is_refused,
    request_is_over_after_an_upgrade,
    half_closed_client_is_upgraded,
    connect_is_refused_unless_a_handler_accepts_it,
    only_an_upgrade_can_accept_connect,
];

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const UPGRADE: &str = "GET /shout HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n";
const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: shout\r\n\r\n";

/// Echoes in capitals.
struct Shout(u32);

impl Connection for Shout {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(b"WELCOME ").unwrap();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.0 += 1;
        io.send(&chunk.to_ascii_uppercase()).unwrap();
    }
}

fn switching() -> Response {
    Response::new(101).header("Upgrade", "shout")
}

fn an_upgrade_hands_over_the_connection(on: On) {
    let ids: Rc<RefCell<Vec<ConnectionId>>> = Rc::default();
    let log = ids.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        if !request.wants_upgrade() {
            return responder.respond(reactor, Response::ok().body("plain"));
        }
        assert_eq!(request.header("upgrade"), Some(&b"shout"[..]));
        log.borrow_mut().push(responder.connection().unwrap());
        // Bytes that arrive before the answer are not parsed as a request.
        reactor.after(Duration::from_millis(10), |reactor| responder.upgrade(reactor, switching(), Shout(0)));
    };
    let mut site = on.serve(handler);
    let mut client = Client::connect(&site.address);
    client.send(GET.to_owned() + UPGRADE + "early ");
    let (client, answer) = site.run(move |_| {
        let answer = client.read_until("EARLY ");
        client.send("later");
        assert_eq!(client.read_exactly(5), b"LATER");
        (client, answer)
    });
    let expected = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain{SWITCHING}WELCOME EARLY ");
    assert_eq!(undated(&answer), expected);
    let id = ids.borrow()[0];
    assert_eq!(site.reactor.visit(id, |shout: &mut Shout, _| shout.0), Some(2));
    assert_eq!(site.server.connections(), 1, "an upgraded connection still counts");
    drop(client);
    site.run_until(|reactor| reactor.connection_count() == 0);
    assert_eq!(site.server.connections(), 0);
}

fn declined_upgrade_continues_with_http(on: On) {
    let mut site = on.serve(plain(|request| Response::ok().body(request.path().to_owned())));
    let answer = undated(&site.ask(UPGRADE.to_owned() + GET));
    let expected = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n/shoutHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n/";
    assert_eq!(answer, expected);
}

/// Records every callback.
struct Listening(Rc<RefCell<Vec<&'static str>>>);

impl Listening {
    fn hears(&self, what: &'static str) {
        let mut heard = self.0.borrow_mut();
        if heard.last() != Some(&what) {
            heard.push(what);
        }
    }
}

impl Connection for Listening {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.hears("opened");
        io.tell_when_sent();
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.hears("received");
        if chunk.contains(&b'!') {
            io.send_bytes(vec![b'x'; 12_000_000]).unwrap();
        }
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        self.hears("writable");
        io.set_limit(Limit::Inactivity, Some(Duration::from_millis(30)));
    }

    fn sent(&mut self, _: &mut Io<'_>) {
        self.hears("sent");
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        self.hears("timed out");
        io.set_limit(limit, None);
        io.reactor().drain(Duration::from_secs(20));
    }

    fn draining(&mut self, _: &mut Io<'_>) {
        self.hears("draining");
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.hears("peer finished");
        io.close_after_writing();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        assert!(matches!(reason, Reason::Finished), "{reason}");
        self.hears("closed");
    }
}

fn upgraded_connection_gets_every_callback(on: On) {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let log = heard.clone();
    let mut site = on.serve(move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        responder.upgrade(reactor, switching(), Listening(log.clone()));
    });
    let mut client = Client::connect(&site.address);
    client.send(UPGRADE);
    let log = heard.clone();
    site.run_until(move |_| log.borrow().last() == Some(&"sent"));
    client.send("!");
    // The client must not read yet: if it read while the server sends, the whole output might fit into the socket, and there
    // would be nothing to drain.
    let log = heard.clone();
    site.run_until(move |_| log.borrow().last() == Some(&"received"));
    let mut client = site.run(move |_| {
        client.read_until("\r\n\r\n");
        client.read_exactly(12_000_000);
        client
    });
    let log = heard.clone();
    site.run_until(move |_| log.borrow().last() == Some(&"draining"));
    client.finish();
    assert_eq!(site.reactor.run().unwrap(), pelton::Exit::Drained);
    assert_eq!(client.read_to_end(), "");
    let expected = ["opened", "sent", "received", "writable", "timed out", "draining", "peer finished", "closed"];
    assert_eq!(*heard.borrow(), expected);
    assert_eq!((site.server.connections(), site.reactor.stats().panics), (0, 0));
}

fn an_upgrade_waits_for_the_body_of_its_request(on: On) {
    let mut site = on.serve(|reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        responder.upgrade(reactor, switching(), Shout(0));
    });
    site.with_client(|mut client| {
        client.send(UPGRADE.replace("\r\n\r\n", "\r\nContent-Length: 6\r\n\r\nbod"));
        client.send("y: ");
        assert_eq!(undated(&client.read_until("WELCOME ")), format!("{SWITCHING}WELCOME "));
        client.send("and more");
        assert_eq!(client.read_exactly(8), b"AND MORE");
    });
}

fn upgrade_after_an_oversized_body_is_refused(on: On) {
    let upgrade = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        responder.upgrade(reactor, switching(), Shout(0));
    };
    let mut site = on.serve_with(upgrade, Settings { discard: 10, ..Settings::default() });
    let request = UPGRADE.replace("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n") + &"x".repeat(255);
    let answer = site.ask(request + "\r\n0\r\n\r\nand more");
    assert_eq!(statuses(&answer), [413], "{answer}");
    assert!(answer.contains("Connection: close\r\n") && !answer.contains("WELCOME"), "{answer}");
}

fn request_is_over_after_an_upgrade(on: On) {
    /// Reads the body of its own request, which is over.
    struct Late(Option<pelton_http::Body>, Rc<Cell<Option<BodyError>>>);

    impl Connection for Late {
        fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
            let (body, told) = (self.0.take().unwrap(), self.1.clone());
            body.read(io.reactor(), move |_, event| match event {
                BodyEvent::Failed(error) => told.set(Some(error)),
                _ => panic!("{event:?}"),
            });
            assert_eq!(self.1.get(), Some(BodyError::Gone));
            io.send(b"told").unwrap();
        }
    }

    let told = Rc::new(Cell::new(None));
    let seen = told.clone();
    let mut site = on.serve(move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let late = Late(Some(request.body()), seen.clone());
        responder.upgrade(reactor, switching(), late);
    });
    site.with_client(|mut client| {
        client.send(UPGRADE);
        client.read_until("\r\n\r\n");
        client.send("now");
        assert_eq!(client.read_exactly(4), b"told");
    });
    assert_eq!((told.get(), site.reactor.stats().panics), (Some(BodyError::Gone), 0));
}

fn half_closed_client_is_upgraded(on: On) {
    let mut site = on.serve(|reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        reactor.after(Duration::from_millis(30), |reactor| responder.upgrade(reactor, switching(), Shout(0)));
    });
    let answer = undated(&site.ask(UPGRADE.to_owned() + "early"));
    assert_eq!(answer, format!("{SWITCHING}WELCOME EARLY"));
}

const CONNECT: &str = "CONNECT other:1 HTTP/1.1\r\nHost: other:1\r\n\r\n";

fn connect_is_refused_unless_a_handler_accepts_it(on: On) {
    let mut site = on.serve(plain(|request| {
        assert_eq!(request.path(), "/", "the handler must not be called for CONNECT");
        "hello\n"
    }));
    let body = CONNECT.replace("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\nhello");
    let old = "CONNECT other:1 HTTP/1.0\r\n\r\n".to_owned();
    for connect in [CONNECT.to_owned(), body, old] {
        // The bytes after it are not HTTP, whatever they look like.
        let answer = site.ask(GET.to_owned() + &connect + GET);
        assert_eq!(statuses(&answer), [200, 501], "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    }
    let stats = site.server.stats();
    assert_eq!((stats.requests, stats.refused, site.reactor.stats().panics), (3, 3, 0));
    // The same if the response comes later and the client does not close.
    site.with_client(|mut client| {
        client.send(CONNECT);
        assert_eq!(statuses(&client.read_until("\r\n\r\n")), [501]);
        client.send(GET);
        assert!(statuses(&client.read_to_end()).is_empty());
    });
}

fn only_an_upgrade_can_accept_connect(on: On) {
    let handler = |reactor: &mut Reactor, request: Request<'_>, responder: Responder| match request.host() {
        Some("tunnel:1") => responder.upgrade(reactor, 200, Shout(0)),
        Some("closed:1") => responder.respond(reactor, 403),
        _ => responder.respond(reactor, 200),
    };
    let mut site = on.serve(tunnelling(handler));
    let answer = undated(&site.ask(CONNECT.replace("other", "tunnel") + "hello"));
    assert_eq!(answer, "HTTP/1.1 200 OK\r\n\r\nWELCOME HELLO");
    for (host, status) in [("closed", 403), ("other", 500)] {
        let answer = site.ask(CONNECT.replace("other", host) + GET);
        assert_eq!(statuses(&answer), [status], "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    }
    // A wrapper that does not delegate `takes_connect` refuses it.
    let mut site = on.serve(Box::new(tunnelling(handler)) as Box<dyn pelton_http::Handler>);
    assert_eq!(statuses(&site.ask(CONNECT.replace("other", "closed"))), [403]);
}
