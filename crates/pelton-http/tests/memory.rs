//! The memory cost of requests and connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use pelton::{EventLoop, Reactor};
use pelton_http::{Handler, Request, Responder, Response, Router, Server, plain};

const GET: &[u8] = b"GET /users/7?x=y HTTP/1.1\r\nHost: example.org\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n";

fn serve(handler: impl Handler) -> (EventLoop, String) {
    let mut reactor = Reactor::new().unwrap();
    let listener = Server::new(handler).listen(&mut reactor, "127.0.0.1:0").unwrap();
    let address = reactor.listening_on(listener).unwrap().to_string();
    (reactor, address)
}

/// Sends `request` and runs the loop until `length` bytes have been received.
fn exchange(reactor: &mut EventLoop, client: &mut TcpStream, request: &[u8], expected: usize) {
    client.write_all(request).unwrap();
    let mut buffer = [0; 16 * 1024];
    let mut received = 0;
    while received < expected {
        match client.read(&mut buffer) {
            Ok(0) => panic!("closed after {received} bytes"),
            Ok(count) => received += count,
            Err(_) => reactor.turn(Some(Duration::from_millis(1))).unwrap(),
        }
    }
    assert_eq!(received, expected);
}

/// The length of the answer to `request`.
fn length_of_answer(reactor: &mut EventLoop, client: &mut TcpStream, request: &[u8], count: usize) -> usize {
    client.write_all(request).unwrap();
    let (mut buffer, mut answer) = ([0; 16 * 1024], Vec::new());
    while answer.windows(12).filter(|window| window.starts_with(b"HTTP/1.1 200")).count() < count
        || !answer.ends_with(b"hello\n")
    {
        match client.read(&mut buffer) {
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(_) => reactor.turn(Some(Duration::from_millis(1))).unwrap(),
        }
    }
    answer.len()
}

fn allocations(handler: impl Handler, depth: usize) -> u64 {
    let (mut reactor, address) = serve(handler);
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nonblocking(true).unwrap();
    let requests = GET.repeat(depth);
    let expected = length_of_answer(&mut reactor, &mut client, &requests, depth);
    let mut run = |times: usize| (0..times).for_each(|_| exchange(&mut reactor, &mut client, &requests, expected));
    run(50);
    measure(|| run(500)).count_total
}

fn router() -> Router {
    Router::new().get("/users/{id}", plain(|_| Response::text("hello\n")))
}

#[test]
fn requests_answered_immediately_allocate_nothing() {
    assert_eq!(allocations(router(), 1), 0);
}

#[test]
fn pipelined_requests_allocate_nothing() {
    assert_eq!(allocations(router(), 32), 0);
}

/// A pending request costs one boxed closure; all other state is reused.
#[test]
fn requests_answered_later_allocate_only_for_their_handler() {
    let later = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let waiting = Box::new(responder);
        reactor.next_tick(move |reactor| waiting.respond(reactor, Response::text("hello\n")));
    };
    // One allocation for the closure and one for the response.
    assert_eq!(allocations(later, 1), 2 * 500);
}

/// During a long turn, the reactor checks its listeners. That must not allocate either.
#[test]
fn slow_handlers_allocate_nothing() {
    const LONG: Duration = Duration::from_millis(12);
    let slow = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let start = Instant::now();
        while start.elapsed() < LONG {
            std::hint::spin_loop();
        }
        responder.respond(reactor, Response::text("hello\n"));
    };
    let (mut reactor, address) = serve(slow);
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nonblocking(true).unwrap();
    let expected = length_of_answer(&mut reactor, &mut client, GET, 1);
    // The server's buffer and the outbox's block alternate, so both are allocated only after two requests.
    exchange(&mut reactor, &mut client, GET, expected);
    // One callback in sixteen is timed, so some of these are known to be slow.
    let measured = measure(|| (0..40).for_each(|_| exchange(&mut reactor, &mut client, GET, expected)));
    assert_eq!(measured.count_total, 0);
}

#[test]
fn an_idle_connection_takes_less_than_600_bytes() {
    const COUNT: usize = 400;
    let (mut reactor, address) = serve(router());
    let mut clients = Vec::new();
    let mut connect = |reactor: &mut EventLoop, count: usize| {
        for _ in 0..count {
            let mut client = TcpStream::connect(&address).unwrap();
            client.set_nonblocking(true).unwrap();
            // Includes connections that have been busy and sent their head in pieces.
            let (one, two) = GET.split_at(30);
            client.write_all(one).unwrap();
            while reactor.turn(Some(Duration::ZERO)).is_ok() && reactor.connection_count() <= clients.len() {}
            reactor.turn(Some(Duration::ZERO)).unwrap();
            length_of_answer(reactor, &mut client, two, 1);
            clients.push(client);
        }
    };
    connect(&mut reactor, COUNT);
    let bytes = measure(|| connect(&mut reactor, COUNT)).bytes_current;
    // The vector of clients is measured, too.
    let per_connection = bytes / COUNT as i64;
    println!("{per_connection} bytes per idle connection");
    assert!(per_connection < 600, "{per_connection} bytes");
}
