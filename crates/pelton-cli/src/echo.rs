//! `pelton echo`: sends back whatever comes in.

use std::io;

use clap::Args;
use pelton::{Address, Chunk, Connection, EngineKind, Error, Io, Reactor};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Args)]
pub struct Options {
    /// Where to listen: 127.0.0.1:7007, [::1]:7007, unix:/path, unix:@name; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7007")]
    listen: Address,

    /// The engine to run on, by its name; see `pelton engines`
    #[arg(long, value_name = "NAME")]
    engine: Option<EngineKind>,
}

struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        // Reading pauses long before this fails: only a single chunk of many megabytes could.
        if let Err(error) = io.send_chunk(chunk) {
            tracing::warn!(%error, "closing a connection");
            io.close();
        }
    }
}

/// Runs until it is told to stop by a signal. `say` is given the address as soon as connections are taken.
pub fn run(options: &Options, say: impl FnOnce(&str) -> io::Result<()>) -> Result<(), Error> {
    let builder = Reactor::builder();
    let mut reactor = match options.engine {
        Some(engine) => builder.engine(engine).build()?,
        None => builder.build()?,
    };
    for signal in [SIGINT, SIGTERM] {
        reactor.on_signal(signal, |reactor, _| reactor.stop())?;
    }
    let listener = reactor.listen(&options.listen, |_| Echo)?;
    let address = reactor.listening_on(listener).unwrap_or(&options.listen).to_string();
    // Nobody may be there to read it, which is no reason not to serve.
    let _ = say(&format!("echoing on {address}, with {}; ctrl-c ends it\n", reactor.engine_name()));
    reactor.on_shutdown(move |reactor| {
        reactor.unlisten(listener);
    });
    reactor.run()?;
    Ok(())
}
