//! Connections whose other side is a program that was written elsewhere, with another idea of what a socket is.
//!
//! Nothing wakes the loop here but the connections themselves and the end of the program, so a wake-up that is lost shows.
#![cfg(target_os = "linux")]

mod curl;
mod nc;
mod process;
mod python;
mod socat;

use std::path::PathBuf;

use pelton::{Address, Chunk, Connection, EventLoop, Io, Reactor, Reason};
use pelton_testing::{Log, On, run_until};

/// Sends back whatever comes.
struct Echo(Log);

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.add(reason.to_string());
    }
}

/// Takes everything in, and says how much that was when the other side has finished.
struct Sum {
    log: Log,
    bytes: u64,
    sum: u64,
}

impl Sum {
    fn new(log: Log) -> Sum {
        Sum { log, bytes: 0, sum: 0 }
    }
}

impl Connection for Sum {
    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.bytes += chunk.len() as u64;
        self.sum += sum(&chunk);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        io.send(format!("{} {}\n", self.bytes, self.sum).as_bytes()).unwrap();
        io.close_after_writing();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(reason.to_string());
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// A client: sends all it has at once, and collects what comes back.
struct Client {
    log: Log,
    data: Vec<u8>,
    back: Vec<u8>,
    finishes: Finishes,
}

/// Who says first that there is no more.
#[derive(PartialEq, Eq)]
enum Finishes {
    First,
    Second,
}

impl Client {
    fn new(log: Log, data: Vec<u8>, finishes: Finishes) -> Client {
        Client { log, data, back: Vec::new(), finishes }
    }
}

impl Connection for Client {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(&self.data).unwrap();
        if self.finishes == Finishes::First {
            io.finish();
        }
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.back.extend_from_slice(&chunk);
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        let whole = if self.back == self.data { "everything" } else { "something else" };
        self.log.add(format!("{whole} came back; {reason}"));
    }
}

/// Bytes that look different everywhere, so that nothing can be lost or moved without being noticed.
fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(next).collect()
}

/// Listens on a TCP port, and says which.
fn listen<C: Connection>(reactor: &mut EventLoop, serve: impl FnMut(&mut Reactor) -> C + 'static) -> u16 {
    let listener = reactor.listen("127.0.0.1:0", serve).unwrap();
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => address.port(),
        other => panic!("{other:?}"),
    }
}

/// A path for a Unix socket that no other test has.
fn socket_path(on: On, name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pelton-{}-{name}-{}.sock", std::process::id(), on.0))
}

/// Turns the loop until all connections are over, and says what they logged.
fn ends(reactor: &mut EventLoop, log: &Log) -> Vec<String> {
    run_until(reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.stats().panics, 0);
    log.take()
}
