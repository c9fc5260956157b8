//! Protocols that answer later: in order, from any thread, with a bounded number of pending replies; on the loop of every
//! engine, and on a pool.

mod answering;
mod ending;
mod flow;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use pelton::codec::Lines;
use pelton::{Address, EventLoop, ListenerId, Peer, Pool, Protocol, Reason, Replies, ReplySlot, Service, serve};
use pelton_testing::On;
use socket2::SockRef;

/// What the protocols send to the test.
#[derive(Clone)]
struct Reports {
    slots: Sender<(String, ReplySlot<String>)>,
    peers: Sender<Peer<String>>,
    closed: Sender<String>,
    processed: Arc<AtomicUsize>,
}

/// The test's end of it.
struct Desk {
    slots: Receiver<(String, ReplySlot<String>)>,
    peers: Receiver<Peer<String>>,
    closed: Receiver<String>,
    processed: Arc<AtomicUsize>,
}

fn reports() -> (Reports, Desk) {
    let ((slots, taken), (peers, opened), (closed, reasons)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
    let processed = Arc::new(AtomicUsize::new(0));
    (
        Reports { slots, peers, closed, processed: processed.clone() },
        Desk { slots: taken, peers: opened, closed: reasons, processed },
    )
}

/// Leaves `later ...` to the test, and echoes everything else immediately. `pause` pauses, `quit` closes.
struct Clerk {
    reports: Reports,
    limit: usize,
    quit: bool,
}

impl Protocol for Clerk {
    type Message = String;

    fn opened(&mut self, peer: &Peer<String>, _: &mut Replies<String>) {
        self.reports.peers.send(peer.clone()).unwrap();
    }

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        self.reports.processed.fetch_add(1, Ordering::SeqCst);
        if line.starts_with("later") {
            replies.send(format!("asked {line}"));
            let slot = replies.later();
            replies.send("next".to_owned());
            self.reports.slots.send((line, slot)).unwrap();
            return;
        }
        if line.starts_with("slot") {
            let slot = replies.later();
            return self.reports.slots.send((line, slot)).unwrap();
        }
        if line == "pause" {
            replies.pause();
        }
        self.quit = line == "quit";
        replies.send(line);
    }

    fn pending_limit(&self) -> usize {
        self.limit
    }

    fn should_close(&self) -> bool {
        self.quit
    }

    fn closed(&mut self, reason: &Reason) {
        // Not every test receives it.
        let _ = self.reports.closed.send(reason.to_string());
    }
}

fn address_of(reactor: &EventLoop, listener: ListenerId) -> SocketAddr {
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    }
}

/// A loop with clerks, on it or on a pool.
fn clerks(on: On, pool: Option<&Pool>, limit: usize) -> (EventLoop, SocketAddr, Desk) {
    let mut reactor = on.reactor();
    let (reports, desk) = reports();
    let service = serve(|| Lines::new().limit(2 << 20), move || Clerk { reports: reports.clone(), limit, quit: false });
    let anywhere = "127.0.0.1:0";
    let listener = match pool {
        None => reactor.listen(anywhere, service),
        Some(pool) => reactor.listen(anywhere, service.on(pool)),
    };
    let address = address_of(&reactor, listener.unwrap());
    (reactor, address, desk)
}

fn pool() -> Pool {
    Pool::builder().workers(2).build().unwrap()
}

/// A client with a deadline.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn lines(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }

    fn reset(self) {
        SockRef::from(self.0.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Reads until the end.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

fn soon<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(Duration::from_secs(20)).unwrap()
}
