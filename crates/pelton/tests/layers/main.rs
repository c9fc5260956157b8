//! Layers between the engine and the handler: on every engine, and on an engine over a network in memory that completes
//! everything late and in parts.

mod counting;
mod ending;
mod failing;
mod flow;
mod opening;
mod switching;
mod toys;
mod users;

use std::cell::RefCell;
use std::rc::Rc;

use pelton::{Address, Chunk, Connection, EventLoop, Io, Layer, Layered, Limit, Reactor, Reason};
use pelton_testing::{Log, Network, Peer, listen, run_with};

type Act = Box<dyn FnMut(&mut Io<'_>)>;
type Receive = Box<dyn FnMut(&mut Io<'_>, Chunk)>;

/// Does what it is told to by closures, and logs everything.
#[derive(Default)]
struct Scripted {
    log: Log,
    opened: Option<Act>,
    layer_ready: Option<Act>,
    received: Option<Receive>,
    peer_finished: Option<Act>,
}

impl Scripted {
    fn logging(log: &Log) -> Scripted {
        Scripted { log: log.clone(), ..Scripted::default() }
    }

    fn opened(mut self, act: impl FnMut(&mut Io<'_>) + 'static) -> Scripted {
        self.opened = Some(Box::new(act));
        self
    }

    fn received(mut self, act: impl FnMut(&mut Io<'_>, Chunk) + 'static) -> Scripted {
        self.received = Some(Box::new(act));
        self
    }

    fn layer_ready(mut self, act: impl FnMut(&mut Io<'_>) + 'static) -> Scripted {
        self.layer_ready = Some(Box::new(act));
        self
    }

    fn peer_finished(mut self, act: impl FnMut(&mut Io<'_>) + 'static) -> Scripted {
        self.peer_finished = Some(Box::new(act));
        self
    }
}

impl Connection for Scripted {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.log.add("opened");
        if let Some(act) = &mut self.opened {
            act(io);
        }
    }

    fn layer_ready(&mut self, io: &mut Io<'_>) {
        self.log.add("layer ready");
        if let Some(act) = &mut self.layer_ready {
            act(io);
        }
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.log.received(&chunk);
        if let Some(act) = &mut self.received {
            act(io, chunk);
        }
    }

    fn writable(&mut self, _: &mut Io<'_>) {
        self.log.add("writable");
    }

    fn sent(&mut self, io: &mut Io<'_>) {
        self.log.add(format!("sent, {} queued", io.queued()));
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add("peer finished");
        match &mut self.peer_finished {
            Some(act) => act(io),
            None => io.close_after_writing(),
        }
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        self.log.add(format!("{limit}"));
        let after = io.limit(limit).unwrap();
        io.close_with(Reason::TimedOut { limit, after });
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        self.log.add("draining");
        io.close_after_writing();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

/// Collects everything that it receives and sends it back.
struct EchoAll {
    kept: Rc<RefCell<Vec<u8>>>,
}

impl Connection for EchoAll {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.kept.borrow_mut().extend_from_slice(&chunk);
        io.send_chunk(chunk).unwrap();
    }
}

/// Listens with one connection, to which `serve` gives a handler and `layer` a layer.
fn listen_once<L: Layer>(reactor: &mut EventLoop, handler: Scripted, layer: L) -> Address {
    listen_prepared(reactor, handler, |io| io.push_layer(layer))
}

fn listen_prepared(reactor: &mut EventLoop, handler: Scripted, prepare: impl FnOnce(&mut Io<'_>) + 'static) -> Address {
    let mut once = Some(Layered::new(handler, prepare));
    listen(reactor, move |_| once.take().expect("one connection"))
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

/// Turns the loop until all connections are over, and checks that nothing counts as queued.
fn run_out(reactor: &mut EventLoop) {
    pelton_testing::run_until(reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.queued(), 0);
}
