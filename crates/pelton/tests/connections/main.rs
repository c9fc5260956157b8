//! Connections with blocking peers in other threads: on every engine, and on an engine with an in-memory network that completes
//! everything late and in parts.

mod draining;
mod flow;
mod handing_over;
mod lifetime;
mod limits;
mod manners;
mod manual;
mod moving;
mod reading;
mod sending;
mod unix;

use pelton::{Address, Chunk, Connection, EventLoop, Io, Reactor, Reason};
use pelton_testing::{Echo, Log, Network, Peer, listen, pattern, run_with};

type Act = Box<dyn FnMut(&mut Io<'_>)>;
type Receive = Box<dyn FnMut(&mut Io<'_>, Chunk)>;

/// Runs closures in some callbacks, and logs the rest.
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

    fn writable(&mut self, _: &mut Io<'_>) {
        self.log.add("writable");
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

/// Runs the loop until a peer that has connected to it is done.
fn with_peer<T: Send + 'static>(
    reactor: &mut EventLoop,
    on: impl Network,
    address: &Address,
    act: impl FnOnce(Peer) -> T + Send + 'static,
) -> T {
    let address = address.clone();
    run_with(reactor, move || act(on.connect_peer(&address)))
}
