//! Server counters, and the callback for refusals.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use pelton::{Address, PanicPolicy, Reactor};
use pelton_http::{Server, Settings, plain};

const DEADLINE: Duration = Duration::from_secs(20);
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends `text` and reads until the end.
fn say(address: &Address, text: &str) -> String {
    let mut stream = TcpStream::connect(address.to_string()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn connections_requests_and_refusals_are_counted_and_refusals_are_reported() {
    // Callbacks that must not run panic, and panics must not be caught.
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    let server = Server::with_settings(plain(|_| "hello\n"), Settings { connections: 1, ..Settings::default() });
    let told: Rc<RefCell<Vec<u16>>> = Rc::default();
    let hear = told.clone();
    server.on_refusal(move |io, refusal| {
        assert!(matches!(io.peer_address(), Ok(Address::Tcp(address)) if address.ip().is_loopback()));
        hear.borrow_mut().push(refusal.status);
    });
    // Only the first callback is used.
    server.on_refusal(|_, _| panic!("the second callback must not run"));
    let listener = server.listen(&mut reactor, "127.0.0.1:0").unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let handle = reactor.handle();
    let clients = thread::spawn(move || {
        assert_eq!(say(&address, &GET.repeat(3)).matches("HTTP/1.1 200").count(), 3);
        // The server may notice the end of a connection a little later than the client.
        let mut early = 0;
        while !say(&address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400") {
            early += 1;
        }
        let _first = loop {
            let mut first = TcpStream::connect(address.to_string()).unwrap();
            first.set_read_timeout(Some(DEADLINE)).unwrap();
            first.write_all(GET.as_bytes()).unwrap();
            let mut answer = [0; 12];
            first.read_exact(&mut answer).unwrap();
            if answer == *b"HTTP/1.1 200" {
                break first;
            }
            early += 1;
        };
        // This connection is accepted, and the next is one too many.
        assert!(say(&address, "").starts_with("HTTP/1.1 503"));
        handle.stop();
        early
    });
    reactor.after(DEADLINE, |_| panic!("timed out"));
    reactor.run().unwrap();
    let early = clients.join().unwrap();
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.turned_away, stats.requests, stats.refused), (3, 1 + early, 4, 1));
    let told = told.borrow();
    assert_eq!(told.iter().filter(|status| **status == 400).count(), 1);
    assert_eq!(told.iter().filter(|status| **status == 503).count() as u64, 1 + early);
}
