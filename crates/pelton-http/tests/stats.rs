//! What a server counts, and what it tells of what it refuses by itself.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use pelton::{Address, Reactor};
use pelton_http::{Server, Settings, plain};

const DEADLINE: Duration = Duration::from_secs(20);
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends this, and reads until the end.
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
fn connections_requests_and_refusals_are_counted_and_refusals_told() {
    let mut reactor = Reactor::new().unwrap();
    let server = Server::with_settings(plain(|_| "hello\n"), Settings { connections: 1, ..Settings::default() });
    let told: Rc<RefCell<Vec<u16>>> = Rc::default();
    let hear = told.clone();
    server.on_refusal(move |io, refusal| {
        assert!(matches!(io.peer_address(), Ok(Address::Tcp(address)) if address.ip().is_loopback()));
        hear.borrow_mut().push(refusal.status);
    });
    // Only the first counts.
    server.on_refusal(|_, _| panic!("this one is not told"));
    let listener = server.listen(&mut reactor, &"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let handle = reactor.handle();
    let clients = thread::spawn(move || {
        assert_eq!(say(&address, &GET.repeat(3)).matches("HTTP/1.1 200").count(), 3);
        assert!(say(&address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
        let mut first = TcpStream::connect(address.to_string()).unwrap();
        first.write_all(GET.as_bytes()).unwrap();
        // When it is answered, it is taken on, and the next is one too many.
        first.read_exact(&mut [0; 12]).unwrap();
        assert!(say(&address, "").starts_with("HTTP/1.1 503"));
        drop(first);
        handle.stop();
    });
    reactor.after(DEADLINE, |_| panic!("it takes too long"));
    reactor.run().unwrap();
    clients.join().unwrap();
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.turned_away, stats.requests, stats.refused), (3, 1, 4, 1));
    assert_eq!(*told.borrow(), [400, 503]);
}
