//! Pelton in its usual configuration: the default engine, statistics on.

use anyhow::{Context, Result, bail};
use pelton::codec::Fixed;
use pelton::{Address, Bytes, Chunk, Connection, Io, Protocol, Reactor, Replies};

use super::announce;

/// An empty handler, so that all memory of a connection is pelton's.
struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        if io.send_chunk(chunk).is_err() {
            io.close();
        }
    }
}

/// Answers each message with itself.
struct EchoMessage;

impl Protocol for EchoMessage {
    type Message = Bytes;

    fn process(&mut self, message: Bytes, replies: &mut Replies<Bytes>) {
        replies.send(message);
    }
}

pub fn serve() -> Result<()> {
    run(|_| Echo)
}

pub fn serve_framed() -> Result<()> {
    run(pelton::serve(|| Fixed::new(super::FRAME), || EchoMessage))
}

fn run<C: Connection>(handler: impl FnMut(&mut Reactor) -> C + 'static) -> Result<()> {
    let mut reactor = Reactor::new().context("make a reactor")?;
    let listener = reactor.listen("127.0.0.1:0", handler).context("listen on a free port")?;
    let Some(Address::Tcp(address)) = reactor.listening_on(listener) else { bail!("the listener has no TCP address") };
    announce(address.port())?;
    reactor.run()?;
    Ok(())
}
