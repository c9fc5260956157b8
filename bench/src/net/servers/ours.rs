//! Pelton, as anybody would use it: the default engine, statistics on.

use anyhow::{Context, Result, bail};
use pelton::{Address, Chunk, Connection, Io, Reactor};

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

pub fn serve() -> Result<()> {
    let mut reactor = Reactor::new().context("make a reactor")?;
    let listener = reactor.listen(&"127.0.0.1:0".parse()?, |_| Echo).context("listen on a free port")?;
    let Some(Address::Tcp(address)) = reactor.listening_on(listener) else { bail!("the listener has no TCP address") };
    announce(address.port())?;
    reactor.run()?;
    Ok(())
}
