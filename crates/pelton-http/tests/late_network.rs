//! HTTP on an in-memory network whose engine completes operations late, in parts and in odd orders. A connection must not assume
//! that output has left or that input is complete.
//!
//! `PELTON_TEST_SEEDS=0..200` tries more orders.

use std::io::Write;
use std::thread;
use std::time::Duration;

use pelton::{Bytes, EventLoop, Reactor};
use pelton_http::{Body, BodyEvent, Request, Responder, Response, ResponseStream, Router, SendState, Server, Settings};
use pelton_testing::memory::{Memory, with_seeds};
use pelton_testing::{Network, Peer, run_until};

const LARGE: usize = 700_000;
const LINES: usize = 20_000;

fn echo(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    send_back(reactor, request.body(), responder);
}

fn send_back(reactor: &mut Reactor, body: Body, responder: Responder) {
    body.collect(reactor, |reactor, body| match body {
        Ok(body) => responder.respond(reactor, Response::ok().body(body)),
        Err(error) => responder.respond(reactor, error.response()),
    });
}

/// Echoes the body, and pauses after every piece.
fn restless(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    let body = request.body();
    let mut state = Some((Vec::new(), responder));
    let pausing = body.clone();
    body.read(reactor, move |reactor, event| match event {
        BodyEvent::Data(data) => {
            state.as_mut().unwrap().0.extend_from_slice(data);
            pausing.pause(reactor);
            let resuming = pausing.clone();
            reactor.next_tick(move |reactor| resuming.resume(reactor));
        }
        BodyEvent::End(_) => {
            let (body, responder) = state.take().unwrap();
            responder.respond(reactor, Response::ok().body(body));
        }
        BodyEvent::Failed(_) => drop(state.take()),
    });
}

/// Echoes the body, but starts reading it later.
fn lazy(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    let body = request.body();
    reactor.after(Duration::from_millis(1), move |reactor| send_back(reactor, body, responder));
}

/// Answers before the body has arrived, but reads it anyway.
fn hasty(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().read(reactor, |_, _| {});
    responder.respond(reactor, Response::ok().body("hasty"));
}

/// Answers later and never reads the body.
fn ignorant(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    reactor.next_tick(move |reactor| responder.respond(reactor, Response::ok().body("ignorant")));
}

fn large(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    responder.respond(reactor, Response::ok().body(Bytes::from(vec![b'L'; LARGE])));
}

fn late(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    reactor.after(Duration::from_millis(1), |reactor| responder.respond(reactor, Response::ok().body("late")));
}

fn stream(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    let head = Response::ok().header("Content-Length", (LINES * 10).to_string());
    let stream = responder.stream(reactor, head);
    send_lines(reactor, stream, 0);
}

fn send_lines(reactor: &mut Reactor, stream: ResponseStream, from: usize) {
    for number in from..LINES {
        match stream.send(reactor, format!("{number:09}\n")) {
            Ok(SendState::Ready) => {}
            Ok(SendState::Full) => {
                return stream.when_ready(reactor, move |reactor, stream| send_lines(reactor, stream, number + 1));
            }
            // The client has disconnected.
            Err(_) => return,
        }
    }
    stream.finish(reactor);
}

fn serve(on: Memory, settings: Settings) -> (EventLoop, pelton::Address) {
    let router = Router::new()
        .post("/echo", echo)
        .post("/restless", restless)
        .post("/lazy", lazy)
        .post("/hasty", hasty)
        .post("/ignorant", ignorant)
        .get("/large", large)
        .get("/late", late)
        .get("/stream", stream);
    let mut reactor = on.reactor();
    let server = Server::with_settings(router, settings);
    let listener = server.listen(&mut reactor, "127.0.0.1:0").unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    (reactor, address)
}

/// Runs the loop until the client is done.
fn with_client<T: Send + 'static>(on: Memory, settings: Settings, act: impl FnOnce(Peer) -> T + Send + 'static) -> T {
    let (mut reactor, address) = serve(on, settings);
    let client = thread::spawn(move || act(on.connect_peer(&address)));
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| client.is_finished());
    reactor.cancel(waiting);
    client.join().unwrap()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

