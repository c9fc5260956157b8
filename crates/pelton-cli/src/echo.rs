//! `pelton echo`: sends back all input.

use std::io;

use clap::Args;
use pelton::{Address, Chunk, Connection, Error, Io, Sharing};

use crate::serving::{self, ServerOptions};

#[derive(Args)]
pub struct Options {
    /// Address to listen on: 127.0.0.1:7007, [::1]:7007, unix:/path, unix:@name; port 0 picks a free one. May be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7007")]
    listen: Vec<Address>,

    #[command(flatten)]
    server: ServerOptions,
}

struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        // Reading pauses long before this fails; only a single chunk of many megabytes could fail.
        if let Err(error) = io.send_chunk(chunk) {
            tracing::warn!(%error, "closing a connection");
            io.close();
        }
    }
}

/// Runs until a signal stops it. Calls `say` with each address as soon as it accepts connections.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<(), Error> {
    let reactors = options.server.start(|builder| builder)?;
    serving::serve(reactors, "echoing", &options.listen, Sharing::default(), |_| Echo, say)
}
