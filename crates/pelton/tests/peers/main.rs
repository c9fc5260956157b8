//! Connections to programs by others, which may use sockets differently.
//!
//! Only the connections and the end of the program wake the loop, so a lost wake-up is detected.
#![cfg(target_os = "linux")]

mod curl;
mod nc;
mod process;
mod python;
mod socat;

use std::path::PathBuf;

use pelton::{Address, Chunk, Connection, EventLoop, Io, Reactor, Reason};
use pelton_testing::{Log, On, run_until};

/// Echoes.
struct Echo(Log);

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.add(reason.to_string());
    }
}

/// Reads everything, and answers with the length when the other side has finished.
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

/// A client: sends everything at once, and collects the answer.
struct Client {
    log: Log,
    data: Vec<u8>,
    back: Vec<u8>,
    finishes: Finishes,
}

/// Which side finishes first.
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

/// Bytes without repetition, so that lost or reordered data is detected.
fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(next).collect()
}

/// Listens on a TCP port, and returns it.
fn listen<C: Connection>(reactor: &mut EventLoop, serve: impl FnMut(&mut Reactor) -> C + 'static) -> u16 {
    let listener = reactor.listen("127.0.0.1:0", serve).unwrap();
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => address.port(),
        other => panic!("{other:?}"),
    }
}

/// A unique path for a Unix socket.
fn socket_path(on: On, name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pelton-{}-{name}-{}.sock", std::process::id(), on.0))
}

/// Runs the loop until all connections have ended, and returns their log.
fn ends(reactor: &mut EventLoop, log: &Log) -> Vec<String> {
    run_until(reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.stats().panics, 0);
    log.take()
}
