//! A tiny netcat: what is typed goes to a server, and what the server sends is printed.
//!
//! ```text
//! $ cargo run -p pelton-cli -- echo --listen 127.0.0.1:7000 &
//! $ echo hello | cargo run -p pelton-examples --bin netcat 127.0.0.1:7000
//! hello
//! ```
//!
//! Standard input and output are connections like the server, be they a terminal or a pipe. Bytes move from each to the next:
//!
//! ```text
//! keyboard ──▶ server ──▶ screen
//! ```
//!
//! If one does not keep up, reading from the one before it pauses. When the input ends, the server is told so, and may still answer.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io;

use pelton::{Chunk, Connection, ConnectionId, Endpoint, Io, Reactor, Reason, Socket};

/// The three connections, in the order in which bytes pass through them. All callbacks share this.
#[derive(Default)]
struct Chain {
    links: Vec<ConnectionId>,
    failed: Option<Reason>,
}

/// One of the three, by its place in the chain.
struct Link(usize);

impl Link {
    fn neighbour<'a>(reactor: &'a mut Reactor, place: Option<usize>) -> Option<Io<'a>> {
        let id = *reactor.state::<Chain>().links.get(place?)?;
        reactor.connection(id)
    }

    fn next<'a>(&self, reactor: &'a mut Reactor) -> Option<Io<'a>> {
        Link::neighbour(reactor, self.0.checked_add(1))
    }
}

impl Connection for Link {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let Some(mut next) = self.next(io.reactor()) else { return io.close() };
        if next.send_chunk(chunk).is_err() {
            return io.close();
        }
        next.flush();
        if next.queued() > next.water_marks().high {
            io.pause();
        }
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        if let Some(mut previous) = Link::neighbour(io.reactor(), self.0.checked_sub(1)) {
            previous.resume();
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        if !matches!(reason, Reason::Local | Reason::Finished) {
            reactor.state::<Chain>().failed = Some(reason);
            return reactor.stop();
        }
        match self.next(reactor) {
            // Everything that was received has been passed on. The next one sends it, then tells that this is the end.
            Some(mut next) => next.finish(),
            // The screen has printed everything.
            None => reactor.stop(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: netcat ADDRESS")?;
    let mut reactor = Reactor::new()?;
    let screen = reactor.adopt(Socket::borrowed(io::stdout()), Link(2))?;
    let server = reactor.connect_to(address.parse::<Endpoint>()?, Link(1))?;
    let keyboard = reactor.open_stdin(Link(0))?;
    reactor.state::<Chain>().links = vec![keyboard, server, screen];
    reactor.run()?;
    match reactor.state::<Chain>().failed.take() {
        Some(reason) => Err(reason.into()),
        None => Ok(()),
    }
}
