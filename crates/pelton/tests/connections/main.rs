//! Connections, with peers that block in other threads: on every engine, and on an engine over a network in memory that completes
//! everything late and in parts.

#[path = "../common/mod.rs"]
mod common;
mod draining;
mod flow;
mod handing_over;
mod lifetime;
mod limits;
mod moving;
mod reading;
mod sending;
mod unix;

use std::thread;
use std::time::Duration;

use pelton::{Address, Chunk, Connection, EventLoop, Io, Reactor, Reason};

use common::peer::{Network, Peer};
use common::{Log, run_until};

type Act = Box<dyn FnMut(&mut Io<'_>)>;
type Receive = Box<dyn FnMut(&mut Io<'_>, Chunk)>;

/// Does what it is told to by closures, and logs the rest.
#[derive(Default)]
struct Scripted {
    log: Log,
    received: Option<Receive>,
    opened: Option<Act>,
    peer_finished: Option<Act>,
}

impl Scripted {
    fn logging(log: &Log) -> Scripted {
        Scripted { log: log.clone(), ..Scripted::default() }
    }
}

impl Connection for Scripted {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.log.add("opened");
        if let Some(act) = &mut self.opened {
            act(io);
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        match &mut self.received {
            Some(act) => act(io, chunk),
            None => self.log.received(&chunk),
        }
    }

    fn drained(&mut self, _: &mut Io<'_>) {
        self.log.add("drained");
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add("peer finished");
        match &mut self.peer_finished {
            Some(act) => act(io),
            None => io.close_after_writing(),
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        io.send_chunk(chunk).unwrap();
    }
}

fn listen<C: Connection>(reactor: &mut EventLoop, serve: impl FnMut(&mut Reactor) -> C + 'static) -> Address {
    let listener = reactor.listen("127.0.0.1:0", serve).unwrap();
    reactor.listening_on(listener).unwrap().clone()
}

/// Turns the loop until a peer that has connected to it is done.
fn with_peer<T: Send + 'static>(
    reactor: &mut EventLoop,
    on: impl Network,
    address: &Address,
    act: impl FnOnce(Peer) -> T + Send + 'static,
) -> T {
    let address = address.clone();
    run_with(reactor, move || act(on.connect_peer(&address)))
}

/// Turns the loop until the other thread is done.
fn run_with<T: Send + 'static>(reactor: &mut EventLoop, act: impl FnOnce() -> T + Send + 'static) -> T {
    let other = thread::spawn(act);
    // A loop that sleeps has to notice that the thread is done.
    let waiting = reactor.every(Duration::from_millis(1), |_, _| {});
    run_until(reactor, |_| other.is_finished());
    reactor.cancel(waiting);
    other.join().unwrap()
}

/// Bytes of which no two neighbouring stretches are alike.
fn pattern(count: usize) -> Vec<u8> {
    (0..count as u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