fn post(body: &[u8]) -> Vec<u8> {
    post_to("/echo", body)
}

/// Sends the body in chunks.
fn post_chunks_to(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in body.chunks(4999) {
        request.extend_from_slice(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\nTrailer: x\r\n\r\n");
    request
}

fn post_to(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    request
}

/// The bodies of responses with a `Content-Length`.
fn bodies(mut answer: &[u8]) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    while !answer.is_empty() {
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let head = str::from_utf8(&answer[..end]).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap().parse().unwrap();
        bodies.push(answer[end..].get(..length).unwrap_or_else(|| panic!("{} of {head}", answer.len() - end)).to_vec());
        answer = &answer[end + length..];
    }
    bodies
}

fn everything_at_once(on: Memory) {
    let lines: Vec<u8> = (0..LINES).flat_map(|number| format!("{number:09}\n").into_bytes()).collect();
    let body: Vec<u8> = (0..100_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut requests = Vec::new();
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for _ in 0..3 {
        requests.extend(get("/late"));
        expected.push(b"late".to_vec());
        requests.extend(post(&body));
        expected.push(body.clone());
        requests.extend(get("/stream"));
        expected.push(lines.clone());
        requests.extend(get("/large"));
        expected.push(vec![b'L'; LARGE]);
        for path in ["/restless", "/lazy"] {
            requests.extend(post_to(path, &body));
            requests.extend(post_chunks_to(path, &body));
            requests.extend(post_to(path, b"x"));
            expected.extend([body.clone(), body.clone(), b"x".to_vec()]);
        }
        for path in ["/hasty", "/ignorant"] {
            requests.extend(post_to(path, &body));
            requests.extend(post_chunks_to(path, &body));
            expected.extend([path.as_bytes()[1..].to_vec(), path.as_bytes()[1..].to_vec()]);
        }
    }
    let answer = with_client(on, Settings { pipelined: 3, ..Settings::default() }, |mut client| {
        let mut writing = client.clone();
        let writer = thread::spawn(move || {
            writing.write_all(&requests).unwrap();
            writing.finish();
        });
        let answer = client.read_all().unwrap();
        writer.join().unwrap();
        answer
    });
    let bodies = bodies(&answer);
    let lengths = |bodies: &[Vec<u8>]| bodies.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&bodies), lengths(&expected));
    assert!(bodies == expected);
}

fn refusal_arrives_while_the_client_keeps_sending(on: Memory) {
    let answer = with_client(on, Settings::default(), |mut client| {
        let mut writing = client.clone();
        let writer = thread::spawn(move || {
            writing.write_all(&get("/late")).unwrap();
            writing.write_all(b"nonsense\r\n\r\n").unwrap();
            // The connection may be closed at any time.
            let _ = writing.write_all(&vec![b'x'; 300_000]);
            writing.finish();
        });
        let answer = client.read_all().unwrap();
        writer.join().unwrap();
        String::from_utf8(answer).unwrap()
    });
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(statuses, ["200", "400"], "{answer}");
}

fn client_that_disconnects_midway_leaves_nothing_behind(on: Memory) {
    let (mut reactor, address) = serve(on, Settings::default());
    let client = thread::spawn(move || {
        let mut client = on.connect_peer(&address);
        client.write_all(&[get("/late"), get("/stream"), get("/large"), post(b"never")].concat()).unwrap();
        client.read_some(1000);
        client.reset();
    });
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |reactor| client.is_finished() && reactor.connection_count() == 0);
    reactor.cancel(waiting);
    client.join().unwrap();
    assert_eq!(reactor.queued(), 0);
    // References to the exchange are dropped in the following ticks; the connection's timer is gone.
    run_until(&mut reactor, |reactor| reactor.timer_count() <= 1);
}

macro_rules! with_every_seed {
    ($($name:ident),* $(,)?) => { mod memory { $(#[test] fn $name() { super::with_seeds(super::$name) })* } };
}

with_every_seed![
    everything_at_once,
    refusal_arrives_while_the_client_keeps_sending,
    client_that_disconnects_midway_leaves_nothing_behind,
];
