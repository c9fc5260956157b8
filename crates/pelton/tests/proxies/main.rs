//! Proxying between connections: on every engine, and on an engine over a network in memory that completes everything
//! late and in parts.

mod circles;
mod costs;
mod ending;
mod flow;
mod forwarding;
mod handlers;
mod leaving;
mod splicing;

#[path = "../layers/toys.rs"]
#[allow(dead_code, reason = "shared with the tests of layers")]
mod toys;

use std::cell::Cell;
use std::rc::Rc;

use pelton::{Address, Chunk, Connection, ConnectionId, EventLoop, Io, Proxied, ProxyEnd, Reactor, Reason};
use pelton_testing::{Log, Network, Peer, PeerListener, listen, run_with};

type Act = Box<dyn FnOnce(&mut Io<'_>)>;
type OnFinished = Box<dyn FnMut(&mut Io<'_>, &Proxied)>;

/// Logs everything under its name, and does what closures say.
#[derive(Default)]
struct Side {
    name: &'static str,
    log: Log,
    opened: Option<Act>,
    finished: Option<OnFinished>,
    stays: bool,
}

impl Side {
    fn new(name: &'static str, log: &Log) -> Side {
        Side { name, log: log.clone(), ..Side::default() }
    }

    fn opened(mut self, act: impl FnOnce(&mut Io<'_>) + 'static) -> Side {
        self.opened = Some(Box::new(act));
        self
    }

    /// Replaces the default of `proxy_finished`.
    fn finished(mut self, act: impl FnMut(&mut Io<'_>, &Proxied) + 'static) -> Side {
        self.finished = Some(Box::new(act));
        self
    }

    /// Stays open when its peer has finished.
    fn stays(mut self) -> Side {
        self.stays = true;
        self
    }
}

/// The default of `proxy_finished`.
struct Default_;

impl Connection for Default_ {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

impl Connection for Side {
    fn opened(&mut self, io: &mut Io<'_>) {
        if let Some(act) = self.opened.take() {
            act(io);
        }
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.log.received(&chunk);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.log.add(format!("{}: peer finished", self.name));
        if !self.stays {
            io.close_after_writing();
        }
    }

    fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &Proxied) {
        self.log.add(format!("{}: {} bytes, {}", self.name, proxied.bytes, end(proxied.end)));
        match &mut self.finished {
            Some(act) => act(io, proxied),
            None => Default_.proxy_finished(io, proxied),
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(format!("{}: {reason}", self.name));
    }
}

fn end(end: ProxyEnd) -> &'static str {
    match end {
        ProxyEnd::PeerFinished => "peer finished",
        ProxyEnd::LimitReached => "limit reached",
        ProxyEnd::TargetClosed => "target closed",
        ProxyEnd::TargetFailed => "target failed",
        ProxyEnd::SourceClosed => "source closed",
        ProxyEnd::Stopped => "stopped",
        other => panic!("{other:?}"),
    }
}

/// Listens for one connection.
fn listen_once(reactor: &mut EventLoop, handler: impl Connection) -> Address {
    let mut once = Some(handler);
    listen(reactor, move |_| once.take().expect("one connection"))
}

/// Two connections of one reactor with a peer each. The peers are threads.
struct Pair {
    front: Address,
    back: PeerListener,
    log: Log,
    ids: Rc<Cell<Option<(ConnectionId, ConnectionId)>>>,
}

/// Accepts a client and connects to a server, and calls `start` with the connection to the client and the id of the
/// connection to the server. The names in the log are "client" and "server".
fn pair(reactor: &mut EventLoop, on: impl Network, start: impl FnOnce(&mut Io<'_>, ConnectionId) + 'static) -> Pair {
    pair_of(reactor, on, |side| side, |side| side, start)
}

fn pair_of(
    reactor: &mut EventLoop,
    on: impl Network,
    client: impl FnOnce(Side) -> Side,
    server: impl FnOnce(Side) -> Side,
    start: impl FnOnce(&mut Io<'_>, ConnectionId) + 'static,
) -> Pair {
    let (log, ids) = (Log::default(), Rc::new(Cell::new(None)));
    let back = on.listen_peer();
    let (target, known) = (back.address(), ids.clone());
    let to_server = server(Side::new("server", &log));
    let to_client = client(Side::new("client", &log)).opened(move |io| {
        let server = io.reactor().connect(&target, to_server).unwrap();
        known.set(Some((io.id(), server)));
        start(io, server);
    });
    let front = listen_once(reactor, to_client);
    Pair { front, back, log, ids }
}

impl Pair {
    /// Turns the loop until the peers are done: the client, and the server that accepts the connection to it.
    fn run<T: Send + 'static>(
        self,
        reactor: &mut EventLoop,
        on: impl Network,
        act: impl FnOnce(Peer, Peer) -> T + Send + 'static,
    ) -> (T, Log) {
        let Pair { front, back, log, .. } = self;
        let result = run_with(reactor, move || {
            let client = on.connect_peer(&front);
            let server = back.accept();
            act(client, server)
        });
        (result, log)
    }
}

/// Turns the loop until all connections are over, and checks that nothing counts as queued.
fn run_out(reactor: &mut EventLoop) {
    pelton_testing::run_until(reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(reactor.queued(), 0);
}

/// The entries about the end of proxying and of connections, in an order that does not depend on which comes first.
fn sorted(log: &Log) -> Vec<String> {
    let mut entries = log.take();
    entries.sort();
    entries
}
